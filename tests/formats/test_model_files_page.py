"""A reader that was written from docs/reference/model-files.md alone computes what elmokit computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, SentenceEmbedder, SentencePooling, open_model, save_model
from elmokit.embedding.sentence_vectors import PoolingName
from elmokit.engine.architecture import PRESETS, BiLMConfig, CharCNNConfig
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.formats.folder import included_model
from elmokit.lm.spelling import spelling_of
from tests.conftest import WORDS, random_model

SENTENCES = [["The", "bank", "raised", "its", "rate", "."], ["Zyzzyva", "naïve", "<UNK>", "x" * 60, "the", "."], []]


class Reader:
    """What the page says, with NumPy and JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_bytes())
        self.bilm = self.config["bilm"]
        self.tensors = read_tensors(folder / "model.safetensors")
        self.softmax = read_tensors(folder / "softmax.safetensors")
        self.alignment = read_tensors(folder / "alignment.safetensors") if self.config.get("alignment") else None
        self.lines = {word: line for line, word in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n"))}

    def token_vector(self, token: str) -> Any:
        bilm, at = self.bilm, lambda name: self.tensors["token_layer." + name]
        if bilm["n_words"]:
            return at("embedding.weight")[1 + self.lines.get(token, self.lines["<UNK>"])]
        cnn, prefix, parts = bilm["char_cnn"], "chars." if bilm["word_features"] else "", []
        inner = {"<S>": [257], "</S>": [258]}.get(token) or [
            1 + byte for byte in token.encode()[: cnn["max_chars"] - 2]
        ]
        rows = [259, *inner, 260] + [261] * (cnn["max_chars"] - 2 - len(inner))
        characters = at(prefix + "char_embedding.weight")[rows]
        for number, (width, _) in enumerate(cnn["filters"]):
            windows = np.stack([characters[first : first + width].T for first in range(len(rows) - width + 1)])
            responses = np.tensordot(windows, at(f"{prefix}convolutions.{number}.weight"), ([1, 2], [1, 2]))
            parts.append(responses.max(axis=0) + at(f"{prefix}convolutions.{number}.bias"))
        x = np.concatenate(parts)
        x = np.tanh(x) if cnn["activation"] == "tanh" else np.maximum(x, 0)
        for number in range(cnn["n_highway"]):
            transformed, gate = (
                at(f"{prefix}highways.{number}.{name}.weight") @ x + at(f"{prefix}highways.{number}.{name}.bias")
                for name in ("transform", "gate")
            )
            gate = sigmoid(gate)
            x = gate * np.maximum(transformed, 0) + (1 - gate) * x
        if bilm["word_features"]:
            row = 0 if token == "<UNK>" else 1 + self.lines.get(token, -1)
            x = np.concatenate([at("word_embedding.weight")[row], x])
        if "token_layer.projection.weight" not in self.tensors:
            return x
        return at("projection.weight") @ x + at("projection.bias")

    def read(self, vectors: Any, direction: int, state: Any) -> Any:
        """Return all layers of a direction, (layers + 1, tokens, dim) in the order of reading, and the state after."""
        layers, after = [vectors], []
        for layer in range(self.bilm["n_layers"]):
            name = f"directions.{direction}.layers.{layer}."
            projection, outputs, (m, c) = self.tensors.get(name + "projection"), [], state[layer]
            for x in layers[-1]:
                sums = self.tensors[name + "weight"] @ np.concatenate([x, m]) + self.tensors[name + "bias"]
                i, g, f, o = np.split(sums, 4)
                c = clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g), self.bilm["cell_clip"])
                m = sigmoid(o) * np.tanh(c)
                m = m if projection is None else clip(projection @ m, self.bilm["projection_clip"])
                outputs.append(m + x if layer and self.bilm["skip_connections"] else m)
            layers.append(np.array(outputs))
            after.append((m, c))
        return np.array(layers), after

    def start_state(self, direction: int) -> Any:
        if "warm_state.cell" in self.tensors:
            m, c = (self.tensors[f"warm_state.{name}"][direction, :, 0] for name in ("hidden", "cell"))
            return list(zip(m, c, strict=True))
        zeros = [(np.zeros(self.bilm["projection_dim"]), np.zeros(self.bilm["hidden_dim"]))] * self.bilm["n_layers"]
        tokens = ["</S>", "<S>"] if self.is_backward(direction) else ["<S>", "</S>"]
        return self.read(np.array([self.token_vector(token) for token in tokens]), direction, zeros)[1]

    def is_backward(self, direction: int) -> bool:
        return direction == 1

    def layers(self, sentence: list[str]) -> list[Any]:
        """Return all layers of each direction, in the order of the text, with boundaries."""
        vectors = np.array([self.token_vector(token) for token in ["<S>", *sentence, "</S>"]])
        found = []
        for direction in range(2 if self.bilm["bidirectional"] else 1):
            step = -1 if self.is_backward(direction) else 1
            found.append(self.read(vectors[::step], direction, self.start_state(direction))[0][:, ::step])
        return found

    def vectors(self, sentence: list[str]) -> Any:
        found = np.concatenate([layers[:, 1:-1] for layers in self.layers(sentence)], axis=-1)
        if not self.alignment:
            return found
        matrices, offsets = self.alignment["matrices"], self.alignment["offsets"]
        return np.array([v @ matrix.T + offset for v, matrix, offset in zip(found, matrices, offsets, strict=True)])

    def document(self, sentences: list[list[str]]) -> list[Any]:
        """Return the vectors of each sentence of a document."""
        found: list[list[Any]] = [[] for _ in sentences]
        for direction in range(2 if self.bilm["bidirectional"] else 1):
            state = self.start_state(direction)
            for sentence, parts in zip(sentences, found, strict=True):
                step = -1 if self.is_backward(direction) else 1
                first = "</S>" if self.is_backward(direction) else "<S>"
                vectors = np.array([self.token_vector(token) for token in [first, *sentence[::step]]])
                layers, state = self.read(vectors, direction, state)
                parts.append(layers[:, 1:][:, ::step])
        return [np.concatenate(parts, axis=-1) for parts in found]

    def in_case(self, sentence: list[str]) -> list[str]:
        """Read a sentence in capitals in the case in which its words are most frequent."""
        capitals = [number for number, token in enumerate(sentence) if token.isupper()]
        n_others = sum(token != token.upper() for token in sentence)
        if len(capitals) < 2 or n_others > 0.1 * len(capitals):
            return sentence
        read, is_in_capitals = [*sentence], False
        for number in capitals:
            token, lower = sentence[number], sentence[number].lower()
            capitalized = token[:1] + lower[1:]
            best = min((lower, capitalized, token), key=lambda form: self.lines.get(form, len(self.lines)))
            is_in_capitals = is_in_capitals or (token not in self.lines and best in self.lines)
            if number == capitals[0] and best == lower and capitalized in self.lines:
                best = capitalized
            read[number] = best
        return read if is_in_capitals else sentence

    def sentence_vector(self, sentence: list[str], name: str) -> Any:
        """Return the vector of a sentence by the map of a file, ``whitening`` or ``sentence_head``."""
        how = self.config["sentence_pooling" if name == "whitening" else name]
        tensors = read_tensors(self.folder / f"{name}.safetensors")
        words = [word for word in self.lines if word and word not in ("<S>", "</S>", "<UNK>")]
        ranks = {word: rank for rank, word in enumerate(words, start=1)}
        sum_of_all = sum(1 / rank for rank in ranks.values())

        def fold(token: str) -> str:
            plain = {"``": '"', "''": '"'}.get(token, token)
            token = plain if plain in self.lines and token not in self.lines else token
            forms = [token]
            if how["layers"] == 0 and token[1:] == token[1:].lower():
                forms = [token, token.lower()]
            return min(forms, key=lambda form: ranks.get(form, len(words) + 1))

        tokens = [fold(token) for token in self.in_case(sentence)]
        layers = np.array([np.concatenate([v, v]) for v in map(self.token_vector, tokens)])
        if how["layers"] != 0:
            layers = np.concatenate(list(self.vectors(tokens)), axis=-1)
        weights, mapped = [], []
        for token, v in zip(tokens, layers, strict=True):
            if len(tensors["mean"]) > len(v):
                row = 0 if token == "<UNK>" else 1 + self.lines.get(token, -1)
                v = np.concatenate([v, self.tensors["token_layer.word_embedding.weight"][row]])
            u = (v - tensors["mean"]) @ tensors["projection"]
            mapped.append(u / np.linalg.norm(u))
            rank = min(ranks.get(token, len(words)), ranks.get(token.lower(), len(words)))
            weight = 1.0
            if how["weighting"] == "sif":
                weight = how["smoothing"] / (how["smoothing"] + 1 / (rank * sum_of_all))
                weight *= any(map(str.isalnum, token)) or not any(char.isalnum() for char in "".join(tokens))
            if name == "sentence_head":
                line = self.lines.get(token.lower(), self.lines.get(token, self.lines["<UNK>"]))
                weight *= tensors["word_weights"][line]
            weights.append(weight)
        return np.array(weights) @ np.array(mapped) / sum(weights)

    def log_probabilities(self, h: Any) -> Any:
        at, config = self.softmax, self.config["softmax"]
        if config["inner_dim"]:
            units = np.maximum(0, at["inner.expand.weight"] @ h + at["inner.expand.bias"])
            h = h + at["inner.reduce.weight"] @ units + at["inner.reduce.bias"]
        table = "embedding.weight" if self.bilm["n_words"] else "word_embedding.weight"
        weight = self.tensors["token_layer." + table][1:] if config["kind"] == "tied" else at["weight"]
        return log_softmax(weight @ h + at["bias"])

    def perplexities(self, sentences: list[list[str]]) -> list[float]:
        nats: dict[int, list[float]] = {}
        for sentence in sentences:
            numbers = [self.lines.get(token, self.lines["<UNK>"]) for token in ["<S>", *sentence, "</S>"]]
            for direction, layers in enumerate(self.layers(sentence)):
                step = -1 if self.is_backward(direction) else 1
                for h, number in zip(layers[-1][::step][:-1], numbers[::step][1:], strict=True):
                    nats.setdefault(direction, []).append(-self.log_probabilities(h)[number])
        return [float(np.exp(np.mean(of_direction))) for of_direction in nats.values()]


def read_tensors(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": "<f4", "F16": "<f2", "I8": "i1", "BF16": "<u2"}
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        first, stop = (start + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[first:stop], types[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = (array.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else array
    for name in [name for name in tensors if name + ".scale" in tensors]:
        scale = tensors.pop(name + ".scale")
        tensors[name] = tensors[name] * scale.reshape(-1, *[1] * (tensors[name].ndim - 1))
    return {name: np.float32(array) for name, array in tensors.items()}


def sigmoid(x: Any) -> Any:
    return (1 + np.tanh(x / 2)) / 2


def clip(x: Any, bound: float | None) -> Any:
    return x if bound is None else x.clip(-bound, bound)


def log_softmax(scores: Any) -> Any:
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


def check(folder: Path) -> None:
    model = open_model(folder, precision="float32")
    reader = Reader(folder)
    for sentence, expected in zip(SENTENCES, Elmo(model).embed(SENTENCES), strict=True):
        found = reader.vectors(sentence)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    if not reader.alignment:
        (expected_document,) = Elmo(model).embed_documents([SENTENCES[:2]])
        for found, expected in zip(reader.document(SENTENCES[:2]), expected_document, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    expected = LanguageModel(model).perplexity(SENTENCES).per_direction
    np.testing.assert_allclose(reader.perplexities(SENTENCES), expected, rtol=1e-4)


def test_the_page_describes_the_included_model() -> None:
    check(included_model())


def test_the_page_describes_the_letters_of_unknown_words() -> None:
    letters = read_tensors(included_model() / "letters.safetensors")
    embedding = letters["embedding"]
    n_context = letters["hidden_weight"].shape[1] // embedding.shape[1]
    spelling = spelling_of(open_model())
    for word in ("Zyzzyva", "naïve-looking", "1,234.5", ""):
        symbols, nats = [256] * n_context, 0.0
        for symbol in [*word.encode(), 256]:
            c = np.concatenate([embedding[number] for number in symbols[-n_context:]])
            hidden = np.maximum(0, letters["hidden_weight"] @ c + letters["hidden_bias"])
            scores = embedding @ letters["output_weight"] @ hidden + letters["bias"]
            nats -= scores[symbol] - np.log(np.exp(scores).sum())
            symbols.append(symbol)
        assert spelling.nats(word) == pytest.approx(nats, rel=1e-5)


TEXTS = [
    ["The", "bank", "raised", "``", "its", "''", "rate", "."],
    ["THE", "MAN", "IN", "LONDON", "SLEEPS", "."],
    ["Zyzzyva", "naïve", "US", "<UNK>", "Paris"],
    ["...", "!"],
]


@pytest.mark.parametrize(("name", "pooling"), [("whitening", "whitened"), ("sentence_head", "trained")])
def test_the_page_describes_the_sentence_vectors_of_the_included_model(name: str, pooling: PoolingName) -> None:
    embedder = SentenceEmbedder.by_name(Elmo.from_pretrained(precision="float32"), pooling)
    reader = Reader(included_model())
    found = [reader.sentence_vector(text, name) for text in TEXTS]
    np.testing.assert_allclose(found, embedder.embed(TEXTS), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_page_describes_a_whitening_of_several_layers(tmp_path: Path) -> None:
    texts = [*TEXTS, *SENTENCES[:2], ["A", "dog", "ran"], ["the", "the", "the"]]
    embedder = SentenceEmbedder(Elmo.from_pretrained(precision="float32"), SentencePooling("mean", "all"))
    embedder.fit(texts, n_components=3)
    save_model(embedder.elmo.model, tmp_path / "model")
    reader = Reader(tmp_path / "model")
    found = [reader.sentence_vector(text, "whitening") for text in texts]
    np.testing.assert_allclose(found, embedder.embed(texts), rtol=1e-2, atol=1e-3)


TINY = PRESETS["tiny"]
CNN = CharCNNConfig(((1, 4), (3, 5)), char_dim=3, n_highway=2, activation="tanh", max_chars=12)


@pytest.mark.parametrize(
    ("config", "softmax", "storage"),
    [
        (TINY, SoftmaxConfig(), "float16"),
        (replace(TINY, char_cnn=CNN, hidden_dim=8, projection_dim=8), SoftmaxConfig(inner_dim=5), "int8"),
        (replace(TINY, char_cnn=replace(CNN, filters=((2, 8),)), projection_dim=8), SoftmaxConfig(), "float32"),
        (replace(TINY, char_cnn=None, n_words=len(WORDS), bidirectional=False), SoftmaxConfig("tied"), "int8"),
        (
            replace(TINY, skip_connections=False, cell_clip=None, projection_clip=0.1, projection_dim=16),
            SoftmaxConfig(),
            "float32",
        ),
    ],
    ids=["chars", "no projection, inner layer", "no token projection", "words, tied", "no clip"],
)
def test_the_page_describes_other_models(
    config: BiLMConfig, softmax: SoftmaxConfig, storage: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    model = random_model(config)
    shapes = softmax.tensor_shapes(len(WORDS), config.projection_dim)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    table = (model.arrays, "token_layer.embedding.weight") if softmax.kind == "tied" else None
    model = model.replace(softmax=WordSoftmax(softmax, arrays, len(WORDS), table))
    if config.n_directions == 2:
        n, dim = config.n_layers + 1, config.output_dim
        model = model.replace(
            alignment=LayerAlignment(*(rng.normal(size=s).astype(np.float32) for s in ((n, dim, dim), (n, dim))))
        )
    save_model(model, tmp_path / "model", storage=storage)
    check(tmp_path / "model")

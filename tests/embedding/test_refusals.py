"""What the calls of this folder refuse: the class of the error, and what its text must mention."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, ElmoModule, SentenceEmbedder, SentencePooling, embed_file
from elmokit.embedding.computer import Computer
from elmokit.embedding.outputs.layout import Layout
from elmokit.embedding.start_state import mean_state
from elmokit.engine.architecture import BiLMConfig
from elmokit.errors import ConfigError, ModelNotFoundError, OutputError, TextError
from elmokit.network.scalar_mix import make_scalar_mix
from elmokit.text.text import Text
from tests.conftest import model_beyond_float16, random_model

SENTENCES = [["the", "cat", "sat"], ["the", "dog", "ran", "the", "mat"]]
TEXT = "the cat sat .\n\nthe dog\n"
Row = tuple[str, Callable[[], object], type[Exception], str]


def elmo() -> Elmo:
    return Elmo(random_model())


def module(**settings: Any) -> ElmoModule:
    return ElmoModule(random_model(), **settings)


def ids(change: Callable[[Any], Any]) -> object:
    """Call a module with changed ids."""
    one = module()
    return one(change(one.ids([["the", "cat", "sat"]])))


def with_number(given: Any, position: tuple[int, ...], number: int) -> Any:
    given[position] = number
    return given


def without_vocabulary(**sizes: Any) -> Elmo:
    model = random_model(BiLMConfig(**sizes)) if sizes else random_model()
    model = model.replace(softmax=None, vocabulary=None)
    return Elmo(model, start="zero")


def of_words() -> Elmo:
    return without_vocabulary(char_cnn=None, n_words=11, projection_dim=4, hidden_dim=6)


def embedder(*arguments: Any, **settings: Any) -> SentenceEmbedder:
    return SentenceEmbedder(elmo(), *arguments, **settings)


def embed(output: str, layout: dict[str, Any], reading: dict[str, Any], text: Path) -> object:
    return embed_file(elmo(), Text(text, **reading), output, Layout(**layout))


NOT_SENTENCES: list[tuple[Any, str]] = [
    ("the cat", "tokenize=True to Elmo.embed"),
    (["the cat"], "tokenize=True to Elmo.embed"),
    (["The", "cat"], "[['The', ...]]"),
    ([None], "None of type NoneType"),
    ([["The"], 3], "3 of type int"),
    ([["The", 3]], "3 of type int"),
    ([b"a"], "bytes"),
    ([{"a"}], "type set"),
    ([{"a": 1}], "type dict"),
]
COUNTS: list[dict[str, float]] = [{}, {"the": 0}, {"the": 3, "cat": -1}, {"the": np.nan}, {"the": 1, "cat": np.inf}]
ELMO: list[Row] = [
    ("an unknown start", lambda: Elmo(random_model(), start="cold"), ConfigError, "start is 'cold'"),  # type: ignore[arg-type]
    ("no such model", lambda: Elmo.from_pretrained("no/such/model"), ModelNotFoundError, "no/such/model"),
    ("the name of a model", lambda: Elmo("en-mini"), ConfigError, "Elmo.from_pretrained('en-mini')"),  # type: ignore[arg-type]
    ("no device", lambda: Elmo.from_pretrained(device="gpu"), ConfigError, "'gpu'"),
    ("a device without a backend", lambda: Elmo.from_pretrained(device="xla"), ConfigError, "device 'xla'"),
    *(
        (f"{name} {number}", call, ConfigError, f"{name} is")
        for number in (-1, 2.5, np.nan, "5", True)
        for name, call in (
            ("batch_tokens", lambda number=number: elmo().embed(SENTENCES, batch_tokens=number)),
            ("token_cache_mib", lambda number=number: Elmo(random_model(), token_cache_mib=number)),
        )
    ),
    ("batch_tokens 0", lambda: elmo().embed(SENTENCES, batch_tokens=0), ConfigError, "batch_tokens is 0"),
    *(
        (f"sentences {given}", lambda given=given: elmo().embed(given), TextError, name)
        for given, name in NOT_SENTENCES
    ),
    *(
        (f"documents {given}", lambda given=given: elmo().embed_documents(given), TextError, name)
        for given, name in (
            (["The cat sat."], "tokenize=True"),
            ([["The", "cat"]], "[['The', ...]]"),
            ([[["The", 3]]], "3 of type int"),
            ([[3]], "3 of type int"),
        )
    ),
    (
        "stateful documents",
        lambda: Elmo(random_model(), start="stateful").embed_documents([]),
        ConfigError,
        "start is 'stateful'",
    ),
    ("documents, batch_tokens 0", lambda: elmo().embed_documents([], batch_tokens=0), ConfigError, "batch_tokens is 0"),
    ("a stateful string", lambda: Elmo(random_model(), start="stateful").embed("The cat"), TextError, "'The cat'"),
    ("no text to calibrate", lambda: mean_state(Computer(random_model()), []), TextError, "no sentence"),
    ("tokens as raw text", lambda: elmo().embed(SENTENCES, tokenize=True), TextError, "got list"),  # type: ignore[call-overload]
    *(
        (f"layers {layers}", lambda layers=layers: elmo().embed(SENTENCES, layers=layers), ConfigError, name)
        for layers, name in (
            *((layers, "layers is") for layers in ([], True, [True], "bottom", 2.5)),
            *((layers, "has layers 0 to 2") for layers in (3, -1, [0, 7], "allx")),
            ("mix", "there is no scalar mix here"),
        )
    ),
    ("no vocabulary", lambda: of_words().embed(SENTENCES), ModelNotFoundError, "has no vocabulary"),
]
MODULE: list[Row] = [
    *(
        (f"{name} {given}", lambda name=name, given=given: getattr(module(), name)(given), TextError, text)
        for name in ("ids", "embed", "padded_layers", "mixed_vectors")
        for given, text in NOT_SENTENCES[:5]
    ),
    ("the name of a model", lambda: ElmoModule("en-mini"), ConfigError, "ElmoModule.from_pretrained('en-mini')"),  # type: ignore[arg-type]
    ("an Elmo", lambda: ElmoModule(elmo()), ConfigError, "Expected a model"),  # type: ignore[arg-type]
    ("no device", lambda: ElmoModule.from_pretrained(device="gpu"), ConfigError, "'gpu'"),
    ("a device that cannot compute", lambda: ElmoModule.from_pretrained(device="meta"), ConfigError, "'meta'"),
    ("a layer too many", lambda: module(layers=[0, 3]), ConfigError, "layers 0 to 2"),
    *(
        (f"a mix of {layers}", lambda layers=layers: make_scalar_mix(layers, 3), ConfigError, "layers is")
        for layers in (None, True, [0, True], 9, [1.5])
    ),
    ("less than no mix", lambda: module(n_mixes=-1), ConfigError, "n_mixes is -1"),
    ("no mix", lambda: module(n_mixes=0).embed(SENTENCES), ConfigError, "no scalar mix"),
    ("a dropout above 1", lambda: module(dropout=3), ValueError, "dropout"),
    ("state of shuffled rows", lambda: module(start="stateful").mixed_vectors(SENTENCES), ConfigError, "'stateful'"),
    ("tokens", lambda: module()([["The"]]), TypeError, "ElmoModule.ids"),
    ("floats", lambda: ids(lambda given: given.float()), TypeError, "torch.float32 (1, 5, 50)"),
    ("booleans", lambda: ids(lambda given: given.bool()), TypeError, "torch.bool"),
    ("an axis too few", lambda: ids(lambda given: given[0]), TypeError, "(5, 50)"),
    ("an axis too many", lambda: ids(lambda given: given[None]), TypeError, "(1, 1, 5, 50)"),
    ("a gap", lambda: ids(lambda given: with_number(given, (0, 2), 0)), ValueError, "padding before or between tokens"),
    ("a large id", lambda: ids(lambda given: with_number(given, (0, 1, 0), 100_000)), IndexError, "out of range"),
    ("a negative id", lambda: ids(lambda given: with_number(given, (0, 1, 0), -1)), IndexError, "out of range"),
]
SENTENCE_VECTORS: list[Row] = [
    *(
        (f"sentences {given}", lambda given=given: embedder().embed(given), TextError, name)
        for given, name in NOT_SENTENCES
    ),
    ("a name", lambda: SentenceEmbedder("en-mini"), ConfigError, "'en-mini'"),  # type: ignore[arg-type]
    ("a model", lambda: SentenceEmbedder.by_name(random_model(), "mean"), ConfigError, "PretrainedBiLM"),  # type: ignore[arg-type]
    (
        "an unknown name",
        lambda: SentenceEmbedder.by_name(elmo(), "foo"),
        ConfigError,
        "auto, mean, sif, whitened, trained",
    ),  # type: ignore[arg-type]
    ("no whitening", lambda: SentenceEmbedder.by_name(elmo(), "whitened"), ConfigError, "no whitening"),
    ("no head", lambda: SentenceEmbedder.by_name(elmo(), "trained"), ConfigError, "no head"),
    ("layers of a head", lambda: SentenceEmbedder.by_name(elmo(), "trained", 0), ConfigError, "layers is 0"),
    ("a layer too many", lambda: embedder(SentencePooling(layers=3)), ConfigError, "layers 0 to 2"),
    ("an unknown layer", lambda: SentencePooling("mean", layers="foo"), ConfigError, "layers is 'foo'"),  # type: ignore[arg-type]
    ("an unknown weighting", lambda: SentencePooling("max"), ConfigError, "weighting"),  # type: ignore[arg-type]
    ("no smoothing", lambda: SentencePooling(smoothing=0.0), ConfigError, "smoothing"),
    ("a smoothing that is no number", lambda: SentencePooling(smoothing=np.nan), ConfigError, "smoothing"),
    *((f"{given}", lambda given=given: embedder(word_counts=given), ConfigError, "word_counts") for given in COUNTS),
    (
        "no word frequencies",
        lambda: SentenceEmbedder(without_vocabulary(), SentencePooling()),
        ConfigError,
        "word_counts",
    ),
    ("one sentence to fit", lambda: embedder().fit([["the", "cat"], []]), TextError, "at least 2 sentences"),
    ("equal sentences", lambda: embedder().fit([["the", "cat"]] * 10), TextError, "10 sentences"),
    *(
        (f"{n} components", lambda n=n: embedder().fit(SENTENCES, n_components=n), ConfigError, "n_components")
        for n in (999, 1.5)
    ),
]
OUTPUT = "earlier.hdf5"
OPTIONS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (OUTPUT, {}, OutputError, OUTPUT),
    ("x" * 250, {}, OutputError, "File name too long"),  # with ``.partial`` at its end
    ("out.csv", {}, OutputError, ".csv"),
    ("out.npz", {"use_sentence_keys": True}, ConfigError, "use_sentence_keys"),
    ("out.npz", {"include_sentence_indices": True}, ConfigError, "include_sentence_indices"),
    ("out.npz", {"batch_size": 0}, ConfigError, "batch_size"),
    *(("out.npz", {"dtype": dtype}, ConfigError, "dtype is") for dtype in ("float64", "FLOAT16", "foo", None, bool)),
    ("out.hdf5", {"dtype": "int8"}, ConfigError, "dtype is"),
    ("out.npz", {"dtype": "f16"}, ConfigError, "dtype is 'f16'"),  # for NumPy, float128
]
READINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kind": "allennlp"}, TextError, "text.txt, line 2"),
    ({"kind": "fasta"}, TextError, "text.txt, line 1"),
    ({"kind": "fasta", "documents": True}, ConfigError, "fasta"),
    ({"kind": "sentences"}, ConfigError, "kind is 'sentences'"),
    ({"wrapped": "yes"}, ConfigError, "wrapped is for raw text"),
    ({"language": "de"}, ConfigError, "language is for raw text"),
    ({"kind": "raw", "column": "text"}, ConfigError, "column is for passages"),
    ({"kind": "raw", "wrapped": True}, ConfigError, "wrapped is True"),
]
if find_spec("pyarrow"):
    OPTIONS.append(("out.parquet", {"layers": [0, 0]}, ConfigError, "[0, 0]"))
FILES: list[tuple[str, Callable[[Path], object], type[Exception], str]] = [
    *(
        (f"{output} with {chosen}", partial(embed, output, chosen, {}), kind, name)
        for output, chosen, kind, name in OPTIONS
    ),
    *((f"{reading}", partial(embed, "out.npz", {}, reading), kind, name) for reading, kind, name in READINGS),
    ("two files", lambda text: embed_file(elmo(), Text([text, text]), "out.npz"), ConfigError, "one file"),
    (
        "rows with keys",
        lambda text: embed_file(embedder(), text, "out.hdf5", Layout(use_sentence_keys=True)),
        ConfigError,
        "use_sentence_keys",
    ),
    (
        "layers of rows",
        lambda text: embed_file(embedder(), text, "out.npz", Layout(layers="top")),
        ConfigError,
        "'top'",
    ),
    ("a name", lambda text: embed_file("en-mini", text, "out.npz"), ConfigError, "'en-mini'"),  # type: ignore[arg-type]
    (
        "a byte that is not UTF-8",
        lambda text: text.write_bytes(b"a\n\xe9\n") and embed_file(elmo(), text, OUTPUT, overwrite=True),
        TextError,
        "text.txt, line 2: not UTF-8",
    ),
    (
        "a key of 80,000 characters",
        lambda text: (
            text.write_text("a " * 40_000) and embed_file(elmo(), text, "out.h5", Layout(use_sentence_keys=True))
        ),
        TextError,
        "--use-sentence-keys",
    ),
    ("an input as output", lambda _: embed_file(elmo(), OUTPUT, OUTPUT, overwrite=True), OutputError, "both the input"),
]


def parameters(rows: list[Any]) -> Any:
    return pytest.mark.parametrize(("call", "kind", "name"), [row[1:] for row in rows], ids=[row[0] for row in rows])


@parameters(ELMO + MODULE + SENTENCE_VECTORS)
def test_arguments_without_a_meaning_are_refused(call: Callable[[], object], kind: type[Exception], name: str) -> None:
    with pytest.raises(kind, match=re.escape(name)):
        call()


@parameters(FILES)
def test_nothing_is_written_on_an_error(
    call: Callable[[Path], object],
    kind: type[Exception],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    Path(OUTPUT).write_text("earlier")
    Path("mine").mkdir()
    Path("mine/thesis").touch()
    with pytest.raises(kind, match=re.escape(name)):
        call(Path("text.txt"))
    assert sorted(path.name for path in Path().rglob("*")) == [OUTPUT, "mine", "text.txt", "thesis"]
    assert Path(OUTPUT).read_text() == "earlier"


@pytest.mark.parametrize("output", ["out.hdf5", "out.npz"])
def test_a_number_that_float16_cannot_hold_is_an_error(output: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(ConfigError, match="float16"):
        embed_file(Elmo(model_beyond_float16()), tmp_path / "text.txt", tmp_path / output, Layout(dtype="float16"))
    embed_file(Elmo(model_beyond_float16()), tmp_path / "text.txt", tmp_path / output, overwrite=True)

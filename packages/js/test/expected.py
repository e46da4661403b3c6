"""Write what the Python library computes into a directory, for the tests to compare with: ``expected.py DIRECTORY``."""

from __future__ import annotations

import json
import random
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmokit import Elmo, LanguageModel, SentenceEmbedder, open_model, save_model
from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import start_state
from elmokit.engine import compiler
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, Shape, WordFeaturesConfig, tensor_shapes
from elmokit.engine.engine import Engine
from elmokit.engine.instruction_sets import EMULATED, machine
from elmokit.engine.interface import NetworkInput
from elmokit.engine.precision import Precision
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats
from elmokit.evaluation.occurrences import build_index
from elmokit.formats.folder import included_model
from elmokit.formats.format import Storage
from elmokit.lm.surprisal import Surprisal
from elmokit.lm.word_cache import CacheSettings
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.pretrained.pooling_names import WEIGHTINGS
from elmokit.pretrained.sentence_pooling import SentenceHead, SentencePooling, Whitening
from elmokit.text.batching import number_tokens
from elmokit.text.first_lines import Wrapped
from elmokit.text.marks import FORMS, MARKS
from elmokit.text.tokenize import split_tokens, tokenize, treebank_tokens
from elmokit.text.vocabulary import SPECIALS, Vocabulary

SENTENCES = [
    ["The", "bank", "raised", "its", "rate", "."],
    ["Zebras", "xyzzyq", "na\u00efve", "\u65e5\u672c\u8a9e", "\U0001f600", "\ud800x", "constructor"],
    ["a" * 80],
    ["\u201c", "It", "\u2019s", "``", "so", "''", "`", "\u201e"],
    ["...", "!", "\u2019"],
    split_tokens("The cafe\u0301 the\u0300 Zoe\u0308 \uff34\uff28\uff25 \u1112\u1161\u11ab \ufefb \ufb15"),
    split_tokens("I do n&apos;t -LRB- know \\/ @-@ <unk> [UNK] ##ing <s> &amp; THE"),
    ["I", "don\u2019t", "do", "n\u2019t", "\u2014", "\u2026", "o\ufb03ce", "co\u00adop", "well\u2011known", "\u2013"],
    [],
    split_tokens(
        "NATO SENT US TROOPS TO THE \u1e9eRIVER OF PARIS , AND I DON\u2019T KNOW `` WHY '' CAFE\u0301S XYZZYQ ."
    ),
    split_tokens("THE BANK OF THE RIVER WAS FLOODED AND McDonald LEFT THE HOUSE ."),
    split_tokens("THE BANK OF the RIVER ; NATO and US"),
    split_tokens("In the old house by the river , nobody had lived for twenty years , and its windows were broken ."),
    ["THE", "BANK", "RAISED", "ITS", "\u00dcBER-RATE", "5", "."],
]
RAW = [
    'He said, "It\'s 5.5% (can\'t), isn\'t it?" -- "No."',
    "I'm gonna go; gimme $3.88, cannot wait... 'Tis the dogs' bowl, d'ye see?",
    "\u201cCurly\u201d quotes\u2014and dashes: at 10:30, e.g. here.\n",
    "Good muffins cost $3.88 in New York.  Please buy me two of them.",
    "``a'' ''b`` [c] {d} <e> & #f @g *h* 'twas wanna  lemme gotta more'n 'll 'S ",
    "I don\u2019t know what they\u2019re doing; the dogs\u2019 bowls. \u2018Hello,\u2019 he said\u2026",
    "O\u2019Brien\u2019s 5\u203210\u2033, do\u00ad n\u02bct, CAN\u00b4T, John \u2019s.",
    "\u2019Twas 6\u20192\u201d. \ufeff\u200b",
    "",
    " \u3000\x85 ",
]
PARTS = ["a", "It's", "n't", "'", "''", '"', "``", ".", "...", ",", ":", "5", "x.", "(", ")", " ", " ", "can",
         "\n", "\u2019", "\u00bb", "-", "--", "?", "U.S.", "wanna", "'t", "is", "K", "\u0663", "not",
         "GONNA", "g\u0131mme", "\u0345", "\u2019", "\u2019s", "\u2018", "\u02bc", "\u2033", "\u2026",
         "\u200b", "\u203a", "\u201a", "n", "e\u0301", "\uff34"]  # fmt: skip
DOCUMENTS = [
    [SENTENCES[0], SENTENCES[-1], [], SENTENCES[1]],
    [SENTENCES[-1]],
    [],
    [[f"{word}{number}" for word in SENTENCES[-1]] for number in range(120)],  # more than a batch
]
CACHED_TEXTS = ["Zbigniew met Ana. Zbigniew (who knew Ana) left. Ana's house is near.", "The end."]
STIMULI = [
    "The trial lasted (about) three weeks. The judge didn't ask \u201cMr. Smith\u201d.",
    "So\u00ad far.--Yes! \u200b \n\u2019Twas 5.5%\u3000ok.",
    "The cafe\u0301, I don\u2019t know. \uff34\uff28\uff25 bank",
    "The old house stood by the river, and for\r\ntwenty years nobody had lived in it. \u2018The\r\n"
    "dogs\u2019\r\nhome\u2019, "
    "people said.\r\n\r\nThen the bank sold it; its windows were\r\nbroken.\r\n",
    "",
]
N_RANDOM = 2000


def main(folder: Path) -> None:
    """Write ``expected.json``, and a random model."""
    included = {precision: computed(precision) for precision in ("float32", "int8")}
    expected = {
        "model": str(included_model()),
        "sentences": SENTENCES,
        "included": included,
        "bits": bits(),
        "random": random_model(folder / "random"),
        "full": random_model(folder / "full", SoftmaxConfig("full")),
        "tied": random_model(folder / "tied", SoftmaxConfig("tied")),
        "inner": random_model(folder / "inner", SoftmaxConfig("tied", inner_dim=7)),
        "integers": random_model(folder / "integers", SoftmaxConfig("tied"), "int8"),
        "poolings": poolings(folder),
        "documents": documents(),
        "tokens": tokens(),
        "texts": texts(),
        "reads": reads(),
        "capitals": capitals(),
        "neighbors": neighbors(folder / "index"),
    }
    (folder / "expected.json").write_text(json.dumps(expected), encoding="ascii")


def computed(precision: Precision) -> dict[str, Any]:
    """Compute everything about the sentences with the included model."""
    elmo, lm = Elmo.from_pretrained(precision=precision), LanguageModel.from_pretrained(precision=precision)
    (sentence, *_) = SENTENCES
    scored = lm.surprisal(SENTENCES)
    return {
        "layers": [array.ravel().tolist() for array in elmo.embed(SENTENCES)],
        "nats": [np.nan_to_num(one.nats, nan=-1).tolist() for one in scored],
        "is_unknown": [one.is_unknown.tolist() for one in scored],
        "total_nats": [one.total_nats for one in scored],
        "substitutes": [
            [direction, special, [word._asdict() for word in found]]
            for direction in ("forward", "backward", "both")
            for special in (False, True)
            if (found := lm.substitutes(sentence, 1, direction, 6, special_words=special))
        ],
        "sentence_vectors": SentenceEmbedder(elmo).embed(SENTENCES).tolist(),
        "trained_vectors": SentenceEmbedder.by_name(elmo, "trained").embed(SENTENCES).tolist(),
    }


def bits() -> dict[str, list[list[int]]] | None:
    """Compute the vectors by the same C functions for this processor, with products of integers in plain C.

    Nothing is rounded differently there, if the compiler does not combine multiplications and additions: without a
    flag, it does not for x86. None where that is not to be had.
    """
    if machine() != "x86_64" or compiler.load_library() is None:
        return None
    library, model = compiler.build("emulated", EMULATED["emulated"]), open_model()
    batch = number_tokens(SENTENCES, model.read.in_case)
    found = {}
    precisions: Sequence[Precision] = ("float32", "int8")
    for precision in precisions:
        engine = Engine(model.config, model.arrays, precision, library)
        vectors = engine.token_vectors(model.encode(batch.words))
        inputs = NetworkInput(vectors, batch.index, batch.lengths, start_state(Computer(model)))
        layers, _ = engine.layers(inputs, [0, 1, 2], n_edges=1)
        found[precision] = [array.ravel().view(np.uint32).tolist() for array in layers]
    return found


def random_model(folder: Path, softmax: SoftmaxConfig | None = None, storage: Storage = "float16") -> dict[str, Any]:
    """Save a model unlike the included one, and compute with it: odd sizes do not fill the vectors of C.

    One whose softmax is tied has a word table next to the characters.
    """
    vocabulary = Vocabulary([*SPECIALS, *dict.fromkeys(SENTENCES[0])])
    is_tied = softmax is not None and softmax.kind == "tied"
    cnn = CharCNNConfig(((1, 5), (3, 6)), char_dim=3, n_highway=2, activation="tanh", max_chars=11)
    config = BiLMConfig(
        cnn, word_features=WordFeaturesConfig(len(vocabulary), 11) if is_tied else None, projection_dim=11,
        hidden_dim=11, n_layers=3, cell_clip=None, projection_clip=None, skip_connections=False, bidirectional=False,
    )  # fmt: skip
    generator = np.random.default_rng(0)

    def draw(shapes: Mapping[str, Shape]) -> dict[str, Floats]:
        return {name: generator.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}

    arrays, own = draw(tensor_shapes(config)), None
    if softmax is not None:
        tensors = draw(softmax.tensor_shapes(len(vocabulary), config.projection_dim))
        table = (arrays, config.word_table) if config.word_table else None
        own = WordSoftmax(softmax, tensors, len(vocabulary), table)
    model = PretrainedBiLM(
        Weights(config, arrays), "elmokit", softmax=own, vocabulary=vocabulary if own else None,
        exact_marks=not is_tied,
    )  # fmt: skip
    if is_tied:
        head = draw({"mean": (22,), "projection": (22, 5), "word_weights": (len(vocabulary),)})  # reads the table, too
        model = model.replace(
            sentence_head=SentenceHead(SentencePooling(), **head | {"word_weights": np.exp(head["word_weights"])})
        )
    save_model(model, folder, storage=storage)
    elmo = Elmo.from_pretrained(folder)
    return {
        "model": str(folder),
        "layers": [array.ravel().tolist() for array in elmo.embed(SENTENCES)],
        "trained_vectors": is_tied and SentenceEmbedder.by_name(elmo, "trained").embed(SENTENCES).tolist(),
        "total_nats": own and [one.total_nats for one in LanguageModel.from_pretrained(folder).surprisal(SENTENCES)],
    }


def poolings(folder: Path) -> list[dict[str, Any]]:
    """Save a model with a whitening for each weighting of sentence vectors; and models without one, for the default."""
    saved = []
    for source, weightings in (("tied", [*WEIGHTINGS, None]), ("random", [None])):
        for weighting in weightings:
            model = open_model(folder / source)
            if weighting is not None:
                mean, projection = np.full(11, 0.1, np.float32), np.eye(11, 5, dtype=np.float32)
                model = model.replace(whitening=Whitening(SentencePooling(weighting, 1, 0.01), mean, projection))
            path = folder / f"{source}-{weighting}"
            save_model(model, path)
            vectors = SentenceEmbedder.from_pretrained(path).embed(SENTENCES)
            saved.append({"model": str(path), "weighting": weighting, "vectors": vectors.tolist()})
    return saved


def documents() -> dict[str, Any]:
    """Read documents, and the words of raw texts with their places."""
    elmo, lm = (kind.from_pretrained(precision="float32") for kind in (Elmo, LanguageModel))
    return {
        "documents": DOCUMENTS,
        "layers": [[array.ravel().tolist() for array in one] for one in elmo.embed_documents(DOCUMENTS, layers=[2])],
        "total_nats": [[sentence.total_nats for sentence in one] for one in lm.surprisal_documents(DOCUMENTS)],
        "substitutes": [
            word.word for word in lm.substitutes(SENTENCES[-1], 3, n=6, before=[SENTENCES[0], SENTENCES[1]])
        ],
        "cached": cached_documents(lm),
        "texts": STIMULI,
        "tokens": [[[one._asdict() for one in own] for own in tokenize(text, offsets=True)] for text in STIMULI],
        "words": {
            name: [row._asdict() for row in lm.word_surprisal(STIMULI, documents=name == "document")]
            for name in ("alone", "document")
        },
    }


def cached_documents(lm: LanguageModel) -> dict[str, Any]:
    """Read a document whose own words are expected again, unknown ones included."""
    settings = CacheSettings(theta=12.0, size=40)
    document = [SENTENCES[1], SENTENCES[0], SENTENCES[6], SENTENCES[1][::-1], *[SENTENCES[-2]] * 3]
    scored = {
        name: lm.surprisal_documents([document], cache=cache)[0]
        for name, cache in (("default", True), ("own", settings))
    }
    words = lm.word_surprisal(CACHED_TEXTS, documents=True, cache=True)
    return {
        "document": document,
        "settings": {"theta": settings.theta, "size": settings.size},
        "nats": {name: [np.nan_to_num(one.nats, nan=-1).tolist() for one in found] for name, found in scored.items()},
        "spelling_nats": {name: [_spelling(one) for one in found] for name, found in scored.items()},
        "alone": [_spelling(one) for one in lm.surprisal(document)],
        "by_vocabulary": [_spelling(one) for one in LanguageModel(lm.model, spelling="vocabulary").surprisal(document)],
        "substitutes": {
            direction: [
                word._asdict() for word in lm.substitutes(document[3], 5, direction, 8, before=document[:3], cache=True)
            ]
            for direction in ("forward", "backward", "both")
        },
        "texts": CACHED_TEXTS,
        "words": [[row.forward_nats, row.backward_nats, row.spelling_nats] for row in words],
    }


def _spelling(sentence: Surprisal) -> list[float]:
    assert sentence.spelling_nats is not None
    return list(sentence.spelling_nats.tolist())


def tokens() -> list[tuple[str, list[str]]]:
    """Split sentences into tokens: those above, and random ones of parts on which the rules act."""
    chosen = random.Random(0)
    made = ["".join(chosen.choices(PARTS, k=chosen.randrange(1, 12))) for _ in range(N_RANDOM)]
    split = treebank_tokens
    return [(text, split(text)) for text in [*RAW, *made]]


def texts() -> list[tuple[str, Wrapped, list[list[str]]]]:
    """Split texts into sentences and tokens: random ones of parts on which the rules act, and wrapped ones."""
    chosen = random.Random(0)
    parts = [*PARTS, ". The", "! he", "Mr. ", " A. ", " 5. ", ". . .", "etc. ", '." ', "!' "]
    made = ["".join(chosen.choices(parts, k=chosen.randrange(1, 16))) for _ in range(N_RANDOM)]
    asked: list[tuple[str, Wrapped]] = [(text, "auto") for text in made]
    asked += [(wrapped_text(chosen), chosen.choice(["auto", "auto", "yes", "no"])) for _ in range(400)]
    return [(text, wrapped, tokenize(text, wrapped=wrapped)) for text, wrapped in asked]


def wrapped_text(chosen: random.Random) -> str:
    """Make a text of a few paragraphs whose lines are wrapped, or not, or end with their sentences."""
    kinds = [
        "The dogs' owner said 'no' to Mr. Smith, and left.",
        "it rained",
        "He (the judge) slept!",
        "So \u2018ok\u2019\u2026",
        "a b c d e f",
    ]
    paragraphs = [" ".join(chosen.choices(kinds, k=chosen.randrange(1, 12))) for _ in range(chosen.randrange(1, 4))]
    end, width = chosen.choice(["\n", "\r\n", "\r"]), chosen.randrange(20, 80)
    if chosen.random() < 0.2:
        return end.join(paragraphs)
    return (end * 2).join(end.join(textwrap.wrap(paragraph, width)) for paragraph in paragraphs)


def reads() -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Read tokens with each typographic mark, by vocabularies that know some of them or none."""
    made = [token for mark in map(chr, [*MARKS, *FORMS]) for token in (mark, f"n{mark}t", f"\U0001f600{mark}x")]
    accents = [f"caf{e}{mark}s" for e in ("e\u0301", "\xe9", "\uff45\u0301") for mark in ("", "\u2019")]
    made += [*accents, "\u1112\u1161\u11ab", "\ud55c", "\ufb15", "\u0301", "a\u0327\u0301", "\ud800\u0301"]
    made += [
        "&apos;",
        "n&apos;t",
        "&#91;x&amp;amp;",
        "-LRB-",
        "-rsb-",
        "\\/",
        "1\\/2",
        "/.",
        "``",
        "''",
        "@-@",
        "@\u2013@",
        "@,@",
    ]
    made += [
        "<unk>",
        "<UNK>",
        "[UNK]",
        "@@UNKNOWN@@",
        "<s>",
        "</s>",
        "<eos>",
        "[CLS]",
        "<|endoftext|>",
        "<pad>",
        "##ing",
        "walk@@",
    ]
    made += ["\u2581the", "@", "&", "&foo;", "a@b", "#1", "##", "/", "\\", "-LR-", "<S>", "\xe9@@", "##\u0301"]
    lists = (
        ["-LRB-", "the"], ["&apos;s", "<unk>"], ["@-@", "``"], ["##ing", "walk@@", "<s>"],
        [], ["n't", "\u2013", "-"], ["n't", "\u2019", "\u2013", "n\u2014t"], ["\u201c"], ["caf\xe9's"],
        ["cafe\u0301s"], ["\uff45", "\ud55c"], ["\ufb50", "caf\xe9s", "cafe\u0301\u2019s"],
    )  # fmt: skip
    vocabularies = [Vocabulary([*SPECIALS, *words]) for words in lists]
    return [(one.words, [(token, one.read(token)) for token in made]) for one in vocabularies]


def capitals() -> list[tuple[list[str], list[tuple[list[str], list[str]]]]]:
    """Read random sentences of words in several cases, with letters whose cases are special."""
    chosen = random.Random(0)
    words = ["the", "The", "US", "us", "Paris", "nato", "x5"]
    words += ["\u03c3\u03bf\u03c2", "i\u0307x", "\u01c5a", "stra\xdfe", "\U00010428b"]
    parts = [*map(str.upper, words * 2), "Mc", "5", ".", "\u24b6", "\u0130X", "\u01c5A", "\u1e9e", "q"]
    found = []
    for _ in range(20):
        vocabulary = Vocabulary([*SPECIALS, *chosen.sample(words, k=8)])
        made = [chosen.choices(parts, k=chosen.randrange(14)) for _ in range(100)]
        found.append((vocabulary.words, [(tokens, list(vocabulary.read.in_case(tokens))) for tokens in made]))
    return found


def neighbors(folder: Path) -> dict[str, Any]:
    """Find neighbors of a word among some sentences; two are equal."""
    elmo = Elmo.from_pretrained(precision="float32")  # in int8, a cosine may differ by some hundredths
    sentences = [*SENTENCES[:1], *SENTENCES[-1:], *SENTENCES[:2], split_tokens("A bank by the old river .")]
    index = build_index(elmo, lambda: iter(sentences), folder)
    queries = [{"among": among, "n_neighbors": n} for among in ("any", "same", "other") for n in (1, 5)]
    query = split_tokens("The old bank by the river .")
    found = [index.neighbors(elmo, query, 2, **settings).to_dict() for settings in queries]  # type: ignore[arg-type]
    return {"sentences": sentences, "query": query, "settings": queries, "found": found}


if __name__ == "__main__":
    main(Path(sys.argv[1]))

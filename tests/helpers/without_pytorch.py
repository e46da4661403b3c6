"""Everything that must work without PyTorch. Run as a program, it does all of it in a process that has none.

It prints a JSON object: for each piece of work, the traceback of its error, or null. What it computes stays in the
working directory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from elmokit.errors import MissingExtraError

Work = Callable[[], object]
WORK: dict[str, Work] = {}
"""By name. The pieces are done in this order, and use what those before them wrote."""
SENTENCES = [["The", "bank", "raised", "its", "rate", "."], [], ["They", "sat", "on", "the", "bank", "."], ["Zürich"]]
TEXT = "The cat sat on the mat .\nThe bank raised its rate .\n\nThey sat on the bank .\nA dog ran .\n"
HIDE = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.split(".")[0] == "torch" else find(name, *more)
"""
"""After this code, PyTorch cannot be found, as if it were not installed."""


def _needs_pytorch(needed_for: str) -> str:
    return str(MissingExtraError(needed_for, "torch"))


def work(function: Work) -> Work:
    """Add a function to the work."""
    WORK[function.__name__] = function
    return function


def command(*arguments: str) -> None:
    """Run ``elmokit`` in this process."""
    from elmokit.cli.main import elmokit

    elmokit.main([*map(str, arguments)], standalone_mode=False)


def refused(*arguments: str) -> str:
    """Run ``elmokit`` as the shell does, and return its error, which is one line."""
    from elmokit.cli.main import main

    printed, code = io.StringIO(), None
    sys.argv = ["elmokit", *arguments]
    with contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code
    assert (code, printed.getvalue().count("\n")) == (2, 1), printed.getvalue()
    return printed.getvalue()


@work
def token_vectors() -> None:
    from elmokit import Elmo

    elmo = Elmo.from_pretrained()
    vectors = elmo.embed(SENTENCES)
    np.savez("vectors.npz", *vectors)
    for layers, pick in (("top", -1), (0, 0), (2, 2), ([0, 2], [0, 2])):
        for found, array in zip(elmo.embed(SENTENCES, layers=layers), vectors, strict=True):
            np.testing.assert_array_equal(found, array[pick])
    for found, array in zip(elmo.embed(iter(SENTENCES), layers="average", batch_tokens=8), vectors, strict=True):
        np.testing.assert_array_equal(found, array.mean(axis=0))
    batch, state = elmo.embed_batch(SENTENCES[:2], elmo.zero_state(2))
    continued, _ = elmo.embed_batch(SENTENCES[:2], state, "top")
    stateful = Elmo.from_pretrained(start="stateful").embed(SENTENCES[:2] * 2, layers="top", batch_size=2)
    for found, array in zip(stateful, [*(array[-1] for array in batch), *continued], strict=True):
        np.testing.assert_array_equal(found, array)
    assert elmo.ids(SENTENCES).shape[:2] == (4, 8)


@work
def every_precision() -> None:
    from elmokit import Elmo

    exact = Elmo.from_pretrained(precision="float32").embed(SENTENCES[:1])[0]
    np.save("float32.npy", exact)
    for precision in ("bfloat16", "int8"):
        rounded = Elmo.from_pretrained(precision=precision).embed(SENTENCES[:1])[0]
        np.testing.assert_allclose(rounded, exact, atol=0.3)
    os.environ["ELMOKIT_BACKEND"] = "reference"
    try:
        np.testing.assert_allclose(Elmo.from_pretrained().embed(SENTENCES[:1])[0], exact, atol=1e-4)
    finally:
        del os.environ["ELMOKIT_BACKEND"]


@work
def sentence_vectors() -> None:
    from elmokit import Elmo, SentenceEmbedder

    elmo = Elmo.from_pretrained()
    for pooling in ("mean", "sif", "whitened"):
        vectors = SentenceEmbedder.by_name(elmo, pooling).embed(SENTENCES)
        assert vectors.shape[0] == len(SENTENCES)
        assert np.isfinite(vectors).all()
    text = [[*sentence, str(n)] for n in range(20) for sentence in SENTENCES]
    assert SentenceEmbedder(elmo).fit(text, n_components=3).embed(SENTENCES).shape == (4, 3)


@work
def texts_of_any_length() -> None:
    from elmokit import Elmo
    from elmokit.embedding import elmo as embedder
    from elmokit.text import batching

    elmo, text = Elmo.from_pretrained(), SENTENCES[0] * 50
    (whole,) = elmo.embed([text])
    before = batching.LONG_SENTENCE_TOKENS, embedder.CHUNK_TOKENS
    batching.LONG_SENTENCE_TOKENS, embedder.CHUNK_TOKENS = 100, 64
    try:
        np.testing.assert_array_equal(elmo.embed([text])[0], whole)
    finally:
        batching.LONG_SENTENCE_TOKENS, embedder.CHUNK_TOKENS = before


@work
def a_language_model() -> None:
    from elmokit import LanguageModel

    lm = LanguageModel.from_pretrained(precision="float32")
    np.savez("surprisal.npz", *(found.nats for found in lm.surprisal(SENTENCES)))
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    for start in ("warm", "zero", "stateful"):
        assert 1 < lm.perplexity("text.txt", start=start).mean < 1e6  # type: ignore[arg-type]
    assert lm.bilm_tf_perplexity(SENTENCES, 2).mean > 1
    words = lm.substitutes(SENTENCES[0], 1, n=5)
    Path("substitutes.json").write_text(json.dumps(words))
    good, bad = ["The", "book", "is", "old", "."], ["The", "book", "are", "old", "."]
    assert lm.minimal_pairs([(good, bad)]).nats.shape == (1, 2, 2)


@work
def elmokit_embed() -> None:
    import h5py

    from elmokit import Elmo

    expected = Elmo.from_pretrained().embed([["The", "cat", "sat", "on", "the", "mat", "."]])[0]
    command("embed", "text.txt", "out.hdf5", "--threads", "1")
    with h5py.File("out.hdf5") as file:
        np.testing.assert_array_equal(file["0"], expected)
    command("embed", "text.txt", "out.npz", "--dtype", "float16", "--top")
    with np.load("out.npz") as archive:
        assert archive["vectors"].dtype == np.float16
    command("embed", "text.txt", "stateful.hdf5", "--start", "stateful", "--batch-size", "2", "--average")
    command("embed", "text.txt", "pooled.hdf5", "--pool", "whitened")


@work
def elmokit_embed_to_tables() -> None:
    import pyarrow.parquet

    command("embed", "text.txt", "out.arrow", "--layers", "0,2")
    command("embed", "text.txt", "out.parquet", "--top", "--precision", "int8")
    assert pyarrow.parquet.read_table("out.parquet").num_rows == 5


@work
def elmokit_evaluate() -> None:
    command("evaluate", "perplexity", "text.txt", "--per-token", "tokens.tsv", "--precision", "float32")
    command("surprisal", "text.txt", "--out", "surprisal.tsv")
    assert Path("surprisal.tsv").read_bytes() == Path("tokens.tsv").read_bytes()
    command("evaluate", "perplexity", "text.txt", "--as-bilm-tf", "2", "--json")
    pair = {"sentence_good": "The cat sleeps.", "sentence_bad": "The cat sleep.", "UID": "a", "linguistics_term": "b"}
    Path("pairs.jsonl").write_text(json.dumps(pair) + "\n")
    command("evaluate", "minimal-pairs", "pairs.jsonl", "--tokenizer", "spaces")
    Path("scores.txt").write_text("cat dog 3\nbank mat 1\nrate bank 2\n")
    command("evaluate", "similarity", "scores.txt", "--tokenizer", "spaces")


@work
def elmokit_evaluate_word_senses() -> None:
    from tests.helpers.sense_files import TEST, TRAIN, write_set

    write_set(Path.cwd(), "train", TRAIN)
    write_set(Path.cwd(), "test", TEST)
    command("evaluate", "wsd", "train.data.xml", "test.data.xml")


@work
def elmokit_neighbors() -> None:
    command("neighbors", "index", "text.txt", "index")
    command("neighbors", "find", "index", "bank", "The bank is old .")


@work
def elmokit_models_and_info() -> None:
    command("models")
    command("info")
    command("info", "--json")


@work
def elmokit_convert() -> None:
    from elmokit import PRESETS, Elmo, open_model, save_model
    from elmokit.engine.config import tensor_shapes
    from elmokit.formats.model import PretrainedBiLM, Weights

    command("convert", "en-mini", "copy", "--storage", "float16", "--precision", "int8", "--whiten", "text.txt")
    draw = np.random.default_rng(0)
    arrays = {name: draw.normal(0, 0.1, shape) for name, shape in tensor_shapes(PRESETS["tiny"]).items()}
    save_model(PretrainedBiLM(Weights(PRESETS["tiny"], arrays), "elmokit"), "characters")
    command("convert", "characters", "copy.hdf5", "--calibrate", "text.txt")
    save_model(open_model("copy.hdf5"), "again")
    (first,), (again,) = (Elmo(open_model(path)).embed(SENTENCES[:1]) for path in ("copy.hdf5", "again"))
    np.testing.assert_array_equal(first, again)


@work
def elmokit_bench() -> None:
    from elmokit.evaluation import speed

    speed.PRODUCT_SHAPES, speed.MEASURE_SECONDS, speed.N_ROWS = ((4, 20, 40),), 0.001, (1,)
    speed.measure_speed.__kwdefaults__["seconds"] = 0.001
    command("bench", "--json", "--threads", "1")


@work
def elmokit_serve() -> None:
    from tests.helpers.server_process import serving

    command("convert", "en-mini", "tiny")
    with serving(Path("tiny"), "--workers", "2", before=HIDE) as server:
        answer = server.post("/v1/embeddings", {"input": ["The cat sat ."], "model": "tiny"}).json()
        assert len(answer["data"][0]["embedding"]) > 100
        assert server.post("/v1/surprisal", {"input": "The cat sat ."}).json()["data"]
        server.stop()


@work
def scikit_learn() -> None:
    from elmokit.integrations.sklearn import ElmoVectorizer

    vectors = ElmoVectorizer(tokenizer=str.split).transform(["The cat sat .", "A dog ran ."])
    assert vectors.shape[0] == 2


@work
def layers_in_spacy() -> None:
    import spacy

    from elmokit.errors import MissingExtraError
    from elmokit.integrations.spacy import elmo_tok2vec, make_elmo_layers

    nlp = spacy.blank("en")
    component = make_elmo_layers(nlp, "elmo_layers", None, "warm")
    assert component(nlp("The cat sat."))._.elmo_layers.shape == (3, 4, 384)
    try:
        elmo_tok2vec()
    except MissingExtraError as error:
        assert str(error) == str(MissingExtraError("elmokit.Tok2Vec.v1", "torch"))  # noqa: PT017
    else:
        raise AssertionError


@work
def batches_of_a_table() -> None:
    from elmokit.integrations.batch import Embed

    found = Embed(pooling="sif")({"text": np.array(["The cat sat .", "A dog ran ."], object)})
    assert len(found["vector"]) == 2


@work
def what_needs_pytorch_says_how_to_install_it() -> None:
    import elmokit
    from elmokit.errors import MissingExtraError

    for name in ("train", "ElmoModule", "BiLM"):
        try:
            getattr(elmokit, name)
        except MissingExtraError as error:
            assert str(error) == _needs_pytorch(f"elmokit.{name}")  # noqa: PT017
        else:
            raise AssertionError(name)
    Path("tagged.conllu").write_text("1\tcat\t_\tNOUN\t_\t_\t_\t_\t_\t_\n\n")
    for arguments, needed_for in (
        (("train", "text.txt", "--vocabulary", "vocab.txt", "--run", "run"), "elmokit train"),
        (("embed", "text.txt", "gpu.hdf5", "--device", "cuda"), "The device 'cuda'"),
        (("evaluate", "pos", "tagged.conllu", "tagged.conllu"), "The part-of-speech probe"),
    ):
        assert refused(*arguments) == f"elmokit: {_needs_pytorch(needed_for)}\n"
    assert not Path("gpu.hdf5.partial").exists()


def main() -> None:
    """Do all the work, and print what failed."""
    exec(HIDE, {})
    failures = {}
    printed = os.dup(1)
    os.dup2(2, 1)  # what the commands print is not part of the result
    for name, function in WORK.items():
        try:
            function()
        except ModuleNotFoundError as error:
            # Other libraries are optional, too.
            failures[name] = traceback.format_exc() if error.name == "torch" else f"missing {error.name}"
        except BaseException:
            failures[name] = traceback.format_exc()
        else:
            failures[name] = None
    os.write(printed, json.dumps(failures).encode())


if __name__ == "__main__":
    main()

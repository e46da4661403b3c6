"""What works where PyTorch is not installed: nearly all that does not learn, with the same results.

Run as a program, this file does all of it in a process that finds no PyTorch, and prints what failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, SentenceEmbedder, open_model, save_model
from elmokit.errors import MissingExtraError
from tests.helpers.paths import ROOT

SENTENCES = [["The", "bank", "raised", "its", "rate", "."], [], ["They", "sat", "on", "the", "bank", "."], ["Zürich"]]
TEXT = "The cat sat on the mat .\nThe bank raised its rate .\n\nThey sat on the bank .\nA dog ran .\n"
MODELS = Path("models.json")
"""The paths of models of every format, which PyTorch writes: in an environment without it there are none."""
HIDE = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.split(".")[0] == "torch" else find(name, *more)
"""
"""After this code, PyTorch cannot be found, as if it were not installed."""
COMMANDS = (
    "embed text.txt out.hdf5 --threads 1",
    "embed text.txt out.npz --dtype float16 --top --precision int8",
    "embed text.txt stateful.hdf5 --start stateful --batch-size 2 --average",
    "embed text.txt pooled.parquet --pool whitened",
    "surprisal text.txt --out surprisal.tsv",
    "evaluate perplexity text.txt --as-bilm-tf 2 --json",
    "evaluate minimal-pairs pairs.jsonl --tokenizer spaces",
    "evaluate similarity scores.txt --tokenizer spaces",
    "evaluate wsd train.data.xml test.data.xml",
    "neighbors index text.txt index",
    "neighbors find index bank 'The bank is old .'",
    "info",
    "convert en-mini copy --storage float16 --precision int8 --whiten text.txt",
)
REFUSED = {
    "train text.txt --vocabulary vocab.txt --run run": "elmokit train",
    "embed text.txt gpu.hdf5 --device cuda": "The device 'cuda'",
    "evaluate pos tagged.conllu tagged.conllu": "The part-of-speech probe",
}
"""Commands, and what their errors say that PyTorch is needed for."""


def vectors() -> None:
    elmo = Elmo.from_pretrained()
    np.savez("vectors.npz", *elmo.embed(SENTENCES))
    np.save("float32.npy", Elmo.from_pretrained(precision="float32").embed(SENTENCES[:1])[0])
    assert SentenceEmbedder(elmo).fit(SENTENCES * 20, n_components=2).embed(SENTENCES).shape == (4, 2)


def predictions() -> None:
    lm = LanguageModel.from_pretrained(precision="float32")
    np.savez("surprisal.npz", *(found.nats for found in lm.surprisal(SENTENCES)))
    Path("substitutes.json").write_text(json.dumps(lm.substitutes(SENTENCES[0], 1, n=5)))


def write_inputs() -> None:
    from tests.helpers.sense_files import TEST, TRAIN, write_set

    Path("text.txt").write_text(TEXT, encoding="utf-8")
    pair = {"sentence_good": "The cat sleeps.", "sentence_bad": "The cat sleep.", "UID": "a", "linguistics_term": "b"}
    Path("pairs.jsonl").write_text(json.dumps(pair) + "\n")
    Path("scores.txt").write_text("cat dog 3\nbank mat 1\nrate bank 2\n")
    Path("tagged.conllu").write_text("1\tcat\t_\tNOUN\t_\t_\t_\t_\t_\t_\n\n")
    write_set(Path.cwd(), "train", TRAIN)
    write_set(Path.cwd(), "test", TEST)


def command(line: str) -> None:
    """Run ``elmokit`` in this process."""
    from elmokit.cli.main import elmokit

    elmokit.main(shlex.split(line), standalone_mode=False)


def refused(line: str) -> None:
    """Run ``elmokit`` as the shell does, and check its error."""
    from elmokit.cli.main import main

    sys.argv = ["elmokit", *shlex.split(line)]
    with contextlib.redirect_stderr(io.StringIO()) as printed, pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, printed.getvalue()) == (2, f"elmokit: {MissingExtraError(REFUSED[line], 'torch')}\n")


def serve() -> None:
    from tests.helpers.server_process import serving

    Path("copy").rename("tiny")
    with serving(Path("tiny"), before=HIDE) as server:
        answer = server.post("/v1/embeddings", {"input": ["The cat sat ."], "model": "tiny"}).json()
        assert answer["data"][0]["embedding"]
        server.stop()


def layers_in_spacy() -> None:
    import spacy

    from elmokit.integrations.spacy import make_elmo_layers

    nlp = spacy.blank("en")
    component = make_elmo_layers(nlp, "elmo_layers", None, "warm")
    assert component(nlp("The cat sat."))._.elmo_layers.shape == (3, 4, 384)


def models_of_every_format() -> None:
    import h5py

    from elmokit.embedding.computer import Computer
    from elmokit.pretrained.model import describe

    paths = json.loads(MODELS.read_text())
    with pytest.raises(MissingExtraError, match=r"token_embedder\.pkl.*\[torch\]"):
        open_model(paths.pop("many-langs"))
    for kind, path in paths.items():
        model = open_model(path)
        describe(model)
        save_model(model, f"saved-{kind}")
    with h5py.File("table.hdf5", "w") as file:
        file["embedding"] = np.ones((1, open_model(paths["hdf5"]).config.projection_dim), np.float32)
    Path("table_vocab.txt").write_text("cat\n")
    table = open_model(paths["hdf5"], token_embeddings="table.hdf5")
    assert (Computer(table).word_vectors(["dog", "cat"])[1] == 1).all()


def names_of_the_package() -> None:
    import elmokit

    for name in ("train", "ElmoModule", "BiLM"):
        with pytest.raises(MissingExtraError) as error:
            getattr(elmokit, name)
        assert str(error.value) == str(MissingExtraError(f"elmokit.{name}", "torch"))


WORK: dict[str, Callable[[], object]] = {
    "vectors": vectors,
    "predictions": predictions,
    **{f"elmokit {line}": partial(command, line) for line in COMMANDS},
    "elmokit serve": serve,
    "layers in spaCy": layers_in_spacy,
    "models of every format": models_of_every_format,
    "names of the package": names_of_the_package,
    **{f"elmokit {line}": partial(refused, line) for line in REFUSED},
}
"""It is done in this order: later pieces use what earlier ones wrote."""


def main() -> None:
    """Do all the work, and print a JSON object: for each piece, the traceback of its error, or null."""
    exec(HIDE, {})
    failures: dict[str, str | None] = {}
    printed = os.dup(1)
    os.dup2(2, 1)  # what the commands print is not part of the result
    write_inputs()
    work = dict(WORK)
    if not MODELS.exists():
        del work["models of every format"]
    for name, function in work.items():
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


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    from tests.helpers.every_format import FORMATS, write_model  # PyTorch writes these models

    folder = tmp_path_factory.mktemp("work")
    models = {kind: str(write_model(kind, folder / "models" / kind)) for kind in FORMATS}
    models["converted"] = str(folder / "models" / "converted")
    save_model(open_model(models["many-langs"]), models["converted"])
    (folder / MODELS).write_text(json.dumps(models))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", __name__]
    ran = subprocess.run(program, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found | {"folder": str(folder)}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_it_works_without_pytorch(failures: dict[str, str | None], name: str) -> None:
    failure = failures[name]
    if failure is not None and failure.startswith("missing "):
        pytest.skip(failure)
    assert failure is None, failure


@pytest.mark.slow
def test_vectors_and_predictions_are_those_of_the_pytorch_modules(failures: dict[str, str | None]) -> None:
    from elmokit.embedding.elmo_module import ElmoModule  # not above, because this file is also run without PyTorch

    folder, model = Path(str(failures["folder"])), open_model()
    with np.load(folder / "vectors.npz") as archive:
        for name, expected in zip(archive, Elmo(model).embed(SENTENCES, layers="all"), strict=True):
            np.testing.assert_array_equal(archive[name], expected)
    elmo = ElmoModule(model.replace(precision="float32"))
    (expected,) = elmo.embed(SENTENCES[:1], layers="all")
    np.testing.assert_allclose(np.load(folder / "float32.npy"), expected, atol=1e-5)
    lm = LanguageModel(model.replace(precision="float32"))
    lm.computer.use_module()
    with np.load(folder / "surprisal.npz") as archive:
        for name, expected_nats in zip(archive, lm.surprisal(SENTENCES), strict=True):
            np.testing.assert_allclose(archive[name], expected_nats.nats, atol=1e-5)
    found = json.loads((folder / "substitutes.json").read_text())
    for (word, *numbers), substitute in zip(found, lm.substitutes(SENTENCES[0], 1, n=5), strict=True):
        assert word == substitute.word
        np.testing.assert_allclose(numbers, substitute[1:], rtol=1e-5)


@pytest.mark.slow
def test_models_saved_without_pytorch_have_the_same_numbers(failures: dict[str, str | None]) -> None:
    from tests.helpers.weights import same_numbers

    folder = Path(str(failures["folder"]))
    for kind, path in json.loads((folder / "models.json").read_text()).items():
        assert kind == "many-langs" or same_numbers(open_model(folder / f"saved-{kind}"), open_model(path))


if __name__ == "__main__":
    main()

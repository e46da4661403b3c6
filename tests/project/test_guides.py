"""The guides to adding something work, and the files that they name are all that they change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.engine import compiler
from tests.helpers.paths import ROOT
from tests.project.test_docs import blocks

PAGES = ROOT / "contributing"
NEW_FILE = re.compile(r"# (elmokit/\S+)\n+")
"""The first line of a block that is a whole file."""
RUN = """
import contextlib
import io
import json
import sys
from pathlib import Path
import numpy as np
from elmokit.cli.main import main

def run(*command):
    sys.argv = ["elmokit", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()
"""
"""Run with the changed package, before each of the programs below."""
COMMAND = """
from elmokit import LanguageModel

sentence = "He sat on the ___ ."
words = LanguageModel.from_pretrained().substitutes(sentence.split(), 4, n=3)
code, out, err = run("expect", sentence, "-n", "3", "--json")
assert (code, err) == (0, ""), err
assert json.loads(out) == {word.word: word.probability for word in words}
for wrong, message in (
    (("expect", "no gap"), "'no gap' needs one gap: write ___"),
    (("expect", sentence, "--direction", "up"), "Try 'elmokit expect --help'."),
    (("expects",), "Did you mean 'expect'?"),
):
    code, out, err = run(*wrong)
    assert (code, out, err.count("\\n")) == (2, "", 1) and message in err, err
help = run("help", "expect")[1]
for part in ("--direction [forward|backward|both]", "-n, --number INTEGER", "[default: 10]", "--model", "SENTENCE"):
    assert part in help, help
"""
PRECISION = """
from elmokit import Elmo
from elmokit.engine.compiler import load_library
from elmokit.engine.softmax import Matrix
from elmokit.engine.library import choose_kernels

assert "int6" in run("embed", "--help-all")[1]
library = load_library()
generator = np.random.default_rng(0)
weight = generator.normal(size=(50, 70)).astype(np.float32)
inputs = generator.integers(-127, 128, (5, 70)).astype(np.float32)
inputs[:, 0] = 127  # inputs that are rounded keep their values
scales = np.abs(weight).max(1, keepdims=True) / 31
product = Matrix(weight, "int6", library)(inputs)
np.testing.assert_allclose(product, inputs @ (np.rint(weight / scales) * scales).T, atol=2e-3, rtol=1e-5)

sentences = [["The", "cat", "sat", "on", "the", "mat", "."], ["A", "bank", "lends", "money", "."]]
exact, rounded = (Elmo.from_pretrained(precision=precision) for precision in ("float32", "int6"))
kernels = choose_kernels(library, "int6", 1)
assert rounded.computer.network.computation().precision == kernels.lstm
for ours, theirs in zip(rounded.embed(sentences), exact.embed(sentences), strict=True):
    cosines = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)
    assert cosines.min() > 0.97, cosines
    # Six bits are used where bytes are multiplied; otherwise, more precise weights are.
    assert (cosines.mean() < 0.9995) == (kernels.lstm == "int6"), cosines
"""
TASK = """
lines = ["sea\\tthe ship sailed the ocean", "farm\\tthe cow ate the grass"] * 8
for name in ("train.tsv", "dev.tsv"):
    Path(name).write_text("\\n".join(lines) + "\\n")
Path("text.txt").write_text("the ocean and the ship\\n")
train = ("task", "train", "topics.toml", "--run", "topics", "--set", "train.epochs=4")
assert run(*train, "--set", "train.optimizer.learning_rate=0.1")[0] == 0
assert run("task", "predict", "topics", "text.txt")[1].startswith("sea\\t")
"""
WEIGHT_FORMAT = """
from elmokit import PRESETS, open_model, save_model
from elmokit.engine.architecture import tensor_shapes
from elmokit.pretrained.model import PretrainedBiLM, Weights

Path("tiny").mkdir()
draw, config = np.random.default_rng(0), PRESETS["tiny"]
arrays = {name: draw.normal(0, 0.1, shape).astype("f") for name, shape in tensor_shapes(config).items()}
arrays["token_layer.char_embedding.weight"][0] = 0  # "no token"
save_model(PretrainedBiLM(Weights(config, arrays), "elmokit"), "my-elmo")
assert not run("convert", "my-elmo", "tiny/x_weights.safetensors")[0]
assert {path.name for path in Path("tiny").iterdir()} == {"x_weights.safetensors", "x_options.json"}
ours = open_model("my-elmo")
for path in ("tiny/x_weights.safetensors", "tiny"):
    model = open_model(path)
    assert model.family == "bilm-tf-safetensors"
    assert set(model.arrays) == set(ours.arrays)
    assert all(np.array_equal(model.arrays[name], ours.arrays[name]) for name in ours.arrays)
assert run("convert", "my-elmo", "y_weights.safetensors", "--storage", "int8")[0] == 2
Path("tiny/x_options.json").unlink()
assert "x_options.json" in run("info", "--model", "tiny")[2]
"""
INTEGRATION = """
import pickle
import tomllib
from runpy import run_path
from nltk.tag.util import untag
from elmokit import open_model
from elmokit.errors import ConfigError, MissingExtraError
from elmokit.integrations.nltk import ElmoTagger

training = [
    [("The", "DET"), ("bank", "NOUN"), ("raised", "VERB"), ("its", "DET"), ("rate", "NOUN")],
    [("A", "DET"), ("man", "NOUN"), ("plays", "VERB"), ("the", "DET"), ("guitar", "NOUN")],
]
tagger = ElmoTagger(training, layer=2)
sentence = ["The", "woman", "sold", "a", "house"]
tagged = tagger.tag(sentence)
assert untag(tagged) == sentence
assert tagger.accuracy(training) > 0.9
assert pickle.loads(pickle.dumps(tagger)).tag(sentence) == tagged
assert ElmoTagger(training, open_model("en-mini"), layer=2).tag(sentence) == tagged
try:
    ElmoTagger(training, None, layer=9)
except ConfigError as error:
    assert "layers 0 to 2" in str(error), error
else:
    raise AssertionError("An error was expected.")
assert "nltk" in tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
assert run_path("tests/helpers/hosts.py")["MODULES"]["nltk"] == ["nltk"]

del sys.modules["elmokit.integrations.nltk"]
sys.modules |= dict.fromkeys([name for name in sys.modules if name.startswith("nltk")])
try:
    import elmokit.integrations.nltk
except MissingExtraError as error:
    assert "[nltk]'" in str(error)
else:
    raise AssertionError("An error was expected.")
"""
OUTPUT_FORMAT = """
import re
from elmokit import Elmo, Layout, SentenceEmbedder, embed_file
from elmokit.embedding.outputs.output_format import read_about
from elmokit.storage import workspace

def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()[1:]]

elmo = Elmo.from_pretrained()
sentences = [["The", "cat", "sat", "."], [], ["A", "bank", "lends", "money", "."]] * 20
Path("text.txt").write_text("".join(" ".join(sentence) + "\\n" for sentence in sentences))
reports = []
embed_file(elmo, "text.txt", "whole.jsonl", Layout(batch_tokens=24), report=reports.append)
for number, (row, expected) in enumerate(zip(read("whole.jsonl"), elmo.embed(sentences), strict=True)):
    assert (row["id"], row["tokens"]) == (number, sentences[number])
    np.testing.assert_allclose(np.reshape(row["vectors"], expected.shape), expected, atol=1e-5)
assert read_about("whole.jsonl")["layers"] == "all"
megabytes = float(re.search(r"will take (.+) MB", reports[0])[1])
assert abs(megabytes * 1e6 / Path("whole.jsonl").stat().st_size - 1) < 0.1, reports

workspace.COMMIT_SECONDS = 0.0

class Stopped(BaseException): ...

def stop(stage, done, total):
    if done > 60:
        raise Stopped

try:
    embed_file(elmo, "text.txt", "resumed.jsonl", Layout(batch_tokens=24), progress=stop)
    raise AssertionError("It was not stopped.")
except Stopped:
    assert Path("resumed.jsonl.partial").is_dir()
assert embed_file(elmo, "text.txt", "resumed.jsonl", Layout(batch_tokens=24)).n_resumed_tokens
assert Path("resumed.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()

embedder = SentenceEmbedder(elmo)
embed_file(embedder, "text.txt", "pooled.jsonl", Layout(forget_sentences=True))
for row, expected in zip(read("pooled.jsonl"), embedder.embed(sentences), strict=True):
    assert list(row) == ["id", "vectors"]
    np.testing.assert_allclose(row["vectors"], expected[None, None], atol=1e-5)
assert ".npz or .jsonl" in run("embed", "text.txt", "vectors.csv")[2]
"""
GUIDES = {
    "add-a-command": (2, COMMAND),
    "add-a-precision": (3, PRECISION),
    "add-a-task": (2, TASK),
    "add-a-weight-format": (2, WEIGHT_FORMAT),
    "add-an-integration": (4, INTEGRATION),
    "add-an-output-format": (2, OUTPUT_FORMAT),
}
"""How many files each guide adds or changes, and a program that uses what it adds."""


def follow(page: Path, folder: Path) -> set[str]:
    """Copy the package into a folder, change it as the page says, and return the files that this touches."""
    shutil.copytree(ROOT / "elmokit", folder / "elmokit", ignore=shutil.ignore_patterns("libraries"))
    touched = {_apply(change, folder) for change in blocks(page, "diff")}
    for code in blocks(page, "python"):
        if head := NEW_FILE.match(code):
            file = folder / head[1]
            assert not file.exists()
            file.write_text(code.removeprefix(head[0]), encoding="utf-8")
            touched.add(head[1])
    return touched


def run_in(folder: Path, code: str, **variables: str) -> None:
    """Run code with the changed package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    environment.pop("ELMOKIT_BACKEND", None)
    run = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def _apply(change: str, folder: Path) -> str:
    head, _, body = change.partition("\n")
    name, lines = head.removeprefix("--- "), body.splitlines()
    old, new = ("\n".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    file = folder / name
    if not file.exists():  # outside the package
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, file)
    content = file.read_text(encoding="utf-8")
    assert content.count(old) == 1, f"{name} does not have this once: {old}"
    file.write_text(content.replace(old, new), encoding="utf-8")
    return name


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_what_the_guide_adds_works_and_changes_as_few_files_as_it_says(name: str, tmp_path: Path) -> None:
    n_files, use = GUIDES[name]
    if name == "add-a-precision" and (compiler.load_library() is None or not shutil.which("cc")):
        pytest.skip("there is no C compiler")
    if name == "add-an-integration":
        pytest.importorskip("nltk")
    assert len(follow(PAGES / f"{name}.md", tmp_path)) == n_files
    for toml in re.findall(r"```toml\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL):
        (tmp_path / "topics.toml").write_text(toml)
    variables = {"ELMOKIT_CACHE": str(tmp_path / "cache")} if name == "add-a-precision" else {}
    run_in(tmp_path, RUN + use, **variables)

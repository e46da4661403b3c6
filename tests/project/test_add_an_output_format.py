"""The guide to adding an output format works, and two files are all that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-an-output-format.md"
# Run with the changed package.
USE = """
import json
import re
import sys
from pathlib import Path
import numpy as np
from elmokit import Elmo, SentenceEmbedder, embed_file
from elmokit.cli.main import main
from elmokit.embedding.outputs.output_format import read_about
from elmokit.errors import OutputError
from elmokit.storage import workspace

def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()[1:]]

elmo = Elmo.from_pretrained()
sentences = [["The", "cat", "sat", "."], [], ["A", "bank", "lends", "money", "."]] * 20
Path("text.txt").write_text("".join(" ".join(sentence) + "\\n" for sentence in sentences))
reports = []
embed_file(elmo, "text.txt", "whole.jsonl", report=reports.append, batch_tokens=24)
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
    embed_file(elmo, "text.txt", "resumed.jsonl", progress=stop, batch_tokens=24)
    raise AssertionError("It was not stopped.")
except Stopped:
    assert Path("resumed.jsonl.partial").is_dir()
assert embed_file(elmo, "text.txt", "resumed.jsonl", batch_tokens=24).n_resumed_tokens
assert Path("resumed.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()

embedder = SentenceEmbedder(elmo)
embed_file(embedder, "text.txt", "pooled.jsonl", forget_sentences=True)
for row, expected in zip(read("pooled.jsonl"), embedder.embed(sentences), strict=True):
    assert list(row) == ["id", "vectors"]
    np.testing.assert_allclose(row["vectors"], expected[None, None], atol=1e-5)

sys.argv = "elmokit embed text.txt top.jsonl --top --dtype float16".split()
try:
    main()
except SystemExit as end:
    assert not end.code
assert np.shape(read("top.jsonl")[2]["vectors"]) == (1, 5, 384)
try:
    embed_file(elmo, "text.txt", "vectors.csv")
except OutputError as error:
    assert ".npz or .jsonl" in str(error)
else:
    raise AssertionError("An unknown extension was accepted.")
"""


@pytest.mark.slow
def test_an_output_format_is_added_in_two_files_as_the_page_says(tmp_path: Path) -> None:
    assert len(follow(PAGE, tmp_path)) == 2
    run_in(tmp_path, USE)

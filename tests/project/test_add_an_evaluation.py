"""The guide to adding an evaluation works, and two files are all that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-an-evaluation.md"
# Run with the changed package.
USE = """
import contextlib
import io
import json
import sys
from pathlib import Path
import numpy as np
from elmokit import Elmo
from elmokit.cli.main import main

def run(*command):
    sys.argv = ["elmokit", "evaluate", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()

Path("data/synonyms").mkdir(parents=True)
Path("data/synonyms/pairs.txt").write_text("big large\\nhome house\\n")
words = [["big"], ["large"], ["home"], ["house"]]
big, large, home, house = (array[1, 0] for array in Elmo.from_pretrained().embed(words))
cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in ((big, large), (home, house))]

code, out, err = run("synonyms", "data", "--json", "--keep", "kept", "--figure", "cosines.svg")
assert not code, err
facts = json.loads(out)
assert facts["n_pairs"] == 2 and [row["name"] for row in facts["rows"]] == ["0", "1", "2"]
assert abs(facts["rows"][1]["cosine"] - np.mean(cosines)) < 1e-5
assert Path("cosines.svg").is_file() and Path("kept").is_dir()
assert "layer 1" in run("synonyms", "data")[1]
assert "Compare the vectors of synonyms." in run("--help")[1]
assert "--figure" in run("synonyms", "--help")[1]

code, out, err = run("all", "--data", "data", "--report", "report.md", "--only", "synonyms", "--json")
assert not code, err
assert json.loads(out) == {"synonyms": facts}
report = Path("report.md").read_text()
for part in ("| synonyms, best layer (", "## Synonyms", "![Cosine by layer](report/synonyms.svg)", "2 pairs."):
    assert part in report, part
assert Path("report/synonyms.svg").is_file()

Path("empty").mkdir()
code, out, err = run("synonyms", "empty")
assert code == 2 and "has no synonyms/*.txt" in err, err
"""


@pytest.mark.slow
def test_an_evaluation_is_added_in_two_files_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert len(follow(PAGE, tmp_path)) == 2
    run_in(tmp_path, USE)

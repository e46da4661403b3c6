"""The guide to adding a command works, and two files are all that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-a-command.md"
# Run with the changed package.
USE = """
import contextlib
import io
import json
import sys
from elmokit import LanguageModel
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

sentence = "He sat on the ___ ."
words = LanguageModel.from_pretrained().substitutes(sentence.split(), 4, n=3)
expected = {word.word: word.probability for word in words}
code, out, err = run("expect", sentence, "-n", "3", "--json")
assert (code, err) == (0, ""), err
assert json.loads(out) == expected
code, out, err = run("expect", sentence, "--number", "3", "--quiet")
assert [line.split()[1] for line in out.splitlines()] == list(expected), out
forward = run("expect", sentence, "-n", "3", "--direction", "forward")[1]
assert forward != out

for wrong, message in (
    (("expect", "no gap"), "'no gap' needs one gap: write ___"),
    (("expect", sentence, "-n", "0"), "--number is 0; it must be a whole number of at least 1."),
    (("expect", sentence, "--direction", "up"), "Try 'elmokit expect --help'."),
    (("expects",), "Did you mean 'expect'?"),
):
    code, out, err = run(*wrong)
    assert (code, out, err.count("\\n")) == (2, "", 1) and message in err, err
assert "Show the words that a model expects in a gap." in run("--help")[1]
help = run("help", "expect")[1]
for part in ("--direction [forward|backward|both]", "-n, --number INTEGER", "[default: 10]", "--model", "SENTENCE"):
    assert part in help, help
"""


@pytest.mark.slow
def test_a_command_is_added_in_two_files_as_the_page_says(tmp_path: Path) -> None:
    assert follow(PAGE, tmp_path) == {"elmokit/cli/expect.py", "elmokit/cli/main.py"}
    run_in(tmp_path, USE)

"""The guide to adding a task works, and its module and the table are all of the package that it changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-a-task.md"
# Run with the changed package.
USE = """
import contextlib
import io
from pathlib import Path
from elmokit.cli.main import elmokit

def run(*command):
    elmokit.main(["task", *command], prog_name="elmokit", standalone_mode=False)

lines = ["sea\\tthe ship sailed the ocean", "farm\\tthe cow ate the grass"] * 8
for name in ("train.tsv", "dev.tsv"):
    Path(name).write_text("\\n".join(lines) + "\\n")
Path("text.txt").write_text("the ocean and the ship\\n")
run("train", "topics.toml", "--run", "topics", "--set", "train.epochs=6", "--set", "train.optimizer.learning_rate=0.05")
before = Path("topics/seed-0/best.safetensors").read_bytes()
run("train", "topics.toml", "--run", "topics", "--set", "train.epochs=6", "--set", "train.optimizer.learning_rate=0.05")
assert Path("topics/seed-0/best.safetensors").read_bytes() == before  # it was complete
with contextlib.redirect_stdout(io.StringIO()) as out:
    run("predict", "topics", "text.txt")
assert out.getvalue().startswith("sea\\t"), out.getvalue()
"""


@pytest.mark.slow
def test_a_task_is_added_in_two_files_as_the_page_says(tmp_path: Path) -> None:
    assert follow(PAGE, tmp_path) == {"elmokit/tasks/topics.py", "elmokit/tasks/task_table.py"}
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "topics.toml").write_text(toml)
    run_in(tmp_path, USE)

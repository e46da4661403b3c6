"""A report that several programs write together keeps the sections of the others."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.sections import replace_section


def test_a_section_is_replaced_or_added_before_the_last_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Report\n\nIntroduction.\n\n## One\n\nold \\1\n\n## What was not tried\n\nMuch.\n")
    replace_section(path, "Two", "| new |")
    replace_section(path, "One", "new \\1")
    replace_section(path, "Two", "| newer |\n")
    assert path.read_text() == (
        "# Report\n\nIntroduction.\n\n## One\n\nnew \\1\n\n## Two\n\n| newer |\n\n## What was not tried\n\nMuch.\n"
    )
    path.write_text("# Report\n")
    replace_section(path, "One", "new")
    assert path.read_text() == "# Report\n\n## One\n\nnew\n"

"""Actions that workflows take from elsewhere are pinned to commits."""

from __future__ import annotations

import re

from tests.helpers.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_every_action_is_pinned_to_a_commit_with_its_version() -> None:
    assert len(WORKFLOWS) > 4
    for path in WORKFLOWS:
        used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
        assert used, path.name
        for action, comment in used:
            if not action.startswith("./"):
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
                assert re.match(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action}"


def test_an_action_has_one_commit_in_all_workflows() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: ([\w./-]+)@(\S+)", path.read_text(encoding="utf-8")):
            pins.setdefault("/".join(action.split("/")[:2]), set()).add(commit)
    assert {action: commits for action, commits in pins.items() if len(commits) > 1} == {}

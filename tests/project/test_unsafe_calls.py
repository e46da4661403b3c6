"""Nothing in the package can run code from a file that it reads."""

from __future__ import annotations

import re

from tests.helpers.paths import ROOT

UNSAFE = re.compile(
    r"(?<![\w.])(eval|exec|compile)\("
    r"|\b(pickle|marshal|shelve|joblib|dill|cloudpickle|yaml)\.(loads?|Unpickler|open)\b"
    r"|\ballow_pickle\b|\btorch\.load\((?!.*weights_only=True)"
)


def test_nothing_in_the_package_can_run_code_from_a_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "elmokit").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNSAFE.search(line)
    ]
    assert not found


def test_calls_that_could_run_code_are_recognized() -> None:
    unsafe = ["pickle.load(f)", "eval(x)", "torch.load(f)", "np.load(f, allow_pickle=True)"]
    safe = ["model.eval()", "re.compile(x)", "np.load(f)", "torch.load(f, weights_only=True)"]
    assert [line for line in unsafe + safe if UNSAFE.search(line)] == unsafe

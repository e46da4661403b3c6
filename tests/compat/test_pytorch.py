"""Which of the old APIs need PyTorch, and what they say where it is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elmokit.errors import install_command


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_classes_that_return_arrays_do_not_import_pytorch() -> None:
    ran = run("import sys, elmokit.compat.many_langs, elmokit.compat.simple_elmo\nassert 'torch' not in sys.modules")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["allennlp", "bilm", "tfhub"])
def test_modules_that_return_tensors_say_what_to_install(name: str) -> None:
    ran = run(f"import sys\nsys.modules['torch'] = None\nimport elmokit.compat.{name}")
    *_, last = ran.stderr.strip().splitlines()
    assert last.startswith(f"elmokit.errors.MissingExtraError: elmokit.compat.{name} needs"), ran.stderr
    assert install_command("torch") in last

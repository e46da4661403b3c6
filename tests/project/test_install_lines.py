"""The commands that install elmokit work today, in documents and in error messages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from elmokit import errors
from elmokit.errors import MissingExtraError
from tests.helpers.paths import ROOT

SCRIPT = ROOT / "docs" / "make_install_lines.py"


def test_every_document_installs_from_where_the_package_is() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    assert not ran.stdout.split(), "run: python docs/make_install_lines.py --write"


@pytest.mark.parametrize(("published", "name", "other"), [(True, "elmokit", "."), (False, ".", "elmokit")])
def test_one_constant_switches_all_commands(
    monkeypatch: pytest.MonkeyPatch, published: bool, name: str, other: str
) -> None:
    monkeypatch.setattr("elmokit.version.ON_PACKAGE_INDEX", published)
    spec = importlib.util.spec_from_file_location("make_install_lines", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (
        "`pip install {0}`, pip install '{0}[plot,torch]' onnx:\npip install {0}\nextras: '{0}[spacy]' './elmokit[0]'"
    )
    assert module.install_lines(text.format(other)) == text.format(name)
    monkeypatch.setattr(errors, "ON_PACKAGE_INDEX", published)
    assert str(MissingExtraError("Reading it", "arrow")).endswith(f"it with: pip install '{name}[arrow]'")

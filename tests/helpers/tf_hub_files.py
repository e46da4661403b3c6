"""Write TF-Hub modules and their archives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from tests.helpers.tf_bundle_writer import write_bundle


def write_module(folder: Path, tensors: dict[str, Any], graph: str = "saved_model.pb") -> Path:
    """Write a module with these variables."""
    write_bundle(folder / "variables" / "variables", tensors)
    (folder / graph).write_bytes(b"\x08\x01")
    return folder


def pack_module(folder: Path, path: Path, top: str = "./") -> Path:
    """Write the archive of a module, as TF-Hub's servers send it."""
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, f"{top}{file.relative_to(folder)}", recursive=False)
    return path

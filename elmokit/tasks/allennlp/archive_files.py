"""Read the content of an AllenNLP archive, without running code: config, vocabulary and tensors.

::

    config.json              the training config
    weights.th               a pickled state dict
    vocabulary/              one list per namespace, and non_padded_namespaces.txt
    files_to_archive.json    before version 1.0: the keys of files named in the config ...
    fta/KEY                  ... and these files
    meta.json                since version 2.6: the version of AllenNLP

Archives can come from anywhere, so only these files are unpacked, and only tensors are read from the pickle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from elmokit.config import read_json
from elmokit.errors import FormatError, ModelError, ModelNotFoundError, TextError
from elmokit.formats.archives import is_archive, unpacked
from elmokit.formats.bilm_tf import read_options
from elmokit.formats.sidecars import visible_files
from elmokit.formats.torch_save import read_state_dict
from elmokit.storage.text_files import expand_user, read_lines

CONFIG, WEIGHTS, VOCABULARY = "config.json", "weights.th", "vocabulary"
UNPACKED = (CONFIG, WEIGHTS, "meta.json", "*.txt", "*options_file")
NON_PADDED = "non_padded_namespaces.txt"
PADDING_ROW = "@@PADDING@@"
NEWLINE = "@@NEWLINE@@"  # stands for a line break inside an entry
VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class TaskArchive:
    """The content of an archive."""

    source: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    namespaces: dict[str, list[str]]
    """The vocabulary: the entries of each namespace in row order. Padded namespaces start with an entry for padding."""
    options: dict[str, Any] | None
    """The options of the ELMo inside, if the archive contains them."""
    version: str | None
    """The version of AllenNLP that saved it; None for versions before 2.6, which did not record it."""

    @property
    def is_from_before_1(self) -> bool:
        """Whether AllenNLP 0.x trained the model. Its configs have an iterator, and may have a similarity function."""
        return "iterator" in self.config or "similarity_function" in table_in(self.config, "model")

    def is_before(self, *version: int) -> bool:
        """Check whether an older version saved the model. Versions 1.0 to 2.5, which are not recorded, count as new."""
        if self.version is None:
            return self.is_from_before_1
        saved_by = tuple(map(int, re.findall(r"\d+", self.version)))
        return saved_by < version


def is_task_archive(path: Path) -> bool:
    """Check whether a path is an AllenNLP archive or the directory of an unpacked one."""
    if path.is_dir():
        return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()
    return path.is_file() and is_archive(path)


def read_archive(source: str | Path) -> TaskArchive:
    """Read an archive, or the directory of an unpacked one."""
    path = expand_user(source, ModelNotFoundError)
    if path.is_dir():
        return _read_folder(path, path)
    if not path.is_file() or not is_archive(path):
        raise ModelNotFoundError(
            f"{path} is neither an AllenNLP archive (model.tar.gz) nor the directory of an unpacked one."
        )
    with unpacked(path, UNPACKED, lambda folder: (folder / CONFIG).is_file()) as archive:
        try:
            return _read_folder(archive.folder, path)
        except (ModelError, TextError) as error:
            message = str(error).replace(str(archive.folder), str(path))
            raise type(error)(message) from None


def _read_folder(folder: Path, source: Path) -> TaskArchive:
    """Read an unpacked archive. Errors call it ``source``."""
    config = read_json(folder / CONFIG, "configuration of AllenNLP's archive")
    tensors = read_state_dict(folder / WEIGHTS)
    options = None
    option_files = visible_files(folder / "fta", "*options_file")
    if option_files:
        options = read_options(option_files[0])
    namespaces = _read_vocabulary(folder / VOCABULARY)
    return TaskArchive(source, config, tensors, namespaces, options, _read_version(folder / "meta.json"))


def _read_version(path: Path) -> str | None:
    if not path.is_file():
        return None
    version = read_json(path).get("version")
    if isinstance(version, str) and VERSION.match(version):
        return version
    return None


def _read_vocabulary(folder: Path) -> dict[str, list[str]]:
    patterns = ["*labels", "*tags"]
    if (folder / NON_PADDED).is_file():
        patterns = list(read_lines(folder / NON_PADDED))
    namespaces = {}
    for file in visible_files(folder, "**/*.txt"):
        if file.name == NON_PADDED:
            continue
        name = file.relative_to(folder).as_posix().removesuffix(".txt")
        entries = [line.replace(NEWLINE, "\n") for line in read_lines(file)]
        is_padded = not any(_matches(pattern, name) for pattern in patterns)
        namespaces[name] = [PADDING_ROW, *entries] if is_padded else entries
    return namespaces


def _matches(pattern: str, namespace: str) -> bool:
    """Match as in AllenNLP, where only a star at the beginning of a pattern is special."""
    if pattern.startswith("*"):
        return namespace.endswith(pattern[1:])
    return namespace == pattern


def known_entries(archive: TaskArchive, name: str, unknown: str) -> tuple[list[str], int]:
    """Return the known entries of a padded namespace, and the row of the entry for unknown ones."""
    entries = entries_of(archive, name, unknown)
    unknown_row = entries.index(unknown)
    known = []
    for row, entry in enumerate(entries):
        if row not in (0, unknown_row):
            known.append(entry)
    return known, unknown_row


def entries_of(archive: TaskArchive, name: str, needed: str | None = None) -> list[str]:
    """Return the entries of a namespace. Raise an error if it is empty or lacks a needed entry."""
    entries = archive.namespaces.get(name, [])
    if not entries or needed not in (None, *entries):
        expected = f"namespace {name!r}"
        if needed is not None:
            expected += f" with an entry {needed}"
        raise FormatError(
            f"{archive.source}: expected a {expected} in the vocabulary, whose namespaces are: "
            f"{', '.join(archive.namespaces) or 'none'}."
        )
    return entries


def table_in(content: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a table inside a config. It is empty if it is absent or only the name of its type is given."""
    inner: Any = content
    for key in keys:
        inner = inner.get(key)
        if not isinstance(inner, dict):
            return {}
    return dict(inner)

"""Weight formats: their base class, the table of all formats, and guesses about other files.

To add a format, write a module with a subclass of ``Format`` and its instance ``FORMAT``, and list the module in
``FORMATS`` (contributing/add-a-weight-format.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from elmokit.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from elmokit.pretrained.model import PretrainedBiLM

Storage = Literal["float32", "float16", "int8"]
"""How an elmokit directory stores tensors: as floating-point numbers, or as integers with one scale per row."""


class Format(ABC):
    """A weight format: how its files are recognized, opened and, if supported, saved.

    A path is opened by the first format in ``FORMATS`` that recognizes it.
    """

    name: ClassVar[str]
    """The short name of the format, which becomes the ``family`` of its models."""
    description: ClassVar[str]
    """Describes a model in this format in error messages, with an article: "a TF-Hub module"."""
    files: ClassVar[tuple[str, ...]]
    """Patterns of its file names. Other files are neither unpacked from archives nor downloaded from the Hub."""
    extensions: ClassVar[tuple[str, ...]] = ()
    """The extensions that ``save_model`` writes in this format; empty if it can only be read."""
    reads_options: ClassVar[bool] = True
    """Whether models can have an options file; otherwise, passing one is refused."""
    is_complete: ClassVar[bool] = False
    """Whether it stores all parts of a model, in any ``Storage``, instead of only the weights, card and words."""

    @abstractmethod
    def recognizes(self, path: Path) -> bool:
        """Check whether a path is a model in this format. The path may not exist, and the model may be damaged."""

    @abstractmethod
    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        """Open a model that this format recognizes, without running code from its files.

        Args:
            path: The model.
            options: Its options file, if it is not next to the weights.
            words: Its word list, if it is not next to the weights.

        Raises:
            ModelError, ConfigError: As in :func:`elmokit.open_model`.
        """

    def options_names(self, file_name: str) -> list[str]:
        """List the possible names of a weight file's options file on a server; empty if it needs none."""
        return []

    def guess(self, folder: Path) -> str | None:
        """Describe a directory that looks like an incomplete model of this format, for an error message."""
        return None

    def check_target(self, path: Path, overwrite: bool) -> None:
        """Check, before any work is done, that ``save`` may write to a path.

        Raises:
            OutputError: It may not be written.
        """
        raise NotImplementedError

    def save(self, model: PretrainedBiLM, path: Path, storage: Storage, overwrite: bool) -> list[Path]:
        """Write a model, and return the paths that were written.

        Raises:
            OutputError: The path exists and may not be overwritten, or cannot be written; or the format cannot hold the
                model.
        """
        raise NotImplementedError


class _Formats:
    """The formats in the named modules, each imported when a loop reaches it."""

    def __init__(self, *modules: str) -> None:
        self.modules = modules

    def __iter__(self) -> Iterator[Format]:
        for module in self.modules:
            yield import_module(f"elmokit.formats.{module}").FORMAT


# The order matters if two formats recognize a path. elmokit's own comes first, so opening the included model does not
# import the others. HDF5 weights come before the checkpoint that they were exported from.
FORMATS = _Formats(
    "folder",
    "archives",
    "many_langs_weights",
    "tf_hub",
    "bilm_tf_hdf5",
    "tf_checkpoint",
)
"""All weight formats."""


def find_format(path: Path) -> Format | None:
    """Find the format of a path, or return None if no format recognizes it."""
    try:
        return next((weight_format for weight_format in FORMATS if weight_format.recognizes(path)), None)
    except OSError:  # a name that is too long, or a directory without read permission
        return None


def open_path(path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
    """Open the model at a path, in any format. Arguments and errors as in ``Format.load``."""
    if (weight_format := find_format(path)) is not None:
        if options is not None and not weight_format.reads_options:
            raise ConfigError(f"{path} is {weight_format.description}, which has no options file. Omit {options}.")
        return weight_format.load(path, options, words)
    known = ", ".join(weight_format.description for weight_format in FORMATS)
    guesses = [guess_foreign(path), *(weight_format.guess(path) for weight_format in FORMATS)]
    guess = next(filter(None, guesses), None)
    hint = f" It looks like {guess}." if guess else ""
    raise FormatError(
        f"{path} is not a model that elmokit can open ({known}; see docs/reference/model-files.md).{hint}"
    )


def model_files() -> list[str]:
    """List the file name patterns of all formats."""
    return [pattern for weight_format in FORMATS for pattern in weight_format.files]


_MAGIC_NUMBERS = (
    (b"\x1f\x8b", "a gzip file without a tar archive in it"),
    (b"\x80", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded (git lfs pull)"),
    (
        b"\x12\x01" + bytes(6),
        "MXNet parameters, such as GluonNLP's ELMo, which cannot be opened. Its models are AllenNLP's: open "
        "'small', 'medium', 'original' or 'original-5.5b' instead",
    ),
)
_WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--", b"<error")
_TRANSFORMER_ELMO = (
    "AllenNLP's transformer ELMo, which cannot be opened because it has no LSTMs. Use AllenNLP 0.9 for it, or open "
    "'original', the ELMo with LSTMs that was trained on the same text"
)


def is_web_page(start: bytes) -> bool:
    """Check whether a file starts like a web page or an object store's XML error, unlike any model format."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:9].lower().startswith(_WEB_PAGE)


def guess_foreign(path: Path) -> str | None:
    """Describe what a file or directory of another program looks like, or return None."""
    if path.is_dir():
        return _TRANSFORMER_ELMO if _is_transformer_elmo(path / "config.json") else None
    with path.open("rb") as file:
        start = file.read(512)
    if is_web_page(start):
        return "a web page: a download that failed"
    for magic, guess in _MAGIC_NUMBERS:
        if start.startswith(magic):
            return guess
    return None


def _is_transformer_elmo(config: Path) -> bool:
    """Check for the configuration of AllenNLP's transformer language model."""
    return config.is_file() and b"bidirectional_language_model_transformer" in config.read_bytes()


def guess_archive(names: list[str], folder: Path) -> str:
    """Describe what an archive looks like from its members' names and the unpacked files; empty if unknown."""
    if not any(name.endswith("weights.th") for name in names):
        return ""
    if any(map(_is_transformer_elmo, folder.rglob("config.json"))):
        return f" It looks like {_TRANSFORMER_ELMO}."
    return (
        " It looks like an AllenNLP model, which has its ELMo, if any, among its own weights: "
        "`elmokit task open ARCHIVE --run RUN` writes it to RUN/bilm."
    )

"""Exceptions for everything that a user's file, directory, text or option can cause.

The tree::

    ElmoError                    The command line prints it as one line and exits with code 2
    |-- ConfigError              An invalid size, key or option
    |   `-- SettingError         A setting whose value cannot be used
    |-- TextError                Text that cannot be read, such as a file that is not UTF-8
    |   `-- UnknownLabelError    A gold label that a trained model does not know
    |-- ModelError               A model that cannot be opened
    |   |-- ModelNotFoundError   No file, directory or published model has the given name
    |   |-- FormatError          A damaged file, or one in another format
    |   `-- TensorMismatchError  Tensors whose shapes differ from those in the configuration
    |-- OutputError              An output that exists already, or cannot be written
    |   `-- WriteError           A write that the system refused, such as on a full disk
    |-- LockedError              An output that another process is writing to
    |-- TrainingError            Training that cannot start or continue
    `-- MissingExtraError        An optional dependency that is not installed

A mistake in the calling code (a tensor of the wrong shape, a mask with holes) is a ``ValueError`` instead.
Each message says what was given, what was expected, and how to fix it.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from types import TracebackType

from elmokit.version import ON_PACKAGE_INDEX

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM, as in shells."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""pip's index of PyTorch builds without CUDA, which saves gigabytes."""
_PACKAGE = str(Path(__file__).parent) + os.sep


def requirement(extra: str) -> str:
    """Return the requirement for ``pip install`` that includes an extra."""
    return f"'{'elmokit' if ON_PACKAGE_INDEX else '.'}[{extra}]'"


def install_command(extra: str) -> str:
    """Return the command that installs an extra; for PyTorch, its CPU build."""
    return f"pip install {requirement(extra)}" + (f" --extra-index-url {CPU_INDEX}" if extra == "torch" else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an exception means that memory is exhausted."""
    # On the CPU, PyTorch raises a plain RuntimeError; only its message mentions memory.
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


class ElmoError(Exception):
    """Base class of the errors that a user can fix."""


class ConfigError(ElmoError):
    """An invalid size, key or option."""

    @property
    def message(self) -> str:
        """The message, as an attribute named like AllenNLP's."""
        return str(self)


class SettingError(ConfigError):
    """A setting whose value cannot be used.

    Args:
        setting: The setting's name, as in a config file.
        problem: What is wrong with it, as the rest of a sentence that starts with the name.
        where: The file with the value; empty if the caller passed it.
    """

    def __init__(self, setting: str, problem: str, where: str = "") -> None:
        self.setting, self.problem, self.where = setting, problem, where
        super().__init__(f"{where}: {setting} {problem}" if where else f"{setting} {problem}")

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, str, str]]:
        # Makes it picklable: in distributed training, the main process sends errors to the others.
        return SettingError, (self.setting, self.problem, self.where)


class TextError(ElmoError):
    """Text that cannot be read."""


class UnknownLabelError(TextError):
    """A gold label that a trained model does not know, so it can never be predicted."""


class ModelError(ElmoError):
    """A model that cannot be opened."""


class ModelNotFoundError(ModelError):
    """No file, directory or published model has the given name."""


class FormatError(ModelError):
    """A damaged model file, or one in another format."""


class TensorMismatchError(ModelError):
    """Tensors whose shapes differ from those in the configuration."""


class OutputError(ElmoError):
    """An output that exists already, cannot be written, or does not fit on the disk."""


class WriteError(OutputError):
    """A write that the system refused, for example because the disk is full.

    Args:
        path: The file or directory that was written.
        reason: The system's reason for the failure.
        kept: A sentence about what was saved and how to continue.
    """

    def __init__(self, path: Path, reason: str, kept: str) -> None:
        self.path, self.reason, self.kept = path, reason, kept
        super().__init__(f"Writing to {path} failed: {reason}. {kept}")

    def __reduce__(self) -> tuple[type[WriteError], tuple[Path, str, str]]:
        return WriteError, (self.path, self.reason, self.kept)


def write_failure(error: BaseException) -> str | None:
    """Return the system's reason for refusing a write; None if the exception has another cause."""
    if isinstance(error, WriteError):
        return error.reason
    # A closed pipe is where reports were printed, as in `elmokit train ... | head`.
    if isinstance(error, ElmoError | BrokenPipeError):
        return None
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # h5py raises errors of various classes, with long messages about the file.
    number = re.search(r"errno = (\d+)", str(error))
    if number is not None:
        return os.strerror(int(number[1]))
    return str(error) if isinstance(error, OSError) else None


class LockedError(ElmoError):
    """An output that another process is writing to."""


class TrainingError(ElmoError):
    """Training that cannot start or continue."""


class MissingExtraError(ElmoError):
    """An optional dependency that is not installed.

    Args:
        needed_for: What needs it, as the start of a sentence.
        extra: elmokit's extra that installs it.
    """

    def __init__(self, needed_for: str, extra: str) -> None:
        self.needed_for, self.extra = needed_for, extra
        what = "PyTorch" if extra == "torch" else "an optional dependency"
        install = "Install it with" if ON_PACKAGE_INDEX else "In a copy of elmokit's repository, install it with"
        super().__init__(f"{needed_for} needs {what}. {install}: {install_command(extra)}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, (self.needed_for, self.extra)


def cannot_write(path: object, problem: str | None) -> OutputError:
    """Return an error about an output that cannot be started."""
    return OutputError(f"Cannot write to {path}: {problem}.")


class RaisedAgain:
    """A context manager that replaces errors raised in its block.

    It is a class because, in Python 3.12 and 3.13, an error re-raised by a generator of ``contextlib`` stays in memory
    until the garbage collector runs, along with everything that its frames hold: open files, a model's weights.

    Args:
        raise_again: Raises a replacement for the given error, or returns to leave it unchanged.
    """

    def __init__(self, raise_again: Callable[[Exception], None]) -> None:
        self._raise_again = raise_again

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._raise_again(error)


def reading(path: object, what: str, *damage: type[Exception]) -> RaisedAgain:
    """Turn errors raised while a model file is read into errors that name the file.

    Args:
        path: The file.
        what: The expected kind of file, such as "safetensors file".
        damage: Exceptions besides OSError and ValueError that a damaged file, or one of another kind, can cause.

    Raises:
        ModelNotFoundError: It is missing.
        FormatError: It cannot be read.
    """
    kinds: tuple[type[Exception], ...] = OSError, ValueError, *damage

    def raise_again(error: Exception) -> None:
        if isinstance(error, FileNotFoundError):
            raise ModelNotFoundError(f"The {what} {path} is missing.") from None
        if isinstance(error, kinds):
            reason = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
            raise FormatError(f"{path} is not a readable {what} ({reason}).") from None

    return RaisedAgain(raise_again)


def needs_extra(needed_for: str, extra: str) -> RaisedAgain:
    """Raise an error with the install command if the block imports a missing library.

    Args:
        needed_for, extra: As in :class:`MissingExtraError`.

    Raises:
        MissingExtraError: It is not installed.
    """

    def raise_again(error: Exception) -> None:
        if isinstance(error, ImportError):
            raise MissingExtraError(needed_for, extra) from None

    return RaisedAgain(raise_again)


def needs_torch(needed_for: str) -> RaisedAgain:
    """Raise an error with the install command if the block imports PyTorch and it is not installed.

    Args:
        needed_for: As in :class:`MissingExtraError`.

    Raises:
        MissingExtraError: It is not installed.
    """

    def raise_again(error: Exception) -> None:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise MissingExtraError(needed_for, "torch") from None

    return RaisedAgain(raise_again)


def missing_advice(value: object) -> str:
    """Return advice for a missing value from a table (None, NaN, NA); empty for other values."""
    is_nan = isinstance(value, Real) and value != value
    if value is None or is_nan or type(value).__name__ in ("NAType", "NaTType"):
        return " This is a missing value from a table; replace it with an empty string, as fillna('') does in pandas."
    return ""


def warn_caller(message: str) -> None:
    """Issue a ``UserWarning`` that points to the line that called elmokit.

    Unlike a fixed ``stacklevel``, this works from any depth: a model is often opened, or computes for the first time,
    far below the public call.
    """
    caller = sys._getframe()
    while caller.f_back is not None and caller.f_code.co_filename.startswith(_PACKAGE):
        caller = caller.f_back
    warnings.warn_explicit(
        message,
        UserWarning,
        filename=caller.f_code.co_filename,
        lineno=caller.f_lineno,
        module=caller.f_globals.get("__name__"),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )

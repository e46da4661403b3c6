"""Every error that a user's file, folder, text or flag can cause.

The tree::

    ElmoError                    the shell prints it as one line and exits with 2
    |-- ConfigError              a size, switch, key or flag that cannot be
    |-- TextError                text that cannot be read: not UTF-8, a string where a list of tokens belongs
    |   `-- UnknownLabelError    a gold label that a trained model does not know
    |-- ModelError               a model that cannot be opened
    |   |-- ModelNotFoundError   no such file, folder or name
    |   |-- FormatError          a damaged file, or one of another kind
    |   `-- TensorMismatchError  tensors that do not fit the sizes in the configuration
    |-- OutputError              an output that exists, cannot be written, or does not fit on the disk
    |-- LockedError              an output that another process is writing to
    |-- TrainingError            training that cannot start or go on
    `-- MissingExtraError        an optional dependency that is not installed

A slip of the programmer (a tensor of the wrong shape, a mask with holes) stays a ``ValueError``.
Each message says what was given, what was expected, and how to mend it.
"""

from __future__ import annotations


class ElmoError(Exception):
    """The root: whatever elmokit raises for a reason that the user can mend."""


class ConfigError(ElmoError):
    """A size, switch, key or flag that cannot be."""


class TextError(ElmoError):
    """Text that cannot be read."""


class UnknownLabelError(TextError):
    """A gold label that a trained model does not know, and so cannot give."""


class ModelError(ElmoError):
    """A model that cannot be opened."""


class ModelNotFoundError(ModelError):
    """No model stands at the path or under the name that was given."""


class FormatError(ModelError):
    """A damaged model file, or one of another kind."""


class TensorMismatchError(ModelError):
    """Tensors that do not fit the sizes in the configuration."""


class OutputError(ElmoError):
    """An output that exists, cannot be written, or does not fit on the disk."""


class LockedError(ElmoError):
    """An output that another process is writing to."""


class TrainingError(ElmoError):
    """Training that cannot start or go on."""


class MissingExtraError(ElmoError):
    """An optional dependency that is not installed."""

    def __init__(self, needed_for: str, extra: str) -> None:
        self.needed_for, self.extra = needed_for, extra
        super().__init__(f"{needed_for} needs an optional dependency. Install it with: pip install 'elmokit[{extra}]'")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # The process that leads a training sends its error to the others.
        return MissingExtraError, (self.needed_for, self.extra)

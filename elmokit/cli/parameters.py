"""Types of parameters that several commands share.

One convention for models holds in all commands: the model is the option ``--model``, and the included one is the
default. Arguments are the texts and outputs of a command. (``convert`` has a source and a target, as ``cp``;
``distill`` has a teacher.)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from elmokit.cli.command import MORE, Flag
from elmokit.engine.precision import Precision
from elmokit.errors import OutputError
from elmokit.storage.atomic import check_parent
from elmokit.storage.text_files import STDIN, expand_user
from elmokit.text.raw_lines import Wrapped

MAX_THREADS = 256
"""The largest number of threads on a machine with fewer cores."""


class OutputPath(click.Path):
    """The path of an output.

    Args:
        allow_dash: Accept ``-`` for standard output. Otherwise it is refused: it is not meant as the name of a file.
        parent_must_exist: Whether its directory must exist. One that does not exist is more often a typing error, or a
            disk that is not mounted, than one to be created.
    """

    def __init__(self, allow_dash: bool = False, parent_must_exist: bool = True) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)
        self.parent_must_exist = parent_must_exist

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the path before any work is done."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if str(path) == STDIN:
            if not self.allow_dash:
                self.fail("standard output (-) is not supported.", param, ctx)
            return path
        path = expand_user(path, OutputError)  # a shell expands no ~ after a flag and =
        if self.parent_must_exist:
            check_parent(path)
        return path


class ThreadCount(click.ParamType[int]):
    """A number of CPU threads. OpenMP ends the process without a message if it cannot start as many as requested."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number and check it."""
        number: int = click.INT.convert(value, param, ctx)
        n_cores = os.cpu_count() or 1
        largest = max(MAX_THREADS, n_cores)
        if not 1 <= number <= largest:
            self.fail(f"{number} is not between 1 and {largest}.", param, ctx)
        return number


# A model is a string here, because a Path would merge the slashes of a URL.
Model = Annotated[
    str | None,
    Flag("The model: a path, URL, name (elmokit models) or Hub id.  [default: en-mini, which is included]"),
]
ModelOptions = Annotated[str | None, Flag("The options file of an HDF5 file, if it is not next to the weights.", MORE)]
Device = Annotated[str | None, Flag("Where to compute, such as cuda or cuda:1.  [default: cpu]", MORE)]
ModelPrecision = Annotated[
    Precision | None,
    Flag(
        "Lowest precision of the LSTM weights. Lower precision is faster but less accurate.  [default: the model's "
        "own; int8 for en-mini]",
        MORE,
    ),
]
StartName = Literal["warm", "zero"]
Threads = Annotated[int | None, ThreadCount()]
Raw = Annotated[bool, Flag("The text is raw: split it into sentences and tokens.")]
Language = Annotated[
    str | None,
    Flag(
        "Language of raw text, such as de or ja, with the extra spacy; any splits letters, digits and marks.  "
        "[default: en]",
        metavar="CODE",
    ),
]
Wrap = Annotated[
    Wrapped,
    Flag(
        "Whether the lines of raw text are wrapped: yes joins them to paragraphs, no reads them one by one, and auto "
        "decides by the first lines, and says so."
    ),
]
Json = Annotated[bool, Flag("Print JSON.")]
Output = Annotated[Path, OutputPath()]
OptionalOutput = Annotated[Path | None, OutputPath()]
Overwrite = Annotated[bool, Flag("Replace an existing output.")]

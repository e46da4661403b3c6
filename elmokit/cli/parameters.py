"""Types of parameters that several commands share.

One convention for models holds in all commands: the model is the option ``--model``, and the included one is the
default. Arguments are the texts and outputs of a command. (``convert`` has a source and a target, as ``cp``;
``distill`` has a teacher.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from elmokit.cli.command import MORE, Flag
from elmokit.cli.running import check_apart, check_needed
from elmokit.engine.precision import Precision
from elmokit.errors import OutputError
from elmokit.storage.atomic import check_parent
from elmokit.storage.text_files import STDIN, TextPaths, expand_user
from elmokit.text.raw_lines import Wrapped

if TYPE_CHECKING:
    from elmokit.text.text import Text

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


@dataclass(frozen=True)
class TextOptions:
    """How a command reads a text."""

    raw: Annotated[bool, Flag("The text is raw: split it into sentences and tokens.")] = False
    language: Annotated[
        str | None,
        Flag(
            "Language of raw text, such as de or ja, with the extra spacy; any splits letters, digits and marks.  "
            "[default: en]",
            metavar="CODE",
        ),
    ] = None
    wrapped: Annotated[
        Wrapped,
        Flag(
            "Whether the lines of raw text are wrapped: yes joins them to paragraphs, no reads them one by one, and "
            "auto decides by the first lines, and says so.",
            MORE,
        ),
    ] = "auto"
    text_kind: Annotated[
        Literal["tokens", "lines", "fasta", "bilm-tf", "allennlp"] | None,
        Flag(
            "What a line of the text is, if it is not raw: a sentence with spaces between tokens (tokens), one raw "
            "English sentence (lines), a line of a FASTA file (fasta), or a sentence as AllenNLP or bilm-tf read it.  "
            "[default: tokens]",
            MORE,
        ),
    ] = None

    def text(self, paths: TextPaths, refuse_raw: bool = False) -> Text:
        """Return the text of a command; ``refuse_raw`` refuses one that looks raw, unless its kind is given."""
        from elmokit.text.text import Text

        check_needed("--language", self.language, "--raw", self.raw)
        check_needed("--wrapped", self.wrapped != "auto", "--raw", self.raw)
        check_apart("--raw", self.raw, {"--text-kind": self.text_kind})
        documents = isinstance(self, DocumentOptions) and self.documents
        if self.raw:
            return Text(paths, "raw", self.language or "en", self.wrapped, documents=documents)
        refuse_raw = refuse_raw and self.text_kind is None
        return Text(paths, self.text_kind or "tokens", documents=documents, refuse_raw=refuse_raw)


@dataclass(frozen=True)
class DocumentOptions(TextOptions):
    """How a command reads a text that can have documents."""

    documents: Annotated[
        bool,
        Flag("Read each sentence after the sentences before it, up to a blank line or the end of the file."),
    ] = False


Json = Annotated[bool, Flag("Print JSON.")]
Output = Annotated[Path, OutputPath()]
OptionalOutput = Annotated[Path | None, OutputPath()]
Overwrite = Annotated[bool, Flag("Replace an existing output.")]

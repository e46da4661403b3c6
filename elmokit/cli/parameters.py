"""Parameter types that several commands share.

All commands take models the same way: the option ``--model``, with the included model as the default. Arguments are
texts and outputs. (``convert`` has a source and a target, like ``cp``; ``distill`` has a teacher.)
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
from elmokit.text.first_lines import Wrapped

if TYPE_CHECKING:
    from elmokit.text.text import Text

MAX_THREADS = 256
"""Maximum number of threads on a machine with fewer cores."""


class OutputPath(click.Path):
    """The path of an output.

    Args:
        allow_dash: Accept ``-`` for standard output. Otherwise it is refused, because it is not meant as a file name.
        parent_must_exist: Require the parent directory to exist. If it does not, a typing error or an unmounted disk is
            more likely than a directory to be created.
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
        path = expand_user(path, OutputError)  # shells do not expand ~ in --flag=~/path
        if self.parent_must_exist:
            check_parent(path)
        return path


class ThreadCount(click.ParamType[int]):
    """A number of CPU threads, checked because OpenMP kills the process silently if it cannot start that many."""

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
            "Language of raw text, such as de or ja (needs the extra spacy); any splits at letters, digits and marks.  "
            "[default: en]",
            metavar="CODE",
        ),
    ] = None
    wrapped: Annotated[
        Wrapped,
        Flag(
            "Whether lines of raw text are wrapped: yes joins them into paragraphs, no reads each line on its own, and "
            "auto decides from the first lines and reports it.",
            MORE,
        ),
    ] = "auto"
    text_kind: Annotated[
        Literal["tokens", "lines", "fasta", "bilm-tf", "allennlp"] | None,
        Flag(
            "What each line of text is, without --raw: a sentence with spaces between tokens (tokens), one raw "
            "English sentence (lines), a line of a FASTA file (fasta), or a sentence as AllenNLP or bilm-tf read it.  "
            "[default: tokens]",
            MORE,
        ),
    ] = None

    def text(self, paths: TextPaths, refuse_raw: bool = False) -> Text:
        """Return the command's text; ``refuse_raw`` refuses text that looks raw, unless its kind is given."""
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
        Flag("Read each sentence in the context of the preceding ones, up to a blank line or the end of the file."),
    ] = False


Json = Annotated[bool, Flag("Print JSON.")]
Output = Annotated[Path, OutputPath()]
OptionalOutput = Annotated[Path | None, OutputPath()]
Overwrite = Annotated[bool, Flag("Replace an existing output.")]

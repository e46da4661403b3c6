"""What the evaluations of ``elmokit evaluate`` have in common: their options, and how they end and resume."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import Device, Figure, Json, Model, ModelOptions, OutputPath
from elmokit.cli.running import echo_json, print_note, resumable_command
from elmokit.text.tokenize import Tokenization

if TYPE_CHECKING:
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.result import Result
    from elmokit.evaluation.tables import Row
    from elmokit.formats.model import PretrainedBiLM
    from elmokit.storage.part_results import PartResults

Tokenizer = Annotated[Tokenization, Flag("How to split the sentences: into Penn Treebank tokens, or at spaces.")]
Keep = Annotated[
    Path | None,
    OutputPath(),
    Flag(
        "Keep finished parts in this directory. If the command is interrupted, run it again to resume.", metavar="DIR"
    ),
]


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of every evaluation."""

    model: Model = None
    options: ModelOptions = None
    json: Json = False
    figure: Figure = None
    device: Device = None
    overwrite: Annotated[bool, Flag("Start anew: replace an existing output and kept results.")] = False

    def check_figure(self) -> None:
        """Check before any work is done that the figure can be drawn."""
        from elmokit.evaluation.figures import check_figure_path

        if self.figure is not None:
            check_figure_path(self.figure, self.overwrite)

    def open_elmo(self) -> Elmo:
        """Open the model for its vectors."""
        from elmokit.embedding.elmo import Elmo

        return Elmo.from_pretrained(self.model, options=self.options, device=self.device)

    def open_language_model(self) -> PretrainedBiLM:
        """Open the model with its softmax and vocabulary."""
        from elmokit.lm.language_model import LanguageModel

        return LanguageModel.from_pretrained(self.model, options=self.options, device=self.device).model

    @contextlib.contextmanager
    def resumable_parts(
        self, folder: Path | None, model: PretrainedBiLM, texts: Iterable[Path], settings: dict[str, Any]
    ) -> Iterator[PartResults]:
        """Yield the finished parts of an evaluation, and say how to resume it if the user stops it.

        Args:
            folder: Where they are kept; None to keep nothing.
            model: The model.
            texts: The files that the results depend on.
            settings: What else they depend on.
        """
        from elmokit.embedding.fingerprint import prediction_settings
        from elmokit.storage.bounded import file_digest
        from elmokit.storage.part_results import PartResults

        digests = [] if folder is None else [file_digest(path) for path in texts]
        all_settings = prediction_settings(model, "warm") | settings | {"texts": digests}
        parts = PartResults(folder, all_settings, overwrite=self.overwrite)
        with resumable_command(lambda: parts.can_resume), parts:
            yield parts

    def show(self, result: Result, rows: Sequence[Row] | None = None) -> None:
        """Draw the figure, and print the result as JSON or as a table of its rows, or of others."""
        if self.figure is not None:
            print_note(f"wrote {' and '.join(map(str, result.draw(self.figure, self.overwrite)))}")
        if self.json:
            echo_json(result.to_dict())
        else:
            click.echo(result.to_text(rows))

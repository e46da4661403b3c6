"""What the evaluations of ``elmokit evaluate`` have in common: their options, and how they end and resume."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import click

from elmokit.cli.common import (
    device_option,
    echo_json,
    figure_option,
    json_option,
    model_option,
    options_option,
    overwrite_option,
    resumable_command,
    this_command,
)
from elmokit.cli.options import OutputPath
from elmokit.text.tokenize import Tokenization

if TYPE_CHECKING:
    from elmokit.embedding.elmo import Elmo
    from elmokit.formats.model import PretrainedBiLM
    from elmokit.storage.part_results import PartResults

tokenizer_option = click.option(
    "--tokenizer",
    type=click.Choice(get_args(Tokenization)),
    default="treebank",
    show_default=True,
    help="How to split the sentences: into Penn Treebank tokens, or at spaces.",
)
keep_option = click.option(
    "--keep",
    type=OutputPath(),
    metavar="DIR",
    help="Keep finished parts in this directory. If the command is interrupted, run it again to resume.",
)


class EvaluationResult(Protocol):
    """What an evaluation returns."""

    def to_text(self) -> str:
        """Return tables for people."""

    def to_dict(self) -> dict[str, Any]:
        """Return facts for ``--json``."""

    def draw(self, figure: Path, overwrite: bool) -> Any:
        """Draw a figure."""


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of every evaluation. :func:`evaluation_options` adds them to a command."""

    model: str | None
    options: str | None
    device: str | None
    as_json: bool
    figure: Path | None
    overwrite: bool

    def check_figure(self) -> None:
        """Check before any work is done that the figure can be drawn.

        Raises:
            OutputError, MissingExtraError: It cannot.
        """
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

    def show(self, result: EvaluationResult, text: str | None = None) -> None:
        """Draw the figure, and print the result.

        Args:
            result: The result of the evaluation.
            text: What to print for people, if it is not ``result.to_text()``.
        """
        if self.figure is not None:
            result.draw(self.figure, self.overwrite)
        if self.as_json:
            echo_json(result.to_dict())
        else:
            click.echo(result.to_text() if text is None else text)


def evaluation_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every evaluation to a command, whose function gets them as one first argument."""
    names = [field.name for field in fields(EvaluationOptions)]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        common = EvaluationOptions(**{name: given.pop(name) for name in names})
        function(common, **given)

    # From the last one in the help to the first, as decorators are applied.
    for option in (overwrite_option, device_option, figure_option, json_option, options_option, model_option):
        command = option(command)
    return command


@contextlib.contextmanager
def resumable_parts(folder: Path | None, model: PretrainedBiLM, settings: dict[str, Any]) -> Iterator[PartResults]:
    """Yield the finished parts of an evaluation, and say how to resume it if the user stops it.

    Args:
        folder: Where they are kept; None to keep nothing.
        model: The model.
        settings: What else the results depend on.
    """
    from elmokit.embedding.fingerprint import RESTORE, prediction_settings
    from elmokit.storage.part_results import PartResults

    parts = PartResults(folder, prediction_settings(model, "warm") | settings, RESTORE)
    with resumable_command(lambda: this_command() if parts.can_resume else None), parts:
        yield parts

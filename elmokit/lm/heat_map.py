"""A sentence whose tokens are colored by surprisal, for notebooks and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from elmokit.config import check_at_least
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.substitutes import Direction, Substitute, expected_words
from elmokit.lm.surprisal import Surprisal
from elmokit.text.tokenize import tokenize


@dataclass(frozen=True, repr=False)
class HeatMap:
    """The surprisal of a sentence, and the words that were expected in each place.

    A notebook shows it in color, with the expected words at the mouse; ``print`` and the Python prompt show a table.
    """

    surprisal: Surprisal
    directions: tuple[Direction, ...]
    """The directions in which the model reads: the rows of ``surprisal.nats``."""
    expected: list[dict[Direction, list[Substitute]]]
    """For each token, without boundaries, the words that each direction expected, most probable first."""

    def to_html(self) -> str:
        """Return the heat map as HTML, one line of tokens per direction."""
        return self.surprisal.to_html(
            [[f"Expected: {_words(words[direction])}" for words in self.expected] for direction in self.directions]
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        tokens, nats = self.surprisal.tokens[1:-1], self.surprisal.nats[:, 1:-1]
        width = max([5, *map(len, tokens)])
        lines = [f"{'token':<{width}}" + "".join(f"  {direction:>8}" for direction in self.directions) + "  expected"]
        for number, token in enumerate(tokens):
            numbers = "".join(f"  {value:8.2f}" for value in nats[:, number])
            words = "; ".join(_words(self.expected[number][direction]) for direction in self.directions)
            lines.append(f"{token:<{width}}{numbers}  {words}")
        return "\n".join(lines)


def show(
    sentence: str | Sequence[str], model: LanguageModel | str | Path | None = None, *, n_expected: int = 5
) -> HeatMap:
    """Show how surprising each token of a sentence is, and what the model expected in its place.

    As the last line of a notebook's cell, it is a heat map in color; ``print(show(...))`` is a table.

    Args:
        sentence: Tokens; or a text, which is split as by :func:`elmokit.tokenize`.
        model: A language model, or the name, path or URL of one; None for the included model.
        n_expected: How many expected words to find for each token and direction.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: A token is not a string.
        ConfigError: ``n_expected`` is below 1.

    Example:
        >>> import elmokit
        >>> elmokit.show("The bank of the river was muddy.")
    """
    check_at_least("n_expected", n_expected, 1)
    if not isinstance(model, LanguageModel):
        model = LanguageModel.from_pretrained(model)
    sentences = (tokenize(sentence) or [[]]) if isinstance(sentence, str) else [list(sentence)]
    directions: tuple[Direction, ...] = tuple(model.model.config.direction_names)
    surprisal = Surprisal.joined(model.surprisal(sentences))
    queries = [(tokens, range(len(tokens))) for tokens in sentences]
    expected = expected_words(model.model, queries, directions, n_expected, model.start)
    return HeatMap(surprisal, directions, list(chain.from_iterable(expected)))


def _words(substitutes: Sequence[Substitute]) -> str:
    return ", ".join(substitute.word for substitute in substitutes)

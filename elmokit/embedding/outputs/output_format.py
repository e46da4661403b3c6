"""What a format of vector files says about itself: :class:`OutputFormat`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from elmokit.embedding.outputs.layout import VectorFileLayout
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError

ABOUT = "elmokit"
"""The name under which a file says what computed it: one JSON text (:attr:`VectorFileLayout.about`)."""


class OutputFormat(ABC):
    """A format of vector files. A new one is a subclass that ``table.py`` lists.

    While a text is embedded, vectors, sentences and tokens are stored in the same way for all formats (``writer.py``),
    so all can be resumed. :meth:`write` makes the output from them at the end.
    """

    name: ClassVar[str]
    """What error messages call the format."""
    extensions: ClassVar[tuple[str, ...]]
    """The extensions of its files, with their dots."""
    stores: ClassVar[Literal["tokens", "keys"]] = "tokens"
    """How it stores sentences: as the tokens of each row, or as keys that name datasets or map to their numbers."""

    def check(self, layout: VectorFileLayout) -> None:
        """Raise a ConfigError or MissingExtraError, before any work is done, if the file cannot be written."""
        for name, is_chosen, is_possible in (
            ("use_sentence_keys", layout.keys == "sentences", self.stores == "keys" and not layout.pooled),
            ("include_sentence_indices", layout.with_old_map, self.stores == "keys"),
        ):
            if is_chosen and not is_possible:
                vectors = "sentence vectors" if layout.pooled else "vectors"
                raise ConfigError(f"{name} cannot be used: {self.name} files store {vectors} in one table.")

    def check_names(self, layout: VectorFileLayout, names: Sequence[str], first: int) -> None:  # noqa: B027
        """Raise a TextError if the format cannot hold the names of sentences; ``first`` is the number of the first."""

    def settings(self, layout: VectorFileLayout) -> dict[str, Any]:
        """Return what a resumed run must have in common with the interrupted one, besides what vectors depend on."""
        # Tokens are stored from the beginning, while keys are made at the end.
        return {"sentences": layout.with_sentences} if self.stores == "tokens" else {}

    @abstractmethod
    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the size of the output: exact for binary vectors, within a few percent for the rest."""

    def temporary_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Return the size of what needs space next to the output until it is complete."""
        return layout.vector_bytes(counts)

    @abstractmethod
    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write the output, once all pools of the text are complete."""

    @abstractmethod
    def read_about(self, path: Path) -> str | bytes:
        """Read what a file says about itself. An error that :func:`.about.read_about` expects means: nothing."""

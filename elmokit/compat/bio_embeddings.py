"""bio_embeddings' ``SeqVecEmbedder`` under its old name: proteins to vectors with the SeqVec model.

Write ``from elmokit.compat.bio_embeddings import SeqVecEmbedder`` in place of ``from bio_embeddings.embed import
SeqVecEmbedder``. Vectors, shapes and defaults are those of bio_embeddings 0.1.6. As there, AllenNLP's LSTM state is
carried from protein to protein, so the vectors of a protein depend a little on those before it. Pass ``stateful=False``
for vectors that do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, TextError

DEFAULT_MODEL = "seqvec"
# The protein that bio_embeddings embeds several times beforehand, so that the state no longer starts at zero.
WARM_UP = "MGSSHHHHHHSSGLVPRGSHMASVQKFPGDANCDGIVDISDAVLIMQTMANPSKYQMTDKGRINADVTGNSDGVTVLDAQFIQSYCLGLVELPPVE"


class SeqVecEmbedder:
    """Embeds proteins, given as strings of one-letter amino acids.

    Args:
        warmup_rounds: How often a fixed protein is embedded beforehand; without effect if not ``stateful``.
        device: Such as "cuda" or "cuda:1"; the CPU if None, even if there is a GPU.
        model_directory: A directory with the files ``weights_file`` and ``options_file``, as bio_embeddings named them,
            or any other model that elmokit opens.
        weights_file: The weights, if there is no ``model_directory``; by default the published model ``seqvec``.
        options_file: Their options.
        max_amino_acids: Ignored, as in bio_embeddings.
        stateful: Carry the LSTM state from one batch to the next. If False, every protein is read from the zero state.

    Raises:
        ModelError: The model does not exist or cannot be opened.
        ConfigError: The device cannot be used, or both a directory and files are given.
    """

    name: ClassVar[str] = "seqvec"
    embedding_dimension: ClassVar[int] = 1024
    number_of_layers: ClassVar[int] = 3
    necessary_files: ClassVar[list[str]] = ["weights_file", "options_file"]
    necessary_directories: ClassVar[list[str]] = []

    def __init__(
        self,
        warmup_rounds: int = 4,
        *,
        device: str | None = None,
        model_directory: str | Path | None = None,
        weights_file: str | Path | None = None,
        options_file: str | Path | None = None,
        max_amino_acids: int | None = None,
        stateful: bool = True,
    ) -> None:
        if model_directory is not None:
            if weights_file is not None or options_file is not None:
                raise ConfigError("Pass either model_directory, or weights_file and options_file.")
            weights_file = model_directory
            if (Path(model_directory) / "weights_file").exists():
                weights_file, options_file = (Path(model_directory) / f"{kind}_file" for kind in ("weights", "options"))
        self._elmo = Elmo.from_pretrained(
            DEFAULT_MODEL if weights_file is None else weights_file, options=options_file, start="zero", device=device
        )
        self._stateful, self._state = stateful, self._elmo.zero_state(0)
        self.warmup_rounds = warmup_rounds
        if stateful:
            for _ in range(warmup_rounds):
                self.embed(WARM_UP)

    def embed(self, sequence: str) -> NDArray[np.float32]:
        """Embed one protein as ``(layers, residues, dim)``.

        Raises:
            TextError: The protein is not a string.
        """
        return next(self.embed_batch([sequence]))

    def embed_batch(self, batch: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        """Embed proteins in one batch. Yields an array ``(layers, residues, dim)`` for each.

        Raises:
            TextError: A protein is not a string, or the batch is one.
        """
        proteins = [] if isinstance(batch, str) else list(batch)
        if isinstance(batch, str) or not all(isinstance(sequence, str) for sequence in proteins):
            raise TextError("Expected a list of proteins, each a string of amino acids.")
        # As in AllenNLP, row r continues from row r of the batch before; new rows start from zero, and the others keep
        # their state.
        start = self._state.first_rows(len(proteins))
        vectors, after = self._elmo.embed_batch([list(sequence) for sequence in proteins], start)
        if self._stateful and any(proteins):
            self._state = self._state.with_first_rows(after)
        yield from vectors

    def embed_many(self, sequences: Iterable[str], batch_size: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Embed any number of proteins, in their order.

        Args:
            sequences: The proteins.
            batch_size: Residues per batch; a longer protein is a batch by itself. None: one protein per batch.
        """
        batch: list[str] = []
        n_residues = 0
        for sequence in sequences:
            # As in bio_embeddings: a batch is closed before it would have batch_size residues, and a protein with more
            # comes before those that wait. Here it waits its turn, so that the results are in the order of the input.
            if batch and (batch_size is None or n_residues + len(sequence) >= batch_size):
                yield from self.embed_batch(batch)
                batch, n_residues = [], 0
            batch.append(sequence)
            n_residues += len(sequence)
        if batch:
            yield from self.embed_batch(batch)

    @staticmethod
    def reduce_per_protein(embedding: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute one vector per protein, ``(dim,)``: the sum over the layers, then the mean over the residues."""
        vector: NDArray[np.float32] = embedding.sum(axis=0).mean(axis=0)
        return vector

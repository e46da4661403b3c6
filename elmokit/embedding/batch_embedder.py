"""Compute the batches of a corpus and write their vectors to the growing output: :class:`BatchEmbedder`.

:func:`describe_work` says before how long that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from elmokit.embedding.elmo import Elmo, Vectors, check_elmo
from elmokit.embedding.fingerprint import vector_settings
from elmokit.embedding.outputs.output_format import StoredDtype, as_stored
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.layer_selection import Layers, plain_layers
from elmokit.errors import ConfigError
from elmokit.storage.progress import count_of, format_duration, seconds_per_unit
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches, read_ahead

N_TRIALS = 5
TRIAL_TOKENS = 1000
"""Tokens of each trial at most."""
MAX_TRIAL_SHARE = 0.05
"""All trials together embed at most this share of the text."""
MIN_TOKENS_FOR_TRIAL = 20_000  # shorter texts take seconds

Pool = list[list[str]]
"""Consecutive sentences that are read together, and then batched by length."""


class VectorChunk(NamedTuple):
    """The vectors of a sentence, or of a part of a very long one, and where they belong."""

    offset: int
    """Where the vectors of the sentence begin in the file."""
    n_tokens: int
    """The number of tokens of the chunk."""
    n_rows: int
    """The number of vectors of the whole sentence, per layer: its tokens, or 1 for a sentence vector."""
    first_row: int
    """The position of the chunk's first vector in the sentence."""
    vectors: Vectors
    """``(rows, dim)`` or ``(layers, rows, dim)``."""


class BatchEmbedder:
    """Computes the batches of pools. With ``start="stateful"`` it holds the state after the last batch."""

    def __init__(self, elmo: Elmo | SentenceEmbedder, layers: Layers, batch_tokens: int, batch_size: int) -> None:
        self.pooler: SentenceEmbedder | None = None
        layers = plain_layers(layers)
        if isinstance(elmo, SentenceEmbedder):
            if layers != "all":
                raise ConfigError(f"layers is {layers!r}, but a SentenceEmbedder has its own.")
            self.pooler, layers = elmo, elmo.pooling.layers
            elmo = elmo.elmo
        if isinstance(inside := getattr(elmo, "elmo", None), Elmo):  # an ElmoModule, for which PyTorch is not imported
            elmo = inside
        check_elmo(elmo)
        self.elmo, self.layers, self.batch_tokens, self.batch_size = elmo, layers, batch_tokens, batch_size
        elmo.embed([], layers=layers, batch_tokens=batch_tokens, batch_size=batch_size)  # checks these three
        self.state = elmo.zero_state(0) if elmo.start == "stateful" else None

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.elmo.output_dim if self.pooler is None else self.pooler.dim

    @property
    def stored_layers(self) -> tuple[int, ...] | None:
        """The numbers of the layers of an output; None if a token or sentence has one vector ``(dim,)``."""
        if self.pooler is not None:
            return None
        if self.layers == "all":
            return tuple(range(self.elmo.n_layers))
        return None if isinstance(self.layers, (str, int)) else tuple(self.layers)

    def settings(self) -> dict[str, Any]:
        """Return what the vectors of all layers depend on."""
        settings = vector_settings(self.elmo.model, self.elmo.start)
        if self.elmo.mix is not None:
            # Vectors of a learned mix depend on its weights, which the fingerprint of the model does not include.
            settings["model"] += f"-{self.elmo.mix.checksum:08x}"
        return settings

    def read_pools(self, sentences: Iterable[list[str]]) -> Iterator[Pool]:
        """Yield the sentences in pools, from which batches are planned."""
        # In a stateful run, row r continues from row r of the batch before, so batches are consecutive sentences of
        # the text. In other runs batches are planned over pools whose limits depend on the text alone, never on time
        # or on where a run was interrupted: a resumed run computes the same batches, and so the same bits.
        return read_ahead(
            sentences,
            max_tokens=READ_AHEAD_BATCHES * self.batch_tokens if self.state is None else None,
            max_items=None if self.state is None else self.batch_size,
        )

    def plan(self, pool: Pool) -> list[list[int]]:
        """Return the batches of a pool, as row numbers. In a stateful run the pool is one batch, in text order."""
        if self.state is not None:
            return [list(range(len(pool)))]
        return plan_batches(list(map(len, pool)), self.batch_tokens)

    def compute(self, pool: Pool, offsets: list[int], batch: list[int]) -> Iterator[list[VectorChunk]]:
        """Yield the vectors of a batch: all at once, or chunk by chunk for a sentence that is too long for that.

        ``offsets`` says where in the file the vectors of each sentence of the pool begin.
        """
        sentences: list[Sequence[str]] = [pool[row] for row in batch]
        if self.pooler is not None:
            sentences = [self.pooler.fold(tokens) for tokens in sentences]
        if self.state is not None:
            vectors, after = self.elmo.embed_batch(sentences, self.state.first_rows(len(batch)), self.layers)
            self.state = self.state.with_first_rows(after)
            computed: Iterable[list[Vectors]] = [vectors]
        else:
            computed = self.elmo.embed_planned_batch(sentences, self.layers)
        if self.pooler is not None:
            pooled = self.pooler.pool_planned_batch(sentences, computed)
            yield [
                VectorChunk(offsets[row], len(pool[row]), 1, 0, vector[None])
                for row, vector in zip(batch, pooled, strict=True)
            ]
            return
        first_row = 0
        for vectors in computed:
            yield [
                VectorChunk(offsets[row], array.shape[-2], len(pool[row]), first_row, array)
                for row, array in zip(batch, vectors, strict=True)
            ]
            first_row += vectors[0].shape[-2]  # used only for the further chunks of a single long sentence


def write_chunks(writer: ResumableWriter, chunks: list[VectorChunk], dtype: StoredDtype) -> None:
    """Write the vectors of a batch to where they belong."""
    for chunk in chunks:
        vectors = as_stored(chunk.vectors, dtype)
        if vectors.shape[-2] == chunk.n_rows:
            writer.write_vectors(chunk.offset, vectors)
            continue
        # A dataset is stored layer by layer, so the tokens of a chunk are in one range per layer.
        layers = vectors.reshape(-1, *vectors.shape[-2:])
        token_bytes = layers.shape[-1] * layers.itemsize
        for number, layer in enumerate(layers):
            writer.write_vectors(chunk.offset + (number * chunk.n_rows + chunk.first_row) * token_bytes, layer)


def describe_work(embedder: BatchEmbedder, output: str | Path, size: str, writer: ResumableWriter) -> str:
    """Say in one line how much there is to do, how large the output will be, how long it will take, in which precision.

    To measure the speed, the first tokens of the text are embedded, unless there is little to do.
    """
    text, n_done = writer.progress.text, writer.progress.n_tokens
    line = f"{count_of(text.n_sentences, 'sentence')}, {count_of(text.n_tokens, 'token')}"
    if n_done:
        line += f", {n_done:,} already done"
    line += f"; {output} will take {size}"
    if (n_left := text.n_tokens - n_done) >= MIN_TOKENS_FOR_TRIAL:
        seconds = _seconds_per_token(embedder, n_left, writer.read_tokens())
        line += f" and about {format_duration(n_left * seconds)} ({1 / seconds:,.0f} tokens/s)"
    return f"{line}; computed in {embedder.elmo.model.network.computation()}"


def _seconds_per_token(embedder: BatchEmbedder, n_left: int, sentences: Iterable[list[str]]) -> float:
    elmo, layers = embedder.elmo, embedder.layers
    trials = list(_trials(sentences, min(TRIAL_TOKENS, int(n_left * MAX_TRIAL_SHARE) // N_TRIALS)))

    def run(trial: list[list[str]]) -> int:
        elmo.embed(trial, layers=layers, batch_tokens=embedder.batch_tokens)
        return sum(map(len, trial))

    run(trials[0][:1])  # the first call compiles and packs; that happens only once
    return seconds_per_unit(partial(run, trial) for trial in trials)


def _trials(sentences: Iterable[list[str]], n_tokens: int) -> Iterator[list[list[str]]]:
    """Cut trials of some tokens from the start of a text, which may be shorter."""
    trial: list[list[str]] = []
    n_trials, n_left = 0, n_tokens
    for sentence in sentences:
        tokens = sentence[:n_left]
        if tokens:
            trial.append(tokens)
            n_left -= len(tokens)
        if not n_left:
            yield trial
            trial, n_trials, n_left = [], n_trials + 1, n_tokens
        if n_trials == N_TRIALS:
            return
    if trial:
        yield trial

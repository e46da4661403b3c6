"""Embed a file of sentences into a file of vectors.

The text is read first, and stored with the lengths of its sentences. So the position of each sentence in the output is
known, and a second thread writes batches in the order in which they are computed (by length). Only a few batches and
the text of a pool are in memory.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from elmokit.embedding.documents import POOL_BATCHES
from elmokit.embedding.elmo import Elmo, Vectors, check_elmo, document_reader, embed_planned_batch
from elmokit.embedding.fingerprint import vector_settings
from elmokit.embedding.outputs.layout import Layout
from elmokit.embedding.outputs.output_format import (
    OutputFormat,
    StoredDtype,
    VectorFileLayout,
    as_stored,
    output_format,
    stored_dtype,
)
from elmokit.embedding.outputs.writer import (
    ResumableWriter,
    WriteProgress,
    check_disk_space,
    check_resumable_output,
    format_size,
    open_resumable,
)
from elmokit.embedding.reading import corpus_rows
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.layer_selection import plain_layers
from elmokit.engine.state import State
from elmokit.errors import ConfigError
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, Stage, StageCounter, count_of
from elmokit.storage.text_files import check_input_file, check_not_input, path_list
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches, read_ahead
from elmokit.text.text import Text, check_has_documents
from elmokit.version import __version__

WRITES_BEHIND = 1
"""One item evens out varying write speeds; more cost memory."""


class Embedder(Protocol):
    """What :func:`embed_file` needs: an :class:`Elmo`, an ``ElmoModule`` or a :class:`SentenceEmbedder` has it."""

    @property
    def elmo(self) -> Elmo:
        """What computes the vectors of tokens. That of an :class:`Elmo` is the object itself."""


@dataclass(frozen=True)
class EmbedSummary:
    """The result of :func:`embed_file`."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    """Blank lines, which became empty datasets."""
    seconds: float
    """The time of reading, computing and writing, without what comes before the first batch: counting the text, and
    compiling and packing the model's kernels."""
    n_resumed_tokens: int = 0
    """Tokens that an earlier, interrupted run had computed."""

    @property
    def tokens_per_second(self) -> float:
        """The speed of this run."""
        return (self.n_tokens - self.n_resumed_tokens) / max(self.seconds, 1e-9)


def embed_file(
    embedder: Embedder,
    text: Text | str | Path,
    output: str | Path,
    layout: Layout = Layout(),  # noqa: B008 (immutable)
    *,
    overwrite: bool = False,
    force: bool = False,
    report: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
) -> EmbedSummary:
    """Embed a text file into a file of vectors.

    The output has one row per line, or per sentence of raw text: a dataset in HDF5, or a row of the table in Parquet
    and Arrow. A blank line becomes an empty row, so row numbers equal line numbers. docs/reference/vector-files.md
    describes each format.

    If the process is interrupted, call the function again with the same arguments to resume: computed batches are kept
    in the directory ``OUTPUT.partial``. The vectors come from the same batches as in an uninterrupted run.
    The text, which is kept there too, must be the same.

    Args:
        embedder: The model. With an :class:`Elmo`, each token gets its vectors; with a
            :class:`~elmokit.SentenceEmbedder`, each sentence gets one vector.
        text: A file of tokenized text, one sentence per line (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard
            input. A file that is certainly raw is an error. For other text, a :class:`~elmokit.Text` of one file:
            ``Text(path, kind="raw")`` has a row for each sentence, ``Text(path, documents=True)`` reads each sentence
            after those before it, up to a blank line, as ``Elmo.embed_documents`` does.
        output: The output, which appears when it is complete. Its extension chooses the format, such as ``.parquet``,
            ``.arrow`` or ``.npz``; ``.hdf5``, ``.h5`` or none is HDF5.
        layout: The layers to store, their type and names, and the size of batches.
        overwrite: Start over: replace an existing or partial output.
        force: Start even if the disk seems too small for the output.
        report: Called before computing, with a line that says how much there is to do and how large the output will be.
        progress: Called with the number of sentences while the text is read and the output laid out, then of tokens.

    Returns:
        The number of sentences, the number of tokens, and the time.

    Raises:
        TextError: The text cannot be read, is not UTF-8 or is in another format; a sentence is too long for a dataset
            name; or the text differs from the one that the interrupted run embedded.
        OutputError: The output exists, has the extension of another format, cannot be written, or will not fit; or
            there is a partial output of other settings.
        ConfigError: A layer does not exist, a batch size is below 1, the format cannot have the requested names, the
            text has several files, or documents are read from the start "stateful".
        MissingExtraError: The output is Parquet or Arrow, and pyarrow is not installed.

    Example:
        >>> from elmokit import Elmo, Layout
        >>> from elmokit.storage.progress import ProgressBar
        >>> with ProgressBar("tokens") as bar:
        ...     embed_file(Elmo.from_pretrained(), "corpus.txt", "vectors.hdf5", Layout(dtype="float16"), progress=bar)
    """
    text = text if isinstance(text, Text) else Text(text, refuse_raw=True)
    format_ = check_files(text, output, overwrite)
    # All arguments are checked here, so a mistake leaves no partial output behind.
    batches = BatchEmbedder(embedder, layout, text.documents)
    if (weights := batches.elmo.model.source) is not None:
        check_not_input(output, [weights])
    file_layout = _file_layout(batches, layout, text)
    format_.check(file_layout)
    settings = _settings(batches, file_layout, text)
    file_layout = replace(file_layout, about=_about(batches.elmo.model, settings, file_layout, format_))
    names = {
        "keys": file_layout.keys,
        "sentences": file_layout.with_sentences,
        "sentence_indices": file_layout.with_old_map,
    }
    with open_resumable(output, settings | names, overwrite) as writer:
        counts = writer.read_text(corpus_rows(text), progress)
        before = writer.progress
        n_bytes, n_temporary = format_.file_bytes(file_layout, counts), format_.temporary_bytes(file_layout, counts)
        if not force:
            check_disk_space(output, n_bytes - before.n_tokens * file_layout.row_bytes, n_temporary)
        if not writer.progress.is_laid_out:
            _lay_out(format_, writer, file_layout, progress)
        if report is not None:
            report(describe_work(batches, output, format_size(n_bytes, n_temporary), before))
        count = StageCounter(progress, "embedding", counts.n_tokens, before.n_tokens)
        count(0)
        if writer.state is not None:
            batches.restore(writer.state)
        # The first call compiles and packs, which would distort the reported speed for short texts.
        batches.elmo.embed([["."]], layers=batches.layers)
        started = time.monotonic()
        n_skipped = _embed_pools(batches, writer, file_layout, count)
        writer.commit()
        format_.write(writer, file_layout)
    return EmbedSummary(
        counts.n_sentences, counts.n_tokens, counts.n_blank, time.monotonic() - started, before.n_tokens + n_skipped
    )


def check_files(text: Text, output: str | Path, overwrite: bool) -> OutputFormat:
    """Check, before any work is done, that a text can be read and its output written; return the output format.

    Raises:
        TextError, OutputError, ConfigError: As in :func:`embed_file`.
    """
    check_resumable_output(output, overwrite)
    paths = path_list(text.paths)
    if len(paths) != 1:
        raise ConfigError(f"embed_file reads one file, but the text has {len(paths)}.")
    check_input_file(paths[0], output)
    if text.documents:
        check_has_documents(paths[0])
    return output_format(output)


def _file_layout(embedder: BatchEmbedder, layout: Layout, text: Text) -> VectorFileLayout:
    """Return the layout of the output."""
    return VectorFileLayout(
        embedder.stored_layers,
        embedder.dim,
        stored_dtype(layout.dtype),
        pooled=embedder.pooler is not None,
        keys="sentences" if layout.use_sentence_keys else "numbers",
        fasta=text.kind == "fasta",
        with_sentences=not layout.forget_sentences,
        with_old_map=layout.include_sentence_indices,
    )


def _settings(embedder: BatchEmbedder, layout: VectorFileLayout, text: Text) -> dict[str, Any]:
    """Return everything except the text that affects the vectors; a run can only be resumed if it is the same."""
    settings = {
        **embedder.settings(),
        "elmokit": __version__,
        "layers": embedder.layers,
        "dtype": layout.dtype,
        "fasta": layout.fasta,
        "tokenizer": text.splitter_name,
        "batch": embedder.batch_size if embedder.elmo.start == "stateful" else embedder.batch_tokens,
    }
    if text.documents:
        settings["documents"] = True
    if embedder.pooler is not None:
        settings["pooling"] = embedder.pooler.fingerprint()
    return settings


def _lay_out(
    format_: OutputFormat, writer: ResumableWriter, layout: VectorFileLayout, progress: ProgressCallback | None
) -> None:
    """Allocate space for the vectors of all sentences. If interrupted, the text is kept, and this step is repeated."""
    # It is not continued, because the HDF5 headers would be elsewhere than in a file that was laid out in one go.
    count = StageCounter(progress, Stage("laying out the file", "sentences"), writer.progress.text.n_sentences)
    try:
        format_.allocate(writer, layout, count)
    except KeyboardInterrupt:
        writer.commit_text()
        raise
    writer.end_layout()


def _about(model: PretrainedBiLM, settings: dict[str, Any], layout: VectorFileLayout, format_: OutputFormat) -> str:
    """Return the file's metadata."""
    if format_.stores == "tokens":
        settings = settings | {"sentences": layout.with_sentences}
    return json.dumps({**settings, "model": model.source_name, "fingerprint": settings["model"]})


def _embed_pools(
    embedder: BatchEmbedder, writer: ResumableWriter, layout: VectorFileLayout, count: StageCounter
) -> int:
    """Write the remaining pools; return how many tokens of the first one an interrupted run had written."""
    first, n_to_skip, n_skipped_tokens = writer.progress.n_sentences, writer.progress.n_batches, 0
    offsets = writer.offsets()
    with BackgroundWriter(WRITES_BEHIND) as background:
        for pool in embedder.read_pools(writer.read_tokens(first)):
            places = offsets[first : first + len(pool)].tolist()
            for batch in embedder.plan(pool):
                if n_to_skip:
                    # Batches of a pool come in a fixed order, so a count is enough to know which of them were written.
                    n_to_skip -= 1
                    n_tokens = sum(len(pool[row]) for row in batch)
                    n_skipped_tokens += n_tokens
                    count(n_tokens)
                    continue
                for rows, vectors in embedder.compute(pool, batch):
                    # Writes and counts go through one queue: a batch is counted only after its vectors were written.
                    offsets_of_rows = [places[row] for row in rows]
                    background.put(partial(write_batch, writer, offsets_of_rows, vectors, layout.dtype))
                    for row in rows:
                        count(len(pool[row]))
                if embedder.state is None:  # else a batch is a pool, which is counted with the state after it
                    background.put(writer.end_batch)
            n_tokens = sum(map(len, pool))
            background.put(partial(writer.end_pool, len(pool), n_tokens, embedder.state))
            first += len(pool)
    return n_skipped_tokens


Pool = list[list[str]]
"""Consecutive sentences that are read together and then batched by length."""


class BatchEmbedder:
    """Computes the batches of pools.

    With ``start="stateful"``, it holds the state after the last batch; for documents, its reader does.
    """

    def __init__(self, embedder: Embedder, layout: Layout, documents: bool = False) -> None:
        check_elmo(embedder)
        self.elmo = embedder.elmo.elmo  # a SentenceEmbedder may have an ElmoModule
        self.layers = plain_layers(layout.layers)
        self.pooler: SentenceEmbedder | None = None
        if isinstance(embedder, SentenceEmbedder):
            if self.layers != "all":
                raise ConfigError(f"layers is {self.layers!r}, but a SentenceEmbedder has its own.")
            self.pooler, self.layers = embedder, embedder.pooling.layers
        self.batch_tokens, self.batch_size = layout.batch_tokens, layout.batch_size
        # Checks these three.
        self.elmo.embed([], layers=self.layers, batch_tokens=self.batch_tokens, batch_size=self.batch_size)
        self._state = self.elmo.zero_state(0) if self.elmo.start == "stateful" else None
        self._reader = document_reader(self.elmo, self.layers, self.batch_tokens) if documents else None

    @property
    def state(self) -> State | None:
        """The state after the last batch, if it is passed on."""
        return self._state if self._reader is None else self._reader.state

    def restore(self, state: State) -> None:
        """Continue from the state of an interrupted run."""
        if self._reader is None:
            self._state = state
        else:
            self._reader.state = state

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return self.elmo.output_dim if self.pooler is None else self.pooler.dim

    @property
    def stored_layers(self) -> tuple[int, ...] | None:
        """The numbers of the stored layers; None if a token or sentence has one vector ``(dim,)``."""
        if self.pooler is not None:
            return None
        if self.layers == "all":
            return tuple(range(self.elmo.n_layers))
        return None if isinstance(self.layers, (str, int)) else tuple(self.layers)

    def settings(self) -> dict[str, Any]:
        """Return everything except the text that affects the vectors of all layers."""
        settings = vector_settings(self.elmo.computer, self.elmo.start)
        if self.elmo.mix is not None:
            # Vectors of a learned mix depend on its weights, which the model's fingerprint does not include.
            settings["model"] += f"-{self.elmo.mix.checksum:08x}"
        return settings

    def read_pools(self, sentences: Iterable[list[str]]) -> Iterator[Pool]:
        """Yield the sentences in pools, from which batches are planned."""
        # In a stateful run, row r continues from row r of the previous batch, so batches are consecutive sentences. In
        # other runs, batches are planned over pools whose limits only depend on the text, not on time or interruptions,
        # so a resumed run computes the same batches and the same bits.
        if self.elmo.start == "stateful":
            return read_ahead(sentences, max_items=self.batch_size)
        n_batches = READ_AHEAD_BATCHES if self._reader is None else POOL_BATCHES
        return read_ahead(sentences, max_tokens=n_batches * self.batch_tokens)

    def plan(self, pool: Pool) -> list[list[int]]:
        """Return the batches of a pool, as row numbers. In a stateful run, the pool is one batch, in text order."""
        if self.state is not None:
            return [list(range(len(pool)))]
        return plan_batches(list(map(len, pool)), self.batch_tokens)

    def compute(self, pool: Pool, batch: list[int]) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield the vectors of a batch: the numbers of some rows, and ``(..., tokens or 1, dim)`` for each."""
        sentences: list[Sequence[str]] = [pool[row] for row in batch]
        if self.pooler is not None:
            sentences = [self.pooler.fold(tokens) for tokens in sentences]
        if self._reader is not None:
            begins = [False, *(not tokens for tokens in pool)]  # after a blank line
            for rows, some in self._reader.read(list(zip(begins, sentences, strict=False))):
                yield rows, self._pooled([sentences[row] for row in rows], some)
            if not pool[-1]:
                self._reader.state = self._reader.start
            return
        if self._state is not None:
            vectors, after = self.elmo.embed_batch(sentences, self._state.first_rows(len(batch)), self.layers)
            self._state = self._state.with_first_rows(after)
        else:
            vectors = embed_planned_batch(self.elmo, sentences, self.layers)
        yield batch, self._pooled(sentences, vectors)

    def _pooled(self, sentences: list[Sequence[str]], vectors: list[Vectors]) -> list[Vectors]:
        if self.pooler is None:
            return vectors
        return [self.pooler.pool(tokens, array)[None] for tokens, array in zip(sentences, vectors, strict=True)]


def write_batch(writer: ResumableWriter, offsets: list[int], vectors: list[Vectors], dtype: StoredDtype) -> None:
    """Write the vectors of a batch at their offsets."""
    for offset, array in zip(offsets, vectors, strict=True):
        writer.write_vectors(offset, as_stored(array, dtype))


def describe_work(embedder: BatchEmbedder, output: str | Path, size: str, progress: WriteProgress) -> str:
    """Describe in one line the size of the text and the output, and the precision."""
    line = f"{count_of(progress.text.n_sentences, 'sentence')}, {count_of(progress.text.n_tokens, 'token')}"
    if progress.n_tokens:
        line += f", {progress.n_tokens:,} already done"
    return f"{line}; {output} will take {size}; computed in {embedder.elmo.computer.network.computation()}"


class BackgroundWriter:
    """A context manager that calls functions in order in a thread; up to ``n`` of them may wait.

    An exception in a function is raised by a later :meth:`put` or at the end of the block; later functions are dropped.
    If the block ends without an exception, all functions have been called. After the block, even after another Ctrl-C,
    none is running, so files can be closed.
    """

    def __init__(self, n: int) -> None:
        self._n, self._is_dropping = n, False  # a slow disk must not fill the memory
        self._thread = ThreadPoolExecutor(1, "elmokit-write")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._wait(0)
        finally:
            # After an error in the block, queued work belongs to a result that will be discarded or resumed.
            self._is_dropping = True
            while not all(writing.done() for writing in self._pending):
                with contextlib.suppress(KeyboardInterrupt):  # one, or the block's error, is already being raised
                    wait(self._pending)
            self._thread.shutdown(wait=False)

    def put(self, write: Callable[[], None]) -> None:
        """Queue a function. Blocks while ``n`` are waiting."""
        self._wait(self._n)
        self._pending.append(self._thread.submit(self._call, write))

    def _wait(self, n: int) -> None:
        """Wait until at most ``n`` functions are waiting, or raise an error from one."""
        while len(self._pending) > n:
            self._pending[0].result()
            self._pending.popleft()  # now, so the end of the block waits for it after a Ctrl-C

    def _call(self, write: Callable[[], None]) -> None:
        # No writes after a failed one, because a journal must not count them.
        if not self._is_dropping:
            try:
                write()
            except BaseException:
                self._is_dropping = True
                raise

"""Embed a file of sentences into a file of vectors.

The text is read first, and stored with the lengths of its sentences. So it is known where in the output the vectors of
a sentence belong, and batches are written in the order in which they are computed (by length), by a second thread.
Memory holds a few batches and the text of a pool.
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
from typing import Any

from elmokit.embedding.documents import POOL_BATCHES
from elmokit.embedding.elmo import Elmo, Vectors, check_elmo, document_reader, embed_planned_batch
from elmokit.embedding.fingerprint import vector_settings
from elmokit.embedding.outputs.output_format import (
    DatasetNames,
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
from elmokit.embedding.reading import Corpus
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.layer_selection import Layers, plain_layers
from elmokit.errors import ConfigError
from elmokit.formats.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, Stage, StageCounter, count_of
from elmokit.storage.text_files import check_input_file, check_not_input
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches, read_ahead
from elmokit.text.raw_lines import Wrapped
from elmokit.text.tokenize import split_tokens
from elmokit.version import __version__

WRITES_BEHIND = 1
"""One item evens out writes of different speed; each one more costs memory."""


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
    elmo: Elmo | SentenceEmbedder,
    source: str | Path,
    output: str | Path,
    *,
    layers: Layers = "all",
    documents: bool = False,
    dtype: StoredDtype = "float32",
    use_sentence_keys: bool = False,
    forget_sentences: bool = False,
    include_sentence_indices: bool = False,
    strict: bool = False,
    fasta: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    raw_language: str | None = None,
    wrapped: Wrapped = "auto",
    tokenized: bool = False,
    batch_tokens: int = 2048,
    batch_size: int = 64,
    overwrite: bool = False,
    force: bool = False,
    report: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
) -> EmbedSummary:
    """Embed a text file of one sentence per line into a file of vectors.

    The output has one row per line: in HDF5 a dataset, in Parquet and Arrow a row of the table. A blank line becomes an
    empty row, so that the numbers of rows are line numbers. docs/reference/vector-files.md describes each format.

    If the process is interrupted, call the function again with the same arguments to resume: computed batches are kept
    in the directory ``OUTPUT.partial``. The vectors come from the same batches as in an uninterrupted run.
    The text, which is kept there too, must be the same.

    Args:
        elmo: The model. With an :class:`Elmo`, each token gets its vectors; with a
            :class:`~elmokit.SentenceEmbedder`, each sentence gets one vector.
        source: A text file (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard input.
        output: The output, which appears when it is complete. Its extension chooses the format, such as ``.parquet``,
            ``.arrow`` or ``.npz``; ``.hdf5``, ``.h5`` or none is HDF5.
        layers: The layers to store, as in :meth:`Elmo.embed`. A ``SentenceEmbedder`` has its own.
        documents: Read each sentence after the sentences before it, up to a blank line or the end of the text, as
            ``Elmo.embed_documents`` does. A blank line has an empty row, in raw text too.
        dtype: Type of the stored numbers. "float16" halves the file.
        use_sentence_keys: In HDF5, name the datasets by their sentences instead of line numbers.
        forget_sentences: Do not store the sentences (in HDF5, their map to line numbers). In HDF5 they are
            ``sentence_to_index``, which maps each sentence to its number. A sentence that occurs on several lines is
            mapped to the last, as in AllenNLP. Datasets named by sentences need no map. In other formats the sentences
            are ``tokens``.
        include_sentence_indices: In HDF5, store the map from sentences to numbers under its old name,
            ``sentence_indices``, too.
        strict: Refuse blank lines, which otherwise become empty rows.
        fasta: The text is in FASTA format: each residue is a token, and sequences are named by identifier.
        tokenize: Splits a line into tokens.
        raw_language: The language of raw text, such as "en". Each line is then split into sentences and tokens, as by
            :func:`elmokit.tokenize`, and each sentence gets a row. None: the source is tokenized, one sentence per
            line.
        wrapped: Whether the lines of raw text are wrapped: "yes" joins them to paragraphs, "no" reads them one by one,
            and "auto" decides by the first lines, and says so.
        tokenized: Read the text as tokenized though it looks raw, which is otherwise an error.
        batch_tokens: Positions per batch, unless the start is stateful. As in :meth:`Elmo.embed`.
        batch_size: Sentences per batch if the start is stateful.
        overwrite: Start anew: replace an existing or partial output.
        force: Start even if the disk seems too small for the output.
        report: Called before computing, with a line that says how much there is to do and how large the output will be.
        progress: Called with the number of sentences while the text is read and the output laid out, then of tokens.

    Returns:
        The numbers of sentences and tokens, and the time.

    Raises:
        TextError: The text cannot be read or is not UTF-8; or, with ``strict``, a line is blank; or a sentence is too
            long for the name of a dataset; or the text is not the one that the interrupted run had embedded.
        OutputError: The output exists, has the extension of another format, cannot be written, or will not fit; or
            there is a partial output of other settings.
        ConfigError: A layer does not exist, a batch size is below 1, the format cannot have the requested names, or
            ``documents`` is combined with ``fasta`` or the start "stateful".
        MissingExtraError: The output is Parquet or Arrow, and pyarrow is not installed; or a tokenizer is not.

    Example:
        >>> from elmokit import Elmo
        >>> from elmokit.storage.progress import ProgressBar
        >>> with ProgressBar("tokens") as bar:
        ...     embed_file(Elmo.from_pretrained(), "corpus.txt", "vectors.hdf5", dtype="float16", progress=bar)
    """
    check_resumable_output(output, overwrite)
    check_input_file(source, output)
    keys: DatasetNames = "sentences" if use_sentence_keys else "numbers"
    dtype = stored_dtype(dtype)
    format_ = output_format(output)
    # Whatever is wrong with the arguments is found here, so that a mistake leaves no partial output behind.
    embedder = BatchEmbedder(elmo, layers, batch_tokens, batch_size, documents)
    if (weights := embedder.elmo.model.source) is not None:
        check_not_input(output, [weights])
    layout = VectorFileLayout(
        embedder.stored_layers,
        embedder.dim,
        dtype,
        pooled=embedder.pooler is not None,
        keys=keys,
        fasta=fasta,
        with_sentences=not forget_sentences,
        with_old_map=include_sentence_indices,
    )
    format_.check(layout)
    corpus = Corpus(source, fasta, strict, tokenize, raw_language, wrapped, tokenized, documents)
    settings = _settings(embedder, layout, corpus)
    layout = replace(layout, about=_about(embedder.elmo.model, settings, layout, format_))
    names = {"keys": keys, "sentences": layout.with_sentences, "sentence_indices": layout.with_old_map}
    with open_resumable(output, settings | names, overwrite) as writer:
        text = writer.read_text(corpus, progress)
        before = writer.progress
        n_bytes, n_temporary = format_.file_bytes(layout, text), format_.temporary_bytes(layout, text)
        if not force:
            check_disk_space(output, n_bytes - before.n_tokens * layout.row_bytes, n_temporary)
        if not writer.progress.is_laid_out:
            _lay_out(format_, writer, layout, progress)
        if report is not None:
            report(describe_work(embedder, output, format_size(n_bytes, n_temporary), before))
        count = StageCounter(progress, "embedding", text.n_tokens, before.n_tokens)
        count(0)
        if writer.state is not None:
            embedder.state = writer.state
        # The first call compiles and packs, which would spoil the reported speed of a short text.
        embedder.elmo.embed([["."]], layers=embedder.layers)
        started = time.monotonic()
        n_skipped = _embed_pools(embedder, writer, layout, count)
        writer.commit()
        format_.write(writer, layout)
    return EmbedSummary(
        text.n_sentences, text.n_tokens, text.n_blank, time.monotonic() - started, before.n_tokens + n_skipped
    )


def _settings(embedder: BatchEmbedder, layout: VectorFileLayout, corpus: Corpus) -> dict[str, Any]:
    """Return everything but the text that the vectors depend on; an interrupted run is resumed only with the same."""
    settings = {
        **embedder.settings(),
        "elmokit": __version__,
        "layers": embedder.layers,
        "dtype": layout.dtype,
        "fasta": corpus.fasta,
        "tokenizer": corpus.tokenizer,
        "batch": embedder.batch_size if embedder.elmo.start == "stateful" else embedder.batch_tokens,
    }
    if embedder.documents:
        settings["documents"] = True
    if embedder.pooler is not None:
        settings["pooling"] = embedder.pooler.fingerprint()
    return settings


def _lay_out(
    format_: OutputFormat, writer: ResumableWriter, layout: VectorFileLayout, progress: ProgressCallback | None
) -> None:
    """Make room for the vectors of all sentences. If that is interrupted, the text is kept, and it is done again."""
    # Not continued: the headers of HDF5 would be elsewhere than in a file that was laid out at once.
    count = StageCounter(progress, Stage("laying out the file", "sentences"), writer.progress.text.n_sentences)
    try:
        format_.allocate(writer, layout, count)
    except KeyboardInterrupt:
        writer.commit_text()
        raise
    writer.end_layout()


def _about(model: PretrainedBiLM, settings: dict[str, Any], layout: VectorFileLayout, format_: OutputFormat) -> str:
    """Return what the file says about itself."""
    if format_.stores == "tokens":
        settings = settings | {"sentences": layout.with_sentences}
    return json.dumps({**settings, "model": model.source_name, "fingerprint": settings["model"]})


def _embed_pools(
    embedder: BatchEmbedder, writer: ResumableWriter, layout: VectorFileLayout, count: StageCounter
) -> int:
    """Write all pools that are left; return how many tokens of the first one an interrupted run had written."""
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
                    background.put(partial(write_batch, writer, [places[row] for row in rows], vectors, layout.dtype))
                    for row in rows:
                        count(len(pool[row]))
                if embedder.state is None:  # else a batch is a pool, and counts together with the state after it
                    background.put(writer.end_batch)
            background.put(partial(writer.end_pool, len(pool), sum(map(len, pool)), embedder.state))
            first += len(pool)
    return n_skipped_tokens


Pool = list[list[str]]
"""Consecutive sentences that are read together, and then batched by length."""


class BatchEmbedder:
    """Computes the batches of pools.

    With ``start="stateful"`` it holds the state after the last batch; of documents, that from which the next sentence
    is read.
    """

    def __init__(
        self,
        elmo: Elmo | SentenceEmbedder,
        layers: Layers,
        batch_tokens: int,
        batch_size: int,
        documents: bool = False,
    ) -> None:
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
        self.documents = documents
        if documents:
            self.state = document_reader(elmo, layers, batch_tokens).state

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
        settings = vector_settings(self.elmo.computer, self.elmo.start)
        if self.elmo.mix is not None:
            # Vectors of a learned mix depend on its weights, which the fingerprint of the model does not include.
            settings["model"] += f"-{self.elmo.mix.checksum:08x}"
        return settings

    def read_pools(self, sentences: Iterable[list[str]]) -> Iterator[Pool]:
        """Yield the sentences in pools, from which batches are planned."""
        # In a stateful run, row r continues from row r of the batch before, so batches are consecutive sentences of
        # the text. In other runs batches are planned over pools whose limits depend on the text alone, never on time
        # or on where a run was interrupted: a resumed run computes the same batches, and so the same bits.
        if self.elmo.start == "stateful":
            return read_ahead(sentences, max_items=self.batch_size)
        n_batches = POOL_BATCHES if self.documents else READ_AHEAD_BATCHES
        return read_ahead(sentences, max_tokens=n_batches * self.batch_tokens)

    def plan(self, pool: Pool) -> list[list[int]]:
        """Return the batches of a pool, as row numbers. If a state is passed on, the pool is one, in text order."""
        if self.state is not None:
            return [list(range(len(pool)))]
        return plan_batches(list(map(len, pool)), self.batch_tokens)

    def compute(self, pool: Pool, batch: list[int]) -> Iterator[tuple[list[int], list[Vectors]]]:
        """Yield vectors of a batch of a pool: the numbers of some rows, and ``(..., tokens or 1, dim)`` for each."""
        sentences: list[Sequence[str]] = [pool[row] for row in batch]
        if self.pooler is not None:
            sentences = [self.pooler.fold(tokens) for tokens in sentences]
        if self.documents:
            assert self.state is not None
            reader = document_reader(self.elmo, self.layers, self.batch_tokens)
            reader.state = self.state
            begins = [False, *(not tokens for tokens in pool)]  # after a blank line
            for rows, some in reader.read(list(zip(begins, sentences, strict=False))):
                yield rows, self._pooled([sentences[row] for row in rows], some)
            self.state = reader.state if pool[-1] else reader.start
            return
        if self.state is not None:
            vectors, after = self.elmo.embed_batch(sentences, self.state.first_rows(len(batch)), self.layers)
            self.state = self.state.with_first_rows(after)
        else:
            vectors = embed_planned_batch(self.elmo, sentences, self.layers)
        yield batch, self._pooled(sentences, vectors)

    def _pooled(self, sentences: list[Sequence[str]], vectors: list[Vectors]) -> list[Vectors]:
        if self.pooler is None:
            return vectors
        return [self.pooler.pool(tokens, array)[None] for tokens, array in zip(sentences, vectors, strict=True)]


def write_batch(writer: ResumableWriter, offsets: list[int], vectors: list[Vectors], dtype: StoredDtype) -> None:
    """Write the vectors of a batch to where they belong."""
    for offset, array in zip(offsets, vectors, strict=True):
        writer.write_vectors(offset, as_stored(array, dtype))


def describe_work(embedder: BatchEmbedder, output: str | Path, size: str, progress: WriteProgress) -> str:
    """Say in one line how much there is to do, how large the output will be, and in which precision it is computed."""
    line = f"{count_of(progress.text.n_sentences, 'sentence')}, {count_of(progress.text.n_tokens, 'token')}"
    if progress.n_tokens:
        line += f", {progress.n_tokens:,} already done"
    return f"{line}; {output} will take {size}; computed in {embedder.elmo.computer.network.computation()}"


class BackgroundWriter:
    """A context manager that calls functions one after the other in a thread; up to ``n`` of them may wait.

    An exception of a function is raised by a later :meth:`put`, or at the end of the block; later ones are dropped. If
    the block ends without an exception, all have been called. However it ends, also by another Ctrl-C, none is running
    any more, so that the files it writes to can be closed.
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
            # After an error in the block, what was queued belongs to a result that will be discarded or resumed.
            self._is_dropping = True
            while not all(writing.done() for writing in self._pending):
                with contextlib.suppress(KeyboardInterrupt):  # one is being raised already, or the block's error is
                    wait(self._pending)
            self._thread.shutdown(wait=False)

    def put(self, write: Callable[[], None]) -> None:
        """Call a function after those before it. Blocks while ``n`` are waiting."""
        self._wait(self._n)
        self._pending.append(self._thread.submit(self._call, write))

    def _wait(self, n: int) -> None:
        """Wait until no more than ``n`` functions are left besides the one that runs, or raise an error of one."""
        while len(self._pending) > n:
            self._pending[0].result()
            self._pending.popleft()  # now, so that the end of the block waits for it after a Ctrl-C

    def _call(self, write: Callable[[], None]) -> None:
        # No later write follows a failed one: a journal must not count them.
        if not self._is_dropping:
            try:
                write()
            except BaseException:
                self._is_dropping = True
                raise

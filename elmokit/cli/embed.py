"""``elmokit embed``: compute ELMo vectors for a text file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
from click.core import ParameterSource

from elmokit.cli.command import MORE, Flag
from elmokit.cli.parameters import DocumentOptions, Model, Output, TextOptions, Threads
from elmokit.cli.running import check_apart, print_note, resumable_command
from elmokit.embedding.outputs.layout import Layout
from elmokit.errors import ConfigError
from elmokit.formats.opening import ElmoOpening
from elmokit.pretrained.pooling_names import PoolingName

MIN_TOKENS_FOR_RATE = 20_000
"""For shorter texts, opening and closing files takes most of the time, so the rate would be misleading."""


@dataclass(frozen=True)
class VectorOptions:
    """Options that choose the vectors to store."""

    all_: bool = False
    top: bool = False
    average: bool = False
    layers: tuple[int, ...] | None = None
    pool: PoolingName | None = None

    def chosen_layers(self) -> Any:
        """Return the chosen layers, or None. Only one way of choosing them is allowed."""
        flags = {"layers": self.layers is not None, "all": self.all_, "top": self.top, "average": self.average}
        chosen = [name for name, is_given in flags.items() if is_given]
        if not chosen:
            return None
        check_apart(f"--{chosen[0]}", True, {f"--{name}": True for name in chosen[1:]})
        return chosen[0] if self.layers is None else self.layers


@dataclass(frozen=True)
class RunOptions:
    """Options that control how the command runs."""

    overwrite: Annotated[bool, Flag("Start over: replace an existing or partial output.")] = False
    force: Annotated[bool, Flag("Start even if the output may not fit on the disk.", MORE)] = False
    threads: Threads = None


def embed(
    text: Path,
    out: Output,
    *,
    model: Model = None,
    reading: DocumentOptions,
    vectors: VectorOptions,
    opening: ElmoOpening,
    layout: Layout,
    running: RunOptions,
) -> None:
    """Compute ELMo vectors for TEXT and store them in OUT.

    With --raw, TEXT is split into sentences, and each sentence gets a row. Otherwise, it must have one sentence per
    line, with spaces between tokens: "It rained , so we left ." It may be compressed (.gz, .xz, .zst), or - for
    standard input.

    The extension of OUT sets the format: .hdf5, .h5 or none for HDF5, with one dataset per line, named by line number
    from 0; .parquet or .arrow for a table with one row per line; .npz for NumPy. Partial output is kept in the
    directory OUT.partial. If the command is interrupted, run it again to resume.

    Args:
        all_: All layers: (layers, tokens, dim).  [default]
        top: The top layer: (tokens, dim).
        average: The mean of all layers: (tokens, dim).
        layers: The given layers, where 0 is context-free: (layers, tokens, dim).
        pool: One vector per sentence, from layer 0 or the chosen layers: the mean over tokens (mean), the mean with
            less weight for frequent words (sif), the model's whitening (whitened) or trained head (trained), or the
            first of whitened, sif and mean that the model supports (auto).
        dtype, overwrite:

    More options:
        documents: Read each sentence in the context of the preceding ones, up to a blank line or the end of the text,
            like Elmo.embed_documents.
        threads: Number of CPU threads.  [default: all cores]

    Models and programs of 2018:
        options, token_embeddings, vocabulary, start, exact_marks, batch_size:
        use_sentence_keys, forget_sentences, include_sentence_indices:

    Examples:
        elmokit embed essay.txt vectors.npz --raw
        elmokit embed corpus.txt vectors.hdf5 --dtype float16 --model original
        elmokit embed corpus.txt sentences.parquet --pool whitened
    """
    from elmokit.embedding.corpus import check_files, embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.outputs.writer import has_partial_output
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.engine.threads import set_threads
    from elmokit.storage.progress import ProgressBar, count_of

    layers = vectors.chosen_layers()
    _check_names(layout, reading)
    _check_batches(opening.start)
    corpus = reading.text(text, refuse_raw=True)
    check_files(corpus, out, running.overwrite)  # before a model is downloaded
    if running.threads is not None:
        set_threads(running.threads)
    elmo = Elmo.from_pretrained(model, **vars(opening))
    embedder: Elmo | SentenceEmbedder = elmo
    if vectors.pool is not None:
        embedder = SentenceEmbedder.by_name(elmo, vectors.pool, layers)
    elif layers is not None:
        layout = replace(layout, layers=layers)
    with resumable_command(lambda: has_partial_output(out)), ProgressBar("tokens") as progress:
        summary = embed_file(
            embedder,
            corpus,
            out,
            layout,
            overwrite=running.overwrite,
            force=running.force,
            report=progress.write,
            progress=progress,
        )
    if not summary.n_sentences:
        click.echo(f"{text} is empty, so {out} has no vectors.", err=True)
    blank = f" ({summary.n_blank} blank)" if summary.n_blank else ""
    rate = f", {summary.tokens_per_second:,.0f} tokens/s" if summary.n_tokens >= MIN_TOKENS_FOR_RATE else ""
    print_note(
        f"{out}: {count_of(summary.n_sentences, 'sentence')}{blank}, {count_of(summary.n_tokens, 'token')}{rate}"
    )


def _check_names(layout: Layout, reading: TextOptions) -> None:
    """Refuse dataset names that exclude each other."""
    stored = {
        "--include-sentence-indices": layout.include_sentence_indices,
        "--use-sentence-keys": layout.use_sentence_keys,
    }
    check_apart("--forget-sentences", layout.forget_sentences, stored)
    check_apart("--text-kind fasta", reading.text_kind == "fasta", stored)


def _check_batches(start: str) -> None:
    """Refuse a batch size that has no effect."""
    idle, instead = ("batch_tokens", "batch-size") if start == "stateful" else ("batch_size", "batch-tokens")
    if click.get_current_context().get_parameter_source(idle) is ParameterSource.COMMANDLINE:
        raise ConfigError(f"--{idle.replace('_', '-')} has no effect with --start {start}; use --{instead}.")

"""``elmokit embed``: compute ELMo vectors for a text file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from elmokit.cli.common import (
    PRECISION_HELP,
    PRECISIONS,
    language_option,
    model_option,
    options_option,
    raw_language,
    raw_option,
    resumable_command,
    this_command,
)
from elmokit.cli.options import GroupedCommand, GroupedOption, OutputPath, ThreadCount, layer_numbers
from elmokit.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


def _option(group: str, *names: str, **settings: Any) -> Callable[[Command], Command]:
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_vectors = partial(_option, "Vectors")
_text = partial(_option, "Text")
_names = partial(_option, "Sentences and their names")
_speed = partial(_option, "Speed and memory")
_run = partial(_option, "Interrupted runs and existing files")


@click.command(cls=GroupedCommand)
@click.argument("source", metavar="TEXT", type=click.Path(path_type=Path, allow_dash=True))
@click.argument("output", metavar="OUT", type=OutputPath())
@model_option
@options_option
@click.option("--token-embeddings", help="HDF5 file of precomputed token vectors, one row per word.")
@click.option("--vocabulary", help="Word list of --token-embeddings, or of a word-input model.")
@_vectors("--all", "all_layers", is_flag=True, help="All layers: (layers, tokens, dim).  [default]")
@_vectors("--top", is_flag=True, help="The top layer: (tokens, dim).")
@_vectors("--average", is_flag=True, help="The mean of all layers: (tokens, dim).")
@_vectors("--layers", metavar="N[,N...]", help="The given layers, where 0 is context-free: (layers, tokens, dim).")
@_vectors(
    "--pool",
    type=click.Choice(["mean", "sif", "whitened"]),
    help="One vector per sentence: the mean of layer 0 or of the chosen layers, the mean with less weight for frequent "
    "words (sif), or the pooling and whitening that are stored with the model (whitened).",
)
@_vectors(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the stored numbers.",
)
@_vectors(
    "--state",
    type=click.Choice(["warm", "zero", "stateful"]),
    default="warm",
    show_default=True,
    help="LSTM state that each sentence starts from: a fixed initial state, zeros, or (stateful) the state after the "
    "previous batch, as in AllenNLP; vectors then depend on preceding lines.",
)
@raw_option
@language_option
@_text("--tokenize", is_flag=True, help="TEXT has one raw sentence on each line: split it into tokens (English only).")
@_text(
    "--fasta",
    is_flag=True,
    help="TEXT is a FASTA file: each residue is a token, sequences are named by identifier.",
)
@_text("--strict", is_flag=True, help="Refuse blank lines. By default they become empty rows.")
@_names("--forget-sentences", is_flag=True, help="Do not store the sentences (in HDF5, their map to line numbers).")
@_names("--use-sentence-keys", is_flag=True, help="HDF5: name datasets by their sentences.")
@_names(
    "--include-sentence-indices", is_flag=True, help="HDF5: store the map under its old name, sentence_indices, too."
)
@_speed("--batch-tokens", default=2048, show_default=True, help="Positions per batch (--state warm or zero).")
@_speed("--batch-size", default=64, show_default=True, help="Sentences per batch (--state stateful).")
@_speed("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
@_speed("--precision", type=PRECISIONS, help=PRECISION_HELP)
@_speed("--threads", type=ThreadCount(), help="Number of CPU threads for computing.  [default: all cores]")
@_run("--force", is_flag=True, help="Start even if the disk seems too small for OUT.")
@_run("--overwrite", is_flag=True, help="Start anew: replace an existing or partial output.")
def embed(
    source: Path,
    output: Path,
    model: str | None,
    options: str | None,
    token_embeddings: str | None,
    vocabulary: str | None,
    all_layers: bool,
    top: bool,
    average: bool,
    layers: str | None,
    pool: Any,
    dtype: Any,
    state: Any,
    batch_tokens: int,
    batch_size: int,
    device: str | None,
    precision: Any,
    raw: bool,
    language: str | None,
    tokenize: bool,
    fasta: bool,
    strict: bool,
    forget_sentences: bool,
    use_sentence_keys: bool,
    include_sentence_indices: bool,
    threads: int | None,
    force: bool,
    overwrite: bool,
) -> None:
    """Compute ELMo vectors for TEXT and store them in OUT.

    TEXT has one sentence per line with space-separated tokens: "It rained , so we left ." For other text, pass --raw: a
    line can then be a paragraph, and each sentence gets a row. TEXT may be compressed (.gz, .xz, .zst), or - for
    standard input.

    The extension of OUT chooses the format: .hdf5, .h5 or none for HDF5, with one dataset per line, named by the line
    number from 0; .parquet or .arrow for a table with one row per line; .npz for NumPy. Until OUT is complete, it grows
    in the directory OUT.partial. If the command is interrupted, run it again to resume.

    \b
    Examples:
      elmokit embed corpus.txt vectors.hdf5 --dtype float16
      elmokit embed article.txt vectors.hdf5 --raw --top --model original
      elmokit embed corpus.txt sentences.parquet --pool whitened
    """
    from elmokit.embedding.corpus import embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.outputs.table import output_format
    from elmokit.embedding.outputs.writer import check_resumable_output, partial_folder
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.engine.threads import set_threads
    from elmokit.storage.progress import ProgressBar
    from elmokit.storage.text_files import check_input_file
    from elmokit.text.tokenize import get_tokenizer

    check_resumable_output(output, overwrite)  # before a model is downloaded
    check_input_file(source, output)
    output_format(output)
    flags = {"layers": layers is not None, "all": all_layers, "top": top, "average": average}
    chosen = [name for name, is_given in flags.items() if is_given]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} both choose layers. Pass one of them.")
    if forget_sentences and include_sentence_indices:
        raise ConfigError("--forget-sentences omits the map that --include-sentence-indices stores. Pass one of them.")
    if fasta and (raw or tokenize or use_sentence_keys or include_sentence_indices):
        raise ConfigError(
            "--fasta cannot be combined with --raw, --tokenize, --use-sentence-keys or --include-sentence-indices."
        )
    if raw and (tokenize or strict):
        raise ConfigError("--raw cannot be combined with --tokenize or --strict: its rows are sentences, not lines.")
    language = raw_language(raw, language)
    if threads is not None:
        set_threads(threads)
    elmo = Elmo.from_pretrained(
        model,
        options=options,
        token_embeddings=token_embeddings,
        vocabulary=vocabulary,
        start=state,
        device=device,
        precision=precision,
    )
    selected: Any = (chosen[0] if chosen else None) if layers is None else layer_numbers(layers)
    embedder: Elmo | SentenceEmbedder = elmo
    if pool is not None:
        embedder = SentenceEmbedder.by_name(elmo, pool, tuple(selected) if layers is not None else selected)
    is_partial = partial_folder(output).exists
    with resumable_command(lambda: this_command() if is_partial() else None), ProgressBar("tokens") as progress:
        summary = embed_file(
            embedder,
            source,
            output,
            layers="all" if selected is None or pool is not None else selected,
            dtype=dtype,
            use_sentence_keys=use_sentence_keys,
            forget_sentences=forget_sentences,
            include_sentence_indices=include_sentence_indices,
            strict=strict,
            fasta=fasta,
            tokenize=get_tokenizer("treebank" if tokenize else "spaces"),
            raw_language=language,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            overwrite=overwrite,
            force=force,
            report=progress.write,
            progress=progress,
        )
    blank = f" ({summary.n_blank} blank)" if summary.n_blank else ""
    click.echo(
        f"{output}: {summary.n_sentences:,} sentences{blank}, {summary.n_tokens:,} tokens, "
        f"{summary.tokens_per_second:,.0f} tokens/s",
        err=True,
    )

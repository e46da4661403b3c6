"""``elmokit embed``: compute ELMo vectors for a text file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from elmokit.cli.parameters import (
    Device,
    Language,
    Model,
    ModelOptions,
    ModelPrecision,
    Output,
    Pool,
    Raw,
    Start,
    Threads,
)
from elmokit.cli.running import check_apart, print_note, raw_language, resumable_command
from elmokit.errors import ConfigError


def embed(
    text: Path,
    out: Output,
    *,
    model: Model = None,
    options: ModelOptions = None,
    token_embeddings: str | None = None,
    vocabulary: str | None = None,
    all_: bool = False,
    top: bool = False,
    average: bool = False,
    layers: tuple[int, ...] | None = None,
    pool: Pool | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    start: Start = "warm",
    raw: Raw = False,
    language: Language = None,
    tokenize: bool = False,
    fasta: bool = False,
    strict: bool = False,
    forget_sentences: bool = False,
    use_sentence_keys: bool = False,
    include_sentence_indices: bool = False,
    batch_tokens: int = 2048,
    batch_size: int = 64,
    device: Device = None,
    precision: ModelPrecision = None,
    threads: Threads = None,
    overwrite: bool = False,
    force: bool = False,
) -> None:
    """Compute ELMo vectors for TEXT and store them in OUT.

    TEXT has one sentence per line with space-separated tokens: "It rained , so we left ." For other text, pass --raw: a
    line can then be a paragraph, and each sentence gets a row. TEXT may be compressed (.gz, .xz, .zst), or - for
    standard input.

    The extension of OUT chooses the format: .hdf5, .h5 or none for HDF5, with one dataset per line, named by the line
    number from 0; .parquet or .arrow for a table with one row per line; .npz for NumPy. Until OUT is complete, it grows
    in the directory OUT.partial. If the command is interrupted, run it again to resume.

    Vectors:
        all_: All layers: (layers, tokens, dim).  [default]
        top: The top layer: (tokens, dim).
        average: The mean of all layers: (tokens, dim).
        layers: The given layers, where 0 is context-free: (layers, tokens, dim).
        pool: One vector per sentence: the mean of layer 0 or of the chosen layers, the mean with less weight for
            frequent words (sif), or what is stored with the model: that and a whitening (whitened), or a head that was
            trained on pairs of sentences (trained).
        dtype: Type of the stored numbers.
        start: LSTM state that each sentence starts from: the model's start state, zeros, or (stateful) the state after
            the previous batch, as in AllenNLP; vectors then depend on preceding lines.

    Text:
        tokenize: TEXT has one raw sentence on each line: split it into tokens (English only).
        fasta: TEXT is a FASTA file: each residue is a token, sequences are named by identifier.
        strict: Refuse blank lines. By default they become empty rows.

    Sentences and their names:
        forget_sentences: Do not store the sentences (in HDF5, their map to line numbers).
        use_sentence_keys: HDF5: name datasets by their sentences.
        include_sentence_indices: HDF5: store the map under its old name, sentence_indices, too.

    Speed and memory:
        batch_tokens: Positions per batch (--start warm or zero).
        batch_size: Sentences per batch (--start stateful).
        device:
        precision:
        threads: Number of CPU threads for computing.  [default: all cores]

    Interrupted runs and existing files:
        overwrite: Start anew: replace an existing or partial output.
        force: Start even if the disk seems too small for OUT.

    Args:
        token_embeddings: HDF5 file of precomputed token vectors, one row per word.
        vocabulary: Word list of --token-embeddings, or of a word-input model.

    Examples:
        elmokit embed corpus.txt vectors.hdf5 --dtype float16
        elmokit embed article.txt vectors.hdf5 --raw --top --model original
        elmokit embed corpus.txt sentences.parquet --pool whitened
    """
    from elmokit.embedding.corpus import MIN_TOKENS_FOR_TRIAL, embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.outputs.output_format import output_format
    from elmokit.embedding.outputs.writer import check_resumable_output, has_partial_output
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.engine.threads import set_threads
    from elmokit.storage.progress import ProgressBar, count_of
    from elmokit.storage.text_files import check_input_file
    from elmokit.text.tokenize import get_tokenizer

    check_resumable_output(out, overwrite)  # before a model is downloaded
    check_input_file(text, out)
    output_format(out)
    flags = {"layers": layers is not None, "all": all_, "top": top, "average": average}
    chosen = [name for name, is_given in flags.items() if is_given]
    check_apart(f"--{chosen[0]}" if chosen else "", True, {f"--{name}": True for name in chosen[1:]})
    stored = {"--include-sentence-indices": include_sentence_indices, "--use-sentence-keys": use_sentence_keys}
    check_apart("--forget-sentences", forget_sentences, stored)
    check_apart("--fasta", fasta, {"--raw": raw, "--tokenize": tokenize, **stored})
    check_apart("--raw", raw, {"--tokenize": tokenize, "--strict": strict})
    idle, instead = ("batch_tokens", "batch-size") if start == "stateful" else ("batch_size", "batch-tokens")
    if click.get_current_context().get_parameter_source(idle) is ParameterSource.COMMANDLINE:
        raise ConfigError(f"--{idle.replace('_', '-')} has no effect with --start {start}; --{instead} has.")
    language = raw_language(raw, language)
    if threads is not None:
        set_threads(threads)
    elmo = Elmo.from_pretrained(
        model,
        options=options,
        token_embeddings=token_embeddings,
        vocabulary=vocabulary,
        start=start,
        device=device,
        precision=precision,
    )
    selected: Any = layers if layers is not None else chosen[0] if chosen else None
    embedder: Elmo | SentenceEmbedder = elmo
    if pool is not None:
        embedder = SentenceEmbedder.by_name(elmo, pool, selected)
        selected = None
    with resumable_command(lambda: has_partial_output(out)), ProgressBar("tokens") as progress:
        summary = embed_file(
            embedder,
            text,
            out,
            layers="all" if selected is None else selected,
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
    if not summary.n_sentences:
        click.echo(f"{text} is empty, so {out} has no vectors.", err=True)
    blank = f" ({summary.n_blank} blank)" if summary.n_blank else ""
    # Opening and closing files takes most of the time of a short text, so its rate says nothing about the model.
    rate = f", {summary.tokens_per_second:,.0f} tokens/s" if summary.n_tokens >= MIN_TOKENS_FOR_TRIAL else ""
    print_note(
        f"{out}: {count_of(summary.n_sentences, 'sentence')}{blank}, {count_of(summary.n_tokens, 'token')}{rate}"
    )

"""``elmokit embed``: compute ELMo vectors for a text file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from elmokit.cli.parameters import Language, Model, Output, Raw, Threads
from elmokit.cli.running import check_apart, print_note, raw_language, resumable_command
from elmokit.embedding.outputs.storing import Storing
from elmokit.errors import ConfigError
from elmokit.formats.opening import ElmoOpening
from elmokit.formats.pooling_names import PoolingName

MIN_TOKENS_FOR_RATE = 20_000
"""Opening and closing files takes most of the time of a shorter text, so its rate says nothing about the model."""


def embed(
    text: Path,
    out: Output,
    *,
    model: Model = None,
    raw: Raw = False,
    language: Language = None,
    all_: bool = False,
    top: bool = False,
    average: bool = False,
    layers: tuple[int, ...] | None = None,
    pool: PoolingName | None = None,
    tokenize: bool = False,
    threads: Threads = None,
    opening: ElmoOpening,
    storing: Storing,
) -> None:
    """Compute ELMo vectors for TEXT and store them in OUT.

    TEXT is raw with --raw: each of its sentences gets a row. Otherwise it has one sentence per line, with spaces
    between tokens: "It rained , so we left ." It may be compressed (.gz, .xz, .zst), or - for standard input.

    The extension of OUT chooses the format: .hdf5, .h5 or none for HDF5, with one dataset per line, named by the line
    number from 0; .parquet or .arrow for a table with one row per line; .npz for NumPy. Until OUT is complete, it grows
    in the directory OUT.partial. If the command is interrupted, run it again to resume.

    Args:
        all_: All layers: (layers, tokens, dim).  [default]
        top: The top layer: (tokens, dim).
        average: The mean of all layers: (tokens, dim).
        layers: The given layers, where 0 is context-free: (layers, tokens, dim).
        pool: One vector per sentence, of layer 0 or the chosen layers: the mean over tokens (mean), or with less weight
            for frequent words (sif); or what the model stores for sentences: a whitening (whitened), a head (trained).
            The first of whitened, sif and mean that the model has (auto).
        dtype, overwrite:

    More options:
        tokenize: TEXT has one raw sentence on each line: split it into tokens (English only).
        threads: Number of CPU threads for computing.  [default: all cores]

    Models and programs of 2018:
        options, token_embeddings, vocabulary, start, exact_marks, batch_size:
        use_sentence_keys, forget_sentences, include_sentence_indices, strict:

    Examples:
        elmokit embed essay.txt vectors.npz --raw
        elmokit embed corpus.txt vectors.hdf5 --dtype float16 --model original
        elmokit embed corpus.txt sentences.parquet --pool whitened
    """
    from elmokit.embedding.corpus import embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.outputs.output_format import output_format
    from elmokit.embedding.outputs.writer import check_resumable_output, has_partial_output
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.engine.threads import set_threads
    from elmokit.storage.progress import ProgressBar, count_of
    from elmokit.storage.text_files import check_input_file
    from elmokit.text.tokenize import get_tokenizer

    check_resumable_output(out, storing.overwrite)  # before a model is downloaded
    check_input_file(text, out)
    output_format(out)
    flags = {"layers": layers is not None, "all": all_, "top": top, "average": average}
    chosen = [name for name, is_given in flags.items() if is_given]
    check_apart(f"--{chosen[0]}" if chosen else "", True, {f"--{name}": True for name in chosen[1:]})
    stored = {
        "--include-sentence-indices": storing.include_sentence_indices,
        "--use-sentence-keys": storing.use_sentence_keys,
    }
    check_apart("--forget-sentences", storing.forget_sentences, stored)
    check_apart("--fasta", storing.fasta, {"--raw": raw, "--tokenize": tokenize, **stored})
    check_apart("--raw", raw, {"--strict": storing.strict, "--tokenized": storing.tokenized})
    check_apart("--tokenize", tokenize, {"--raw": raw, "--tokenized": storing.tokenized})
    start = opening.start
    idle, instead = ("batch_tokens", "batch-size") if start == "stateful" else ("batch_size", "batch-tokens")
    if click.get_current_context().get_parameter_source(idle) is ParameterSource.COMMANDLINE:
        raise ConfigError(f"--{idle.replace('_', '-')} has no effect with --start {start}; --{instead} has.")
    language = raw_language(raw, language, storing.wrapped)
    if threads is not None:
        set_threads(threads)
    elmo = Elmo.from_pretrained(model, **vars(opening))
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
            tokenize=get_tokenizer("treebank" if tokenize else "spaces"),
            raw_language=language,
            report=progress.write,
            progress=progress,
            **vars(storing),
        )
    if not summary.n_sentences:
        click.echo(f"{text} is empty, so {out} has no vectors.", err=True)
    blank = f" ({summary.n_blank} blank)" if summary.n_blank else ""
    rate = f", {summary.tokens_per_second:,.0f} tokens/s" if summary.n_tokens >= MIN_TOKENS_FOR_RATE else ""
    print_note(
        f"{out}: {count_of(summary.n_sentences, 'sentence')}{blank}, {count_of(summary.n_tokens, 'token')}{rate}"
    )

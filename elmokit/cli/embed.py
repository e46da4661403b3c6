"""``elmokit embed``: a file of sentences to a file of vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from elmokit.cli.common import model_option, options_option, overwrite_option
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from tqdm import tqdm

    from elmokit.corpus.embed import Storage
    from elmokit.corpus.hdf5 import Keys
    from elmokit.embedder import Layers


@click.command(short_help="A file of sentences to a file of vectors.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path, allow_dash=True))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@model_option
@options_option
@click.option("--token-embeddings", help="An HDF5 file of token vectors computed before, one row a word.")
@click.option("--vocabulary", help="The words of those rows, or of a word-input model, if they stand elsewhere.")
@click.option("--all", "which", flag_value="all", help="All layers: (layers, tokens, dim).  [default]")
@click.option("--top", "which", flag_value="top", help="The top layer: (tokens, dim).")
@click.option("--average", "which", flag_value="average", help="The mean of all layers: (tokens, dim).")
@click.option("--layers", metavar="N[,N...]", help="Chosen layers, 0 the context-free one: (layers, tokens, dim).")
@click.option(
    "--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True, help="In the file."
)
@click.option(
    "--state",
    type=click.Choice(["warm", "zero", "stateful"]),
    default="warm",
    show_default=True,
    help="What each sentence starts from; carry as in AllenNLP, where vectors depend on the lines before.",
)
@click.option("--batch-tokens", default=2048, show_default=True, help="Positions per batch (warm, zero).")
@click.option("--batch-size", default=64, show_default=True, help="Sentences per batch (carry).")
@click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
@click.option("--tokenize", is_flag=True, help="IN is raw text: split each line in the manner of the Penn Treebank.")
@click.option("--fasta", is_flag=True, help="IN holds proteins in FASTA: one residue a token, datasets by identifier.")
@click.option("--strict", is_flag=True, help="Refuse blank lines; else they become empty datasets.")
@click.option(
    "--forget-sentences",
    is_flag=True,
    help="Leave out the map from sentences to line numbers.",
)
@click.option("--use-sentence-keys", is_flag=True, help="Name datasets by the sentences.")
@click.option("--include-sentence-indices", is_flag=True, help="Write the map under its old name too.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads for computing.  [default: all cores]")
@click.option("--resume", is_flag=True, help="Go on where a run was killed or stopped; OUT is the same in the end.")
@click.option("--force", is_flag=True, help="Begin although OUT will not fit on its disk.")
@overwrite_option
def embed(
    source: Path,
    output: Path,
    model: str | None,
    options: str | None,
    token_embeddings: str | None,
    vocabulary: str | None,
    which: str | None,
    layers: str | None,
    dtype: str,
    state: str,
    batch_tokens: int,
    batch_size: int,
    device: str | None,
    tokenize: bool,
    fasta: bool,
    strict: bool,
    forget_sentences: bool,
    use_sentence_keys: bool,
    include_sentence_indices: bool,
    threads: int | None,
    resume: bool,
    force: bool,
    overwrite: bool,
) -> None:
    """Embed IN, one sentence per line with tokens split at blanks, into the HDF5 file OUT.

    OUT holds one dataset per line, named by its number from 0. IN may be compressed (.gz, .xz, .zst), or - for
    standard input. OUT grows in the folder OUT.partial, from which --resume goes on.
    """
    from elmokit.corpus.embed import embed_file
    from elmokit.corpus.plan import describe, output_bytes, refuse_too_large
    from elmokit.corpus.reading import read_sentences, survey
    from elmokit.corpus.unfinished import Done
    from elmokit.embedder import Elmo
    from elmokit.io.atomic import check_output_path
    from elmokit.io.text_files import check_input_file, split_tokens
    from elmokit.text.tokenize import treebank_tokenizer

    check_output_path(output, overwrite)
    check_input_file(source, output)
    if layers is not None and which is not None:
        raise ConfigError(f"--layers and --{which} both choose layers; give one of them.")
    if forget_sentences and include_sentence_indices:
        raise ConfigError("--forget-sentences leaves out the map that --include-sentence-indices writes; give one.")
    if fasta and (tokenize or use_sentence_keys or include_sentence_indices):
        raise ConfigError("--fasta goes without --tokenize, --use-sentence-keys and --include-sentence-indices.")
    chosen: Layers = which or "all"  # type: ignore[assignment]
    if layers is not None:
        try:
            chosen = [int(number) for number in layers.split(",")]
        except ValueError:
            raise ConfigError(f"--layers is {layers!r}; give layer numbers with commas between, such as 0,2.") from None
    storage: Storage = dtype  # type: ignore[assignment]
    keys: Keys = "sentences" if use_sentence_keys or fasta else "numbers"
    n_maps = 0 if forget_sentences or use_sentence_keys else 1 + include_sentence_indices
    tokenizer = treebank_tokenizer() if tokenize else split_tokens
    # A pipe can be read only once.
    found = None
    if source.is_file():
        with _progress_bar(None, " lines read") as bar:
            found = survey(source, fasta, strict, tokenizer, bar.update)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    elmo = Elmo.from_pretrained(
        model,
        options=options,
        token_embeddings=token_embeddings,
        vocabulary=vocabulary,
        start=state,  # type: ignore[arg-type]
        device=device,
    )
    with _progress_bar(found.n_tokens if found else None) as bar:

        def on_start(done: Done) -> None:
            if found is not None:
                n_bytes = output_bytes(elmo, found, chosen, storage, keys, n_maps)
                if not force:
                    refuse_too_large(output, n_bytes, done)
                sentences = read_sentences(source, fasta, strict, tokenizer)
                click.echo(describe(elmo, output, found, done, n_bytes, sentences, chosen, batch_tokens), err=True)
            bar.reset(bar.total)  # the clock starts here
            bar.initial = done.n_tokens
            bar.update(done.n_tokens)

        summary = embed_file(
            elmo,
            source,
            output,
            layers=chosen,
            dtype=storage,
            keys=keys,
            with_map=not forget_sentences,
            with_old_map=include_sentence_indices,
            strict=strict,
            fasta=fasta,
            tokenize=tokenizer,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            overwrite=overwrite,
            resume=resume,
            on_start=on_start,
            progress=bar.update,
        )
    blank = f" ({summary.n_blank} blank)" if summary.n_blank else ""
    click.echo(
        f"{output}: {summary.n_sentences:,} sentences{blank}, {summary.n_tokens:,} tokens, "
        f"{summary.tokens_per_second:,.0f} tokens/s",
        err=True,
    )


def _progress_bar(total: int | None, unit: str = " tokens") -> tqdm[NoReturn]:
    """How much is done, the rate and the time left on a terminal; nothing in a pipe."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, unit_scale=True, disable=not sys.stderr.isatty(), leave=False)

"""``elmokit allennlp-elmo``: the argument line of AllenNLP's ``allennlp elmo``; and its vocabulary script."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from elmokit.errors import ConfigError

LOG_SECONDS = 10.0


@click.command("allennlp-elmo", short_help="The argument line of AllenNLP's elmo command.")
@click.argument("source", metavar="INPUT", type=click.Path(path_type=Path, allow_dash=True))
@click.argument("output", metavar="OUTPUT", type=click.Path(path_type=Path))
@click.option("--all", "all_layers", is_flag=True, help="All layers: (layers, tokens, dim).")
@click.option("--top", is_flag=True, help="The top layer: (tokens, dim).")
@click.option("--average", is_flag=True, help="The mean of all layers: (tokens, dim).")
@click.option("--options-file", help="The options file of an HDF5 file, if it stands elsewhere.")
@click.option("--weight-file", default="original", show_default=True, help="A model's HDF5 file, folder or name.")
@click.option("--vocab-path", help="Taken and not looked at, as ever.")
@click.option("--batch-size", default=64, show_default=True, help="Lines per batch; vectors depend on it.")
@click.option("--cuda-device", default=-1, show_default=True, help="The number of a CUDA device; -1 for the CPU.")
@click.option("--file-friendly-logging", is_flag=True, help="Progress as lines, as when the output is no terminal.")
@click.option("--forget-sentences", is_flag=True, help="Leave out sentence_to_index.")
@click.option("--use-sentence-keys", is_flag=True, help="Name datasets by the sentences; implies the former.")
@click.option("--include-sentence-indices", is_flag=True, help="Write sentence_to_index as sentence_indices too.")
@click.option("--include-package", multiple=True, help="Taken and not looked at: there is nothing to extend.")
def allennlp_elmo(
    source: Path,
    output: Path,
    all_layers: bool,
    top: bool,
    average: bool,
    options_file: str | None,
    weight_file: str,
    vocab_path: str | None,
    batch_size: int,
    cuda_device: int,
    file_friendly_logging: bool,
    forget_sentences: bool,
    use_sentence_keys: bool,
    include_sentence_indices: bool,
    include_package: tuple[str, ...],
) -> None:
    """Embed INPUT, one tokenised sentence per line, into the HDF5 file OUTPUT, as `allennlp elmo` did.

    LSTM state is carried from batch to batch, so that vectors depend on the lines before (`elmokit embed` does
    without). OUTPUT is replaced, once it is complete. Blank lines are refused.
    """
    from elmokit.corpus.embed import embed_file
    from elmokit.embedder import Elmo, Layers
    from elmokit.io.atomic import check_output_path
    from elmokit.io.text_files import check_input_file

    modes: dict[Layers, bool] = {"all": all_layers, "top": top, "average": average}
    chosen = [mode for mode, given in modes.items() if given]
    if len(chosen) != 1:
        raise click.UsageError(f"Give one of --all, --top and --average; {len(chosen)} given.")
    if batch_size < 1:
        raise ConfigError(f"--batch-size is {batch_size}; at least 1.")
    check_output_path(output, overwrite=True)
    check_input_file(source, output)
    n_lines = _n_lines_none_blank(source) if source.is_file() else None  # a pipe can be read only once
    device = None if cuda_device < 0 else f"cuda:{cuda_device}"
    elmo = Elmo.from_pretrained(weight_file, options=options_file, start="stateful", device=device)
    as_lines = file_friendly_logging or not sys.stderr.isatty()
    with _Progress(n_lines, as_lines) as progress:
        summary = embed_file(
            elmo,
            source,
            output,
            layers=chosen[0],
            keys="sentences" if use_sentence_keys else "numbers",
            with_map=not forget_sentences,
            with_old_map=include_sentence_indices,
            tokenize=_split_line,
            strict=True,
            batch_size=batch_size,
            overwrite=True,
            progress=progress,
        )
    click.echo(f"{output}: {summary.n_sentences:,} sentences, {summary.n_tokens:,} tokens", err=True)


@click.command("allennlp-vocab", short_help="AllenNLP's script for vectors of a word list.")
@click.option("--vocab_path", "--vocab-path", required=True, type=click.Path(path_type=Path), help="A word a line.")
@click.option("--elmo_config", "--elmo-config", help="The options file, if it stands apart from the weights.")
@click.option("--elmo_weights", "--elmo-weights", required=True, help="A model's HDF5 file, folder or name.")
@click.option("--output_dir", "--output-dir", required=True, type=click.Path(path_type=Path), help="Made if need be.")
@click.option("--batch_size", "--batch-size", default=64, show_default=True, help="In units of 50 words.")
@click.option("--device", default=-1, show_default=True, help="The number of a CUDA device; -1 for the CPU.")
@click.option(
    "--use_custom_oov_token",
    "--use-custom-oov-token",
    type=bool,
    default=False,
    help="True if the first word need not be @@UNKNOWN@@.",
)
def allennlp_vocab(
    vocab_path: Path,
    elmo_config: str | None,
    elmo_weights: str,
    output_dir: Path,
    batch_size: int,
    device: int,
    use_custom_oov_token: bool,
) -> None:
    """Write a vocabulary's context-free vectors as text, as AllenNLP's create_elmo_embeddings_from_vocab.py did."""
    from elmokit.compat.allennlp import create_elmo_embeddings_from_vocab

    create_elmo_embeddings_from_vocab(
        vocab_path, elmo_config, elmo_weights, output_dir, batch_size, device, use_custom_oov_token
    )
    click.echo(f"wrote {output_dir}", err=True)


def _n_lines_none_blank(source: Path) -> int:
    """How many lines there are.

    Raises:
        ConfigError: some are blank; all of them are named, before any work is done.
    """
    from elmokit.io.text_files import read_lines

    n_lines = 0
    blank: list[int] = []
    for n_lines, line in enumerate(read_lines(source), start=1):
        if not line.strip():
            blank.append(n_lines - 1)
    if blank:
        numbers = ", ".join(map(str, blank[:20])) + (", ..." if len(blank) > 20 else "")
        raise ConfigError(f"{source} has {len(blank)} blank lines, counted from 0: {numbers}. Take them out.")
    return n_lines


def _split_line(line: str) -> list[str]:
    """Tokens between Unicode white space, as AllenNLP splits.

    Raises:
        ConfigError: the line is blank.
    """
    tokens = line.split()
    if not tokens:
        raise ConfigError("There is a blank line in the input. Take it out.")
    return tokens


class _Progress:
    """Sentences done: a bar on a terminal, or a line every ten seconds."""

    def __init__(self, n_lines: int | None, as_lines: bool, clock: Callable[[], float] = time.monotonic) -> None:
        from tqdm import tqdm

        self.bar = tqdm(total=n_lines, unit=" sentences", disable=as_lines, leave=False)
        self.as_lines, self.n_lines, self.clock = as_lines, n_lines, clock
        self.n_done, self.said = 0, clock()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def __call__(self, n_tokens: int) -> None:
        """One sentence more."""
        self.n_done += 1
        self.bar.update()
        if self.as_lines and self.clock() - self.said >= LOG_SECONDS:
            self.said = self.clock()
            of_all = "" if self.n_lines is None else f" of {self.n_lines:,}"
            click.echo(f"{self.n_done:,}{of_all} sentences", err=True)

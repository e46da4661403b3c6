"""``elmokit allennlp-elmo`` and ``allennlp-vocab``: drop-in replacements for two commands of AllenNLP."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.options import GroupedCommand, OutputPath
from elmokit.errors import ConfigError

OUTPUT = OutputPath(parent_must_exist=False)  # AllenNLP created the directory of an output


@click.command("allennlp-elmo", cls=GroupedCommand)
@click.argument("source", metavar="INPUT", type=click.Path(path_type=Path, allow_dash=True))
@click.argument("output", metavar="OUTPUT", type=OUTPUT)
@click.option("--all", "all_layers", is_flag=True, help="All layers: (layers, tokens, dim).")
@click.option("--top", is_flag=True, help="The top layer: (tokens, dim).")
@click.option("--average", is_flag=True, help="The mean of all layers: (tokens, dim).")
@click.option("--options-file", help="Options file of an HDF5 file, if it is not next to the weights.")
@click.option("--weight-file", default="original", show_default=True, help="HDF5 file, directory or name of a model.")
@click.option("--vocab-path", help="Accepted and ignored, as in AllenNLP.")
@click.option("--batch-size", default=64, show_default=True, help="Lines per batch. Vectors depend on it.")
@click.option("--cuda-device", default=-1, show_default=True, help="Number of the CUDA device; -1 for the CPU.")
@click.option("--file-friendly-logging", is_flag=True, help="Report progress as lines even on a terminal.")
@click.option("--forget-sentences", is_flag=True, help="Do not store sentence_to_index.")
@click.option("--use-sentence-keys", is_flag=True, help="Name datasets by their sentences. Implies --forget-sentences.")
@click.option("--include-sentence-indices", is_flag=True, help="Store sentence_to_index as sentence_indices too.")
@click.option("--include-package", multiple=True, help="Accepted and ignored: elmokit has no plugins.")
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
    """Embed INPUT, one tokenized sentence per line, into the HDF5 file OUTPUT, as `allennlp elmo` did.

    The LSTM state is carried from batch to batch, so vectors depend on the lines before (those of `elmokit embed` do
    not). An existing OUTPUT is replaced when the new one is complete. Blank lines are refused.

    \b
    Examples:
      elmokit allennlp-elmo sentences.txt elmo_layers.hdf5 --all
      elmokit allennlp-elmo sentences.txt top.hdf5 --top --weight-file weights.hdf5 --options-file options.json
    """
    from elmokit.embedding.corpus import embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.engine.layer_selection import Layers
    from elmokit.storage.atomic import check_output_path
    from elmokit.storage.progress import ProgressBar
    from elmokit.storage.text_files import can_reread, check_input_file

    modes: dict[Layers, bool] = {"all": all_layers, "top": top, "average": average}
    chosen = [mode for mode, given in modes.items() if given]
    if len(chosen) != 1:
        raise click.UsageError(f"Pass exactly one of --all, --top and --average; got {len(chosen)}.")
    if batch_size < 1:
        raise ConfigError(f"--batch-size is {batch_size}. It must be at least 1.")
    check_output_path(output, overwrite=True)
    check_input_file(source, output)
    if can_reread(source):
        _refuse_blank_lines(source)
    device = None if cuda_device < 0 else f"cuda:{cuda_device}"
    elmo = Elmo.from_pretrained(weight_file, options=options_file, start="stateful", device=device)
    with ProgressBar("tokens", lines=file_friendly_logging) as progress:
        summary = embed_file(
            elmo,
            source,
            output,
            layers=chosen[0],
            use_sentence_keys=use_sentence_keys,
            forget_sentences=forget_sentences,
            include_sentence_indices=include_sentence_indices,
            tokenize=_split_line,
            strict=True,
            batch_size=batch_size,
            overwrite=True,
            force=True,
            progress=progress,
        )
    click.echo(f"{output}: {summary.n_sentences:,} sentences, {summary.n_tokens:,} tokens", err=True)


@click.command("allennlp-vocab", cls=GroupedCommand)
@click.option(
    "--vocab_path", "--vocab-path", required=True, type=click.Path(path_type=Path), help="Word list, one word per line."
)
@click.option("--elmo_config", "--elmo-config", help="Options file, if it is not next to the weights.")
@click.option("--elmo_weights", "--elmo-weights", required=True, help="HDF5 file, directory or name of a model.")
@click.option(
    "--output_dir",
    "--output-dir",
    required=True,
    type=OUTPUT,
    help="Output directory. Created if missing.",
)
@click.option("--batch_size", "--batch-size", default=64, show_default=True, help="Batch size in units of 50 words.")
@click.option("--device", default=-1, show_default=True, help="Number of the CUDA device; -1 for the CPU.")
@click.option(
    "--use_custom_oov_token",
    "--use-custom-oov-token",
    type=bool,
    default=False,
    help="True if the first word may differ from @@UNKNOWN@@.",
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
    """Write a vocabulary's context-free vectors as text, as AllenNLP's create_elmo_embeddings_from_vocab.py did.

    \b
    Examples:
      elmokit allennlp-vocab --vocab_path vocab.txt --elmo_weights weights.hdf5 --output_dir vectors
      elmokit allennlp-vocab --vocab_path vocab.txt --elmo_weights original --output_dir vectors --device 0
    """
    from elmokit.compat.allennlp import create_elmo_embeddings_from_vocab

    create_elmo_embeddings_from_vocab(
        vocab_path, elmo_config, elmo_weights, output_dir, batch_size, device, use_custom_oov_token
    )
    click.echo(f"Wrote {output_dir}", err=True)


def _refuse_blank_lines(source: Path) -> None:
    """Check that no line of a file is blank.

    Raises:
        ConfigError: Some are. All of them are named, before any work is done.
    """
    from elmokit.storage.text_files import read_lines

    blank = [str(number) for number, line in enumerate(read_lines(source)) if not line.strip()]
    if blank:
        numbers = ", ".join(blank[:20]) + (", ..." if len(blank) > 20 else "")
        raise ConfigError(f"{source} has {len(blank)} blank lines, counted from 0: {numbers}. Remove them.")


def _split_line(line: str) -> list[str]:
    """Split a line at Unicode white space, as AllenNLP does.

    Raises:
        ConfigError: The line is blank.
    """
    tokens = line.split()
    if not tokens:
        raise ConfigError("The input has a blank line. Remove it.")
    return tokens

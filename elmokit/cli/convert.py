"""``elmokit convert``: a model from one format to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.common import options_option, overwrite_option
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.weights.folder import Storage


@click.command(short_help="A model from one format to another.")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@options_option
@click.option(
    "--storage",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="In a folder of ours.",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    help="Tokenised sentences of the model's language: store the mean state after a sentence as the warm state.",
)
@overwrite_option
def convert(
    source: str, target: Path, options: str | None, storage: Storage, calibrate: Path | None, overwrite: bool
) -> None:
    """Convert the model SRC to DST.

    DST is written as HDF5 with its options file beside it if it ends in .hdf5 or .h5, as AllenNLP and bilm-tf read
    them; else as a folder of ours (JSON and safetensors), which alone keeps the softmax, its words and the warm state.
    SRC may be the folder of a training run: its best model is taken.
    """
    from elmokit.initial_state import store_warm_state
    from elmokit.io.text_files import read_sentences
    from elmokit.weights.open import HDF5_SUFFIXES, open_model, refuse_target, save_model

    is_hdf5 = target.suffix in HDF5_SUFFIXES
    if is_hdf5 and storage != "float32":
        raise ConfigError(
            f"--storage {storage} is for a folder of ours: AllenNLP and bilm-tf read float32 from {target.suffix} "
            "files. Leave it out, or name a folder."
        )
    refuse_target(target, overwrite)
    model = open_model(source, options=options)
    if calibrate is not None:
        sentences = list(read_sentences(calibrate))
        store_warm_state(model, sentences, calibrate.name)
    written = save_model(model, target, storage, overwrite)
    for path in written:
        click.echo(f"wrote {path}", err=True)
    parts = {"the softmax and its words": model.softmax, "the warm state": model.warm_state}
    lost = [name for name, part in parts.items() if part is not None]
    if is_hdf5 and lost:
        click.echo(f"left out, as HDF5 has no place for it: {', '.join(lost)}", err=True)

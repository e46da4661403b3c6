"""``elmokit bilm-tf``: drop-in replacements for the four scripts in bilm-tf's ``bin`` directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from elmokit.cli.options import CommandGroup, OutputPath
from elmokit.cli.train import resumable_run

N_GPUS_HELP = "A step reads n_gpus times batch_size rows. To use several GPUs, start with torchrun, which divides them."
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _option(name: str, *, required: bool = True, **settings: Any) -> Decorator:
    """Declare an option with bilm-tf's underscores, which can also be written with hyphens."""
    flags = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    return click.option(*flags, name, required=required, **settings)


_path_option = partial(_option, type=click.Path(path_type=Path))
_number_option = partial(_option, required=False, type=int)
save_dir_option = _path_option("save_dir", help="Directory of the checkpoints.")
vocab_file_option = _path_option("vocab_file", help="Vocabulary file.")
train_prefix_option = _option("train_prefix", help="Training text: a file, a directory or a quoted pattern.")
heldout_prefix_option = _option(
    "heldout_prefix",
    required=False,
    help="Text to evaluate on during training (not in bilm-tf). Default: some sentences of the training text.",
)
device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: a GPU if there is one (not in bilm-tf)."
)


@click.group("bilm-tf", cls=CommandGroup)
def bilm_tf() -> None:
    """Run the scripts of bilm-tf: train_elmo, restart, run_test and dump_weights.

    They accept the options of the scripts, and directories of bilm-tf and of elmokit.

    \b
    Examples:
      elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
      elmokit bilm-tf dump_weights --save_dir run --outfile weights.hdf5
    """


@bilm_tf.command("train_elmo")
@_option("save_dir", type=OutputPath(), help="Directory of the checkpoints.")
@vocab_file_option
@train_prefix_option
@_path_option(
    "options_file",
    required=False,
    help="JSON file of bilm-tf's options, which the script had in its text. Default: those of the script.",
)
@_number_option("n_gpus", default=1, show_default=True, help=N_GPUS_HELP)
@_number_option("batch_size", help="Replaces batch_size of the options.")
@_number_option("n_train_tokens", help="Replaces n_train_tokens of the options. Default: counted.")
@_number_option("n_epochs", help="Replaces n_epochs of the options.")
@heldout_prefix_option
@device_option
def train_elmo(
    save_dir: Path,
    vocab_file: Path,
    train_prefix: str,
    options_file: Path | None,
    n_gpus: int,
    heldout_prefix: str | None,
    device: str,
    **numbers: int | None,
) -> None:
    """Train an ELMo model as bilm-tf's train_elmo.py does.

    bilm-tf's script has its settings in its text. Here they are in --options_file, a JSON file of the dictionary
    `options` in the script (or the options.json of an earlier training), and some are options. SAVE_DIR, which must be
    new or empty, becomes a run directory. To resume an interrupted training: elmokit train --resume SAVE_DIR

    \b
    Examples:
      elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
      elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*' --n_epochs 3
    """
    from elmokit.compat import bilm_training
    from elmokit.formats.bilm_tf import read_options
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.training.bilm_tf_options import options_from_settings
    from elmokit.training.config import RECIPES

    if options_file is None:
        options = options_from_settings(RECIPES["bilm-tf"], len(Vocabulary.from_file(vocab_file)))
    else:
        options = read_options(options_file)
    data = _dataset(options, vocab_file, train_prefix)
    with resumable_run(save_dir):
        result = bilm_training.train(
            _with(options, numbers), data, n_gpus, save_dir, held_out=heldout_prefix or (), device=device
        )
    if result.is_main_process:
        click.echo(str(result))


@bilm_tf.command("restart")
@save_dir_option
@vocab_file_option
@train_prefix_option
@_number_option("n_gpus", default=1, show_default=True, help=N_GPUS_HELP)
@_number_option("batch_size", default=0, help="Replaces batch_size of the options, if above 0.")
@_number_option("n_train_tokens", default=0, help="Replaces n_train_tokens of the options, if above 0.")
@_number_option("n_epochs", default=0, help="Replaces n_epochs of the options, if above 0.")
@heldout_prefix_option
@device_option
def restart(
    save_dir: Path,
    vocab_file: Path,
    train_prefix: str,
    n_gpus: int,
    heldout_prefix: str | None,
    device: str,
    **numbers: int | None,
) -> None:
    """Continue the training of the newest checkpoint in SAVE_DIR, on the same or another text.

    The Adagrad sums are kept, as in bilm-tf's restart.py. The new run directory is SAVE_DIR/restart-1, or the next free
    number; existing files are not changed. To resume an interrupted restart: elmokit train --resume SAVE_DIR/restart-1

    \b
    Examples:
      elmokit bilm-tf restart --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
      elmokit bilm-tf restart --save_dir run --vocab_file vocab.txt --train_prefix 'new/*' --n_epochs 2
    """
    from elmokit.compat import bilm_training

    options, checkpoint = bilm_training.load_options_latest_checkpoint(save_dir)
    data = _dataset(options, vocab_file, train_prefix)
    with resumable_run(bilm_training.next_restart(save_dir)):
        result = bilm_training.train(
            _with(options, numbers),
            data,
            n_gpus,
            save_dir,
            restart_ckpt_file=checkpoint,
            held_out=heldout_prefix or (),
            device=device,
        )
    if result.is_main_process:
        click.echo(str(result))


@bilm_tf.command("run_test")
@save_dir_option
@vocab_file_option
@_option("test_prefix", help="Test text: a file, a directory or a quoted pattern.")
@_number_option("batch_size", default=256, show_default=True, help="Rows read side by side. The result depends on it.")
@click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ... (not in bilm-tf)")
def run_test(save_dir: Path, vocab_file: Path, test_prefix: str, batch_size: int, device: str | None) -> None:
    """Compute the test perplexity of the newest checkpoint in SAVE_DIR, as bilm-tf's run_test.py does.

    \b
    Examples:
      elmokit bilm-tf run_test --save_dir run --vocab_file vocab.txt --test_prefix 'held-out/*'
      elmokit bilm-tf run_test --save_dir run --vocab_file vocab.txt --test_prefix test.txt --batch_size 1
    """
    from elmokit.compat import bilm_training

    options, checkpoint = bilm_training.load_options_latest_checkpoint(save_dir)
    data = _dataset(options, vocab_file, test_prefix, test=True)
    bilm_training.test(options, checkpoint, data, batch_size, device=device)


@bilm_tf.command("dump_weights")
@save_dir_option
@_option("outfile", type=OutputPath(), help="The HDF5 file to write.")
def dump_weights(save_dir: Path, outfile: Path) -> None:
    """Write the weights of the newest checkpoint in SAVE_DIR as HDF5, for AllenNLP and bilm-tf.

    Options for inference are written next to it, as OUTFILE_options.json without the ending of OUTFILE.

    \b
    Examples:
      elmokit bilm-tf dump_weights --save_dir run --outfile weights.hdf5
      elmokit embed corpus.txt vectors.hdf5 --model weights.hdf5
    """
    from elmokit.compat import bilm_training

    bilm_training.dump_weights(save_dir, outfile)
    click.echo(f"wrote {outfile}", err=True)


def _dataset(options: dict[str, Any], vocab_file: Path, prefix: str, test: bool = False) -> Any:
    """Open a text as the options need it."""
    from elmokit.compat.bilm_datasets import BidirectionalLMDataset, LMDataset
    from elmokit.compat.bilm_training import load_vocab
    from elmokit.formats.bilm_tf import config_errors

    with config_errors("the options"):
        length = options["char_cnn"]["max_characters_per_token"] if "char_cnn" in options else None
    vocab = load_vocab(vocab_file, length)
    if options.get("bidirectional"):
        return BidirectionalLMDataset(prefix, vocab, test=test, shuffle_on_load=not test)
    reverse = bool(options.get("reverse"))
    return LMDataset(prefix, vocab, reverse=reverse, test=test, shuffle_on_load=not test)


def _with(options: dict[str, Any], numbers: dict[str, int | None]) -> dict[str, Any]:
    """Return the options with the numbers that were given."""
    return {**options, **{name: value for name, value in numbers.items() if value is not None and value > 0}}

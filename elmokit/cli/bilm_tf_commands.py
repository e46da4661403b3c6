"""Run the scripts of bilm-tf: train_elmo, restart, run_test and dump_weights.

They accept the scripts' options, and directories of both bilm-tf and elmokit.

Examples:
    elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
    elmokit bilm-tf dump_weights --save_dir run --outfile weights.hdf5
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from elmokit.cli.command import Flag, with_underscores
from elmokit.cli.parameters import Output
from elmokit.cli.running import print_note, resumable_command
from elmokit.config import check_at_least

COMMANDS = ("train_elmo", "restart", "run_test", "dump_weights")
SaveDir = Annotated[Path, Flag("Directory of the checkpoints.")]
VocabFile = Annotated[Path, Flag("Vocabulary file.")]
TrainPrefix = Annotated[str, Flag("Training text: a file, a directory or a quoted pattern.")]
GpuCount = Annotated[
    int,
    Flag("Each step reads n_gpus * batch_size rows. To use several GPUs, start with torchrun, which splits the rows."),
]
HeldOutPrefix = Annotated[
    str | None,
    Flag("Text to evaluate on during training (not in bilm-tf). Default: some sentences of the training text."),
]
TrainingDevice = Annotated[str, Flag("cpu, cuda, or auto: a GPU if there is one (not in bilm-tf).")]


@dataclass(frozen=True)
class NumbersOfOptions:
    """Numbers that override bilm-tf's options, unless they are None or 0."""

    batch_size: int | None = None
    n_train_tokens: int | None = None
    n_epochs: int | None = None

    def put_into(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with these numbers."""
        changed = dict(options)
        for name, number in vars(self).items():
            if number is not None and number > 0:
                changed[name] = number
        return changed


@with_underscores
def train_elmo(
    *,
    save_dir: Annotated[Output, Flag("Directory of the checkpoints.")],
    vocab_file: VocabFile,
    train_prefix: TrainPrefix,
    options_file: Path | None = None,
    n_gpus: GpuCount = 1,
    numbers: NumbersOfOptions,
    heldout_prefix: HeldOutPrefix = None,
    device: TrainingDevice = "auto",
) -> None:
    """Train an ELMo model like bilm-tf's train_elmo.py.

    In bilm-tf, the settings are in the script. Here, they are in --options_file: a JSON file with the script's
    dictionary `options`, or the options.json of an earlier run. Some also have options of their own. SAVE_DIR must be
    new or empty, and becomes a run directory. If the command is interrupted, run it again to resume.

    Args:
        options_file: JSON file of bilm-tf's options. Default: those in bilm-tf's script.
        batch_size: Overrides batch_size in the options.
        n_train_tokens: Overrides n_train_tokens in the options. Default: counted.
        n_epochs: Overrides n_epochs in the options.

    Examples:
        elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
        elmokit bilm-tf train_elmo --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*' --n_epochs 3
    """
    from elmokit.compat import bilm_tf_training
    from elmokit.formats.bilm_tf import read_options
    from elmokit.text.vocabulary import read_new_vocabulary
    from elmokit.training.settings import options_from_settings
    from elmokit.training.training_config import RECIPES

    for name, number in vars(numbers).items():
        check_at_least(name, number, 1, optional=True)
    if options_file is None:
        options = options_from_settings(RECIPES["bilm-tf"], len(read_new_vocabulary(vocab_file)))
    else:
        options = read_options(options_file)
    data = _dataset(options, vocab_file, train_prefix)
    with _resumable(save_dir):
        result = bilm_tf_training.train(
            numbers.put_into(options), data, n_gpus, save_dir, held_out=heldout_prefix or (), device=device
        )
    if result.is_main_process:
        click.echo(str(result))


@with_underscores
def restart(
    *,
    save_dir: SaveDir,
    vocab_file: VocabFile,
    train_prefix: TrainPrefix,
    n_gpus: GpuCount = 1,
    numbers: NumbersOfOptions,
    heldout_prefix: HeldOutPrefix = None,
    device: TrainingDevice = "auto",
) -> None:
    """Continue training from the newest checkpoint in SAVE_DIR, on the same or another text.

    The Adagrad sums are kept, as in bilm-tf's restart.py. The new run directory is SAVE_DIR/restart-1, or the next free
    number; existing files are not changed. If the command is interrupted, run it again to resume.

    Args:
        batch_size: Overrides batch_size in the options, if above 0.
        n_train_tokens: Overrides n_train_tokens in the options, if above 0.
        n_epochs: Overrides n_epochs in the options, if above 0.

    Examples:
        elmokit bilm-tf restart --save_dir run --vocab_file vocab.txt --train_prefix 'corpus/*'
        elmokit bilm-tf restart --save_dir run --vocab_file vocab.txt --train_prefix 'new/*' --n_epochs 2
    """
    from elmokit.compat import bilm_tf_training

    options, checkpoint = bilm_tf_training.restart_options(save_dir)
    data = _dataset(options, vocab_file, train_prefix)
    with _resumable(bilm_tf_training.interrupted_restart(save_dir) or bilm_tf_training.next_restart(save_dir)):
        result = bilm_tf_training.train(
            numbers.put_into(options),
            data,
            n_gpus,
            save_dir,
            restart_ckpt_file=checkpoint,
            held_out=heldout_prefix or (),
            device=device,
        )
    if result.is_main_process:
        click.echo(str(result))


@with_underscores
def run_test(
    *,
    save_dir: SaveDir,
    vocab_file: VocabFile,
    test_prefix: str,
    batch_size: int = 256,
    device: str | None = None,
) -> None:
    """Compute the test perplexity of the newest checkpoint in SAVE_DIR, like bilm-tf's run_test.py.

    Args:
        test_prefix: Test text: a file, a directory or a quoted pattern.
        batch_size: Rows read in parallel. The result depends on it.
        device: Where to compute, such as cuda or cuda:1 (not in bilm-tf).  [default: cpu]

    Examples:
        elmokit bilm-tf run_test --save_dir run --vocab_file vocab.txt --test_prefix 'held-out/*'
        elmokit bilm-tf run_test --save_dir run --vocab_file vocab.txt --test_prefix test.txt --batch_size 1
    """
    from elmokit.compat import bilm_tf_training

    options, checkpoint = bilm_tf_training.load_options_latest_checkpoint(save_dir)
    data = _dataset(options, vocab_file, test_prefix, test=True)
    bilm_tf_training.test(options, checkpoint, data, batch_size, device=device)


@with_underscores
def dump_weights(*, save_dir: SaveDir, outfile: Output) -> None:
    """Write the weights of the newest checkpoint in SAVE_DIR as HDF5, for AllenNLP and bilm-tf.

    Options for inference are written next to it, as OUTFILE_options.json without OUTFILE's extension. Existing files
    are replaced.

    Args:
        outfile: The HDF5 file to write.

    Examples:
        elmokit bilm-tf dump_weights --save_dir run --outfile weights.hdf5
        elmokit embed corpus.txt vectors.hdf5 --model weights.hdf5
    """
    from elmokit.compat import bilm_tf_training

    bilm_tf_training.dump_weights(save_dir, outfile)
    print_note(f"wrote {outfile} and {bilm_tf_training.dumped_options(outfile)}")


def _resumable(run: Path) -> AbstractContextManager[None]:
    """Print how to resume training if the user stops the block."""
    from elmokit.storage.workspace import JOURNAL

    return resumable_command((run / JOURNAL).exists)


def _dataset(options: dict[str, Any], vocab_file: Path, prefix: str, test: bool = False) -> Any:
    """Open a text for a model with these options."""
    from elmokit.compat.bilm_data import BidirectionalLMDataset, LMDataset
    from elmokit.compat.bilm_tf_training import load_vocab
    from elmokit.formats.bilm_tf import config_errors

    with config_errors("the options"):
        length = options["char_cnn"]["max_characters_per_token"] if "char_cnn" in options else None
    vocab = load_vocab(vocab_file, length)
    if options.get("bidirectional"):
        return BidirectionalLMDataset(prefix, vocab, test=test, shuffle_on_load=not test)
    reverse = bool(options.get("reverse"))
    return LMDataset(prefix, vocab, reverse=reverse, test=test, shuffle_on_load=not test)

"""bilm-tf's training functions under their old names. Import them from ``elmokit.compat.bilm``.

They call ``elmokit.train``, ``elmokit.finetune`` and other public functions, so a script written for bilm-tf runs once
its imports are changed. ``elmokit bilm-tf`` calls them to replace bilm-tf's four scripts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.compat.bilm_data import BidirectionalLMDataset, LMDataset, UnicodeCharsVocabulary, Vocabulary
from elmokit.errors import ConfigError, ModelNotFoundError, OutputError
from elmokit.formats import bilm_tf, tf_checkpoint
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.open import open_model
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import TextPaths
from elmokit.storage.workspace import JOURNAL, OtherSettingsError, is_former_run, read_workspace
from elmokit.text.text import Text
from elmokit.training import api
from elmokit.training.bilm_run import FORMER, TrainingSetup
from elmokit.training.reports import TrainingCallback, TrainingDisplay, TrainingNotice
from elmokit.training.results import TrainingResult
from elmokit.training.settings import options_from_settings, settings_from_options
from elmokit.training.training_run import last_checkpoint

RESTART = "restart"
SAMPLED_SENTENCES = 200  # from the training text, for evaluation without held-out text
INTERVALS = {"log_every": 100, "eval_every": 1000, "save_every": 500}  # bilm-tf logs every 100 and saves every 1250
OPTIONS = "the options"  # what error messages call them


def load_vocab(vocab_file: str | Path, max_word_length: int | None = None) -> Vocabulary:
    """Read a vocabulary and check that it lists the special words.

    Args:
        vocab_file: The word list.
        max_word_length: Characters per word; None for a model that reads words.

    Raises:
        TextError, FormatError, ConfigError: As in ``Vocabulary`` and ``UnicodeCharsVocabulary``.
    """
    if max_word_length:
        return UnicodeCharsVocabulary(vocab_file, max_word_length, validate_file=True)
    return Vocabulary(vocab_file, validate_file=True)


def load_options_latest_checkpoint(tf_save_dir: str | Path) -> tuple[dict[str, Any], str]:
    """Find the newest checkpoint in a directory of bilm-tf or elmokit, and its training options.

    If training was restarted there, it is the checkpoint of the last restart.

    Returns:
        The options, and the path of the checkpoint. For a run of elmokit, ``batch_size`` is the number of rows per
        process, and the length is one epoch of as many tokens as the training read.

    Raises:
        ModelNotFoundError: There is no checkpoint.
        FormatError, TrainingError: The options cannot be read.
    """
    return _newest(Path(tf_save_dir), _restarts(Path(tf_save_dir)))


def restart_options(save_dir: Path) -> tuple[dict[str, Any], str]:
    """Return what ``elmokit bilm-tf restart`` starts from: the options and the newest checkpoint.

    If the last restart was interrupted, these are the options that it started from, so that the same command continues
    it.
    """
    options, checkpoint = load_options_latest_checkpoint(save_dir)
    if interrupted_restart(save_dir) is not None:
        options, _ = _newest(save_dir, _restarts(save_dir)[:-1])
    return options, checkpoint


def _newest(save_dir: Path, restarts: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Return the options and newest checkpoint of a directory, given its restarts, newest first."""
    for run in (*reversed(restarts), save_dir):
        committed = read_workspace(run)
        checkpoint = None if committed is None else last_checkpoint(committed)
        if committed is not None and checkpoint is not None:
            setup = TrainingSetup.of(committed)
            n_words, n_predictions = len(setup.corpus.vocabulary), setup.corpus.length(setup.config)
            return options_from_settings(setup.config, n_words, n_predictions), str(checkpoint.path)
    prefix = tf_checkpoint.find_checkpoint(save_dir)
    if prefix is None and is_former_run(save_dir, FORMER):
        raise ModelNotFoundError(
            f"{save_dir} is a run of another version of elmokit. Other commands open its best model: finetune, "
            "convert, and evaluate perplexity --as-bilm-tf N."
        )
    if prefix is None:
        raise ModelNotFoundError(f"There is no checkpoint in {save_dir}, neither from bilm-tf nor from elmokit.")
    return bilm_tf.read_options(save_dir / "options.json"), str(prefix)


def train(
    options: Mapping[str, Any],
    data: LMDataset | BidirectionalLMDataset,
    n_gpus: int,
    tf_save_dir: str | Path,
    tf_log_dir: str | Path | None = None,
    restart_ckpt_file: str | Path | None = None,
    *,
    held_out: TextPaths = (),
    device: str | torch.device = "auto",
    report: TrainingCallback | None = None,
) -> TrainingResult:
    """Train a biLM as bilm-tf does, or continue training a checkpoint with its Adagrad accumulators.

    A new training makes ``tf_save_dir`` an elmokit run directory. A restart creates ``restart-1`` (or the next free
    number) in it and changes no existing file. Repeating the call continues an interrupted training or restart.

    Args:
        options: bilm-tf's options; see ``elmokit.training.settings``.
        data: The text and its vocabulary. Pass an ``LMDataset`` for a forward-only model.
        n_gpus: A step reads ``n_gpus`` times ``batch_size`` rows. To use several GPUs, start the script with
            ``torchrun``, which divides the rows among its processes.
        tf_save_dir: A new or empty directory, or one in which the same call was interrupted; for a restart, the
            checkpoint's directory.
        tf_log_dir: Ignored: the log is ``metrics.jsonl`` in the run directory and, if TensorBoard is installed,
            ``tensorboard/`` next to it.
        restart_ckpt_file: The checkpoint to restart from.
        held_out: Text to evaluate on, for keeping the best model. bilm-tf has none; without it, sentences of the
            training text are used.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        report: As in ``elmokit.train``.

    Returns:
        The best model, its perplexities, and the run directory.

    Raises:
        ElmoError: As in ``elmokit.train`` and ``elmokit.finetune``, or the options do not match the data.
    """
    report = TrainingDisplay() if report is None else report
    options = _options_for(options, data)
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if n_gpus % n_processes:
        raise ConfigError(f"n_gpus is {n_gpus}, which cannot be divided among torchrun's {n_processes} processes.")
    table = settings_from_options(options, OPTIONS, n_gpus)
    table["batch_size"] //= n_processes
    settings: dict[str, Any] = {
        **INTERVALS,
        "patience": 0,
        "shuffle": data.shuffle_on_load,
        "seed": data.seed,
        "bilm_tf_lines": True,
        "tensorboard": importlib.util.find_spec("tensorboard") is not None,
        "device": device,
        "report": report,
    }
    save_dir = Path(tf_save_dir)
    with tempfile.TemporaryDirectory() as folder:
        if not held_out:
            held_out = _sample(data.files, Path(folder) / "sample.txt")
            if os.environ.get("RANK", "0") == "0":
                report(
                    TrainingNotice(
                        f"There is no held-out text: perplexities are computed on up to {SAMPLED_SENTENCES} sentences "
                        "of the training text, so they are too low."
                    )
                )
        settings["held_out"] = held_out
        if restart_ckpt_file is None:
            return api.train(data.files, out=save_dir, config=table, vocabulary=data.vocab.path, **settings)
        settings["config"] = {name: value for name, value in table.items() if name not in ("data", "input")}
        return _restart(restart_ckpt_file, save_dir, data, {**settings, "keep_optimizer": True})


def _restart(
    checkpoint: str | Path,
    save_dir: Path,
    data: LMDataset | BidirectionalLMDataset,
    settings: Mapping[str, Any],
) -> TrainingResult:
    """Continue training a checkpoint in a new run directory, or in the directory of an interrupted restart."""
    interrupted = interrupted_restart(save_dir)
    if interrupted is not None:
        _, start = _newest(save_dir, _restarts(save_dir)[:-1])
        if Path(start) == Path(checkpoint) or interrupted in Path(checkpoint).parents:
            with contextlib.suppress(OtherSettingsError):  # a different call, which is a new restart
                return api.finetune(_open(start, data), data.files, out=interrupted, **settings)
    return api.finetune(_open(checkpoint, data), data.files, out=next_restart(save_dir), **settings)


def test(
    options: Mapping[str, Any],
    ckpt_file: str | Path,
    data: LMDataset | BidirectionalLMDataset,
    batch_size: int = 256,  # noqa: PT028 (bilm-tf's name, and not a test)
    *,
    device: str | torch.device | None = None,  # noqa: PT028
) -> float:
    """Compute and print the test perplexity of a checkpoint, as bilm-tf does.

    The result depends on the batch size; see ``elmokit.lm.bilm_tf_perplexity``.

    Args:
        options: Ignored: the checkpoint contains the model's sizes.
        ckpt_file: The checkpoint.
        data: The text and its vocabulary.
        batch_size: Rows that are read in parallel.
        device: Where to compute; None for the CPU.

    Raises:
        ElmoError: The checkpoint or the text cannot be read, or there are fewer sentences than rows.
    """
    model = LanguageModel(_open(ckpt_file, data), device=device)
    result = model.bilm_tf_perplexity(data.files, batch_size)
    perplexity = result.mean
    # bilm-tf's spelling, because scripts search its output for this line.
    print(f"FINSIHED!  AVERAGE PERPLEXITY = {np.float32(perplexity)}")
    warning = unknown_words_warning(result.unknown_ratio, result.unknown_words)
    if warning:
        print(warning, file=sys.stderr)
    return perplexity


def dump_weights(tf_save_dir: str | Path, outfile: str | Path) -> None:
    """Write the weights of the newest checkpoint as HDF5 for AllenNLP and bilm-tf, with options for inference.

    The options file is named after the output: ``w_options.json`` for ``w.hdf5``, and ``x_options.json`` for
    ``x_weights.hdf5``. An existing HDF5 file and its options are replaced; other existing files are not.

    Raises:
        ElmoError: There is no checkpoint, it cannot be read, or a file cannot be written.
    """
    import h5py  # imported here, because only this function needs it

    path = Path(outfile)
    if path.is_file() and path.stat().st_size and not h5py.is_hdf5(path):
        raise OutputError(f"{path} exists but is not an HDF5 file, so it is not replaced. Choose another name.")
    _, checkpoint = load_options_latest_checkpoint(tf_save_dir)
    options = dumped_options(path)
    write_hdf5(open_model(checkpoint), options, path, overwrite=True)


def dumped_options(outfile: Path) -> Path:
    """Return the path of the options written by :func:`dump_weights`."""
    # Not `own_file`: for `weights.hdf5`, that is `options.json`, which belongs to the training in bilm-tf's directory.
    return outfile.with_name(f"{outfile.stem.removesuffix('_weights')}_options.json")


def _options_for(options: Mapping[str, Any], data: LMDataset | BidirectionalLMDataset) -> dict[str, Any]:
    """Check that the options match the data, and return them."""
    _check_directions("The options have", bool(options.get("bidirectional")), data)
    cnn = options.get("char_cnn")
    length = cnn.get("max_characters_per_token") if isinstance(cnn, Mapping) else None
    if length != data.max_word_length:
        raise ConfigError(
            f"The options have {length or 'no'} characters per word, but the vocabulary has "
            f"{data.max_word_length or 'none'}."
        )
    return dict(options)


def _check_directions(has: str, bidirectional: bool, data: LMDataset | BidirectionalLMDataset) -> None:
    if bidirectional and len(data.read_backward) == 1:
        raise ConfigError(f"{has} two directions, but the data have one. Use BidirectionalLMDataset.")
    if not bidirectional and data.read_backward[0]:
        raise ConfigError("One-direction models read forward, so LMDataset(reverse=True) can only yield batches.")


def _open(checkpoint: str | Path, data: LMDataset | BidirectionalLMDataset) -> PretrainedBiLM:
    """Open a checkpoint with the vocabulary of the data."""
    model = open_model(checkpoint, vocabulary=data.vocab.path, exact_marks=True)
    _check_directions(f"{checkpoint} has", model.config.bidirectional, data)
    return model


def _sample(files: Sequence[Path], path: Path) -> Path:
    """Write the first sentences of the files, about ``SAMPLED_SENTENCES`` in total, to a file."""
    n_each = -(-SAMPLED_SENTENCES // len(files))
    chosen = files[:: -(-len(files) // SAMPLED_SENTENCES)]
    read = [filter(None, Text(file, kind="bilm-tf").token_lists()) for file in chosen]
    lines = [" ".join(tokens) + "\n" for sentences in read for tokens in islice(sentences, n_each)]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path


def next_restart(save_dir: str | Path) -> Path:
    """Return the run directory for a new restart in ``save_dir``."""
    earlier = _restarts(Path(save_dir))
    number = _number(earlier[-1]) + 1 if earlier else 1
    return Path(save_dir) / f"{RESTART}-{number}"


def interrupted_restart(save_dir: Path) -> Path | None:
    """Return the run directory of the last restart, if it is unfinished."""
    restarts = _restarts(save_dir)
    committed = read_workspace(restarts[-1]) if restarts else None
    if committed is None or not committed.can_continue:
        return None
    setup = TrainingSetup.of(committed)
    n_done = committed.progress.get("counters", {}).get("n_predictions", 0)
    return restarts[-1] if n_done < setup.corpus.length(setup.config) else None


def _restarts(save_dir: Path) -> list[Path]:
    """List the run directories of restarts, oldest first."""
    runs = [path for path in save_dir.glob(f"{RESTART}-*") if (path / JOURNAL).is_file()]
    return sorted(runs, key=_number)


def _number(restart: Path) -> int:
    suffix = restart.name.removeprefix(f"{RESTART}-")
    return int(suffix) if suffix.isdecimal() else 0  # 0 for a directory that the user renamed

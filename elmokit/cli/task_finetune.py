"""A task's ``elmo.finetune``: fine-tune the biLM on the task's text first, then freeze it (Peters et al. 2018, A.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from elmokit.errors import TextError
from elmokit.io.atomic import atomic_write
from elmokit.tasks.config import FinetuneConfig
from elmokit.training import api
from elmokit.training.config import FINETUNING
from elmokit.training.run import SETTINGS
from elmokit.weights.folder import save_folder

HELD_OUT_EVERY = 20  # one sentence in 20 is kept for evaluation
MAX_BATCH_SIZE, MAX_WINDOW_LENGTH = 16, 20


def finetune_for_task(
    name: str | None, sentences: Sequence[Sequence[str]], config: FinetuneConfig, folder: Path, device: torch.device
) -> None:
    """Fine-tune a biLM on a task's sentences and write the best model, by held-out perplexity, to a folder.

    The training is a run of its own next to the folder, and is resumed if it was interrupted.

    Args:
        name: The model's path or name; None for the one inside the package.
        sentences: The distinct sentences of the task.
        config: The settings of ``elmo.finetune``.
        folder: Where to write the model.
        device: Where to train.

    Raises:
        TextError: There are too few sentences.
        ModelError: The model cannot be opened.
    """
    run = folder.with_name(folder.name + "-training")
    text, held_out = (folder.with_name(f"{folder.name}-{part}.txt") for part in ("text", "held-out"))
    if (run / SETTINGS).exists():
        result = api.resume(run, text, device=device)
    else:
        training = [sentence for index, sentence in enumerate(sentences) if index % HELD_OUT_EVERY]
        if not training:
            raise TextError(f"{len(sentences)} sentence is too little to fine-tune a biLM on. Remove elmo.finetune.")
        _write(training, text)
        _write(sentences[::HELD_OUT_EVERY], held_out)
        n_predictions = sum(len(sentence) + 1 for sentence in training)
        batch_size = min(MAX_BATCH_SIZE, len(training))
        result = api.finetune(
            name,
            text,
            held_out=held_out,
            out=run,
            held_out_sentences=len(sentences),
            device=device,
            epochs=config.epochs,
            batch_size=batch_size,
            window_length=min(MAX_WINDOW_LENGTH, n_predictions // batch_size),
            learning_rate=config.learning_rate or FINETUNING["learning_rate"],
        )
    print(result)
    save_folder(result.model, folder)


def _write(sentences: Sequence[Sequence[str]], path: Path) -> None:
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text("".join(" ".join(tokens) + "\n" for tokens in sentences), encoding="utf-8", newline="\n")

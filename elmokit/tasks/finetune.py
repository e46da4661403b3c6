"""Fine-tune a biLM on a task's text before the task is trained (Peters et al. 2018, supplement A.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from elmokit.errors import TextError
from elmokit.formats.folder import save_folder
from elmokit.storage.atomic import atomic_write
from elmokit.storage.progress import ProgressCallback
from elmokit.tasks.config import FinetuneConfig
from elmokit.training import api
from elmokit.training.config import FINETUNING
from elmokit.training.reports import TrainingProgress, TrainingReport

HELD_OUT_EVERY = 20  # one sentence in 20 is kept for evaluation
# A task's text is small: with the batches of a corpus, an epoch would have only a few steps.
MAX_BATCH_SIZE, MAX_WINDOW_LENGTH = 16, 20


def finetune_for_task(
    model: str | None,
    sentences: Sequence[Sequence[str]],
    config: FinetuneConfig,
    folder: Path,
    device: torch.device,
    progress: ProgressCallback | None = None,
) -> None:
    """Fine-tune a biLM on the distinct sentences of a task, and write the best model to a directory.

    The training is a run of its own next to the directory, and is resumed if it was interrupted.
    """

    def report(message: TrainingReport) -> None:
        if progress is not None and isinstance(message, TrainingProgress) and message.fraction:
            progress("fine-tune", message.n_predictions, round(message.n_predictions / message.fraction))

    training = [sentence for index, sentence in enumerate(sentences) if index % HELD_OUT_EVERY]
    if not training:
        raise TextError(f"{len(sentences)} sentence is too little to fine-tune a biLM on (elmo.finetune).")
    text, held_out = (folder.with_name(f"{folder.name}-{name}.txt") for name in ("text", "held-out"))
    for path, content in ((text, training), (held_out, sentences[::HELD_OUT_EVERY])):
        with atomic_write(path, overwrite=True) as temporary:
            lines = [" ".join(tokens) + "\n" for tokens in content]
            temporary.write_text("".join(lines), encoding="utf-8", newline="\n")
    n_predictions = sum(len(sentence) + 1 for sentence in training)
    batch_size = min(MAX_BATCH_SIZE, len(training))
    result = api.finetune(
        model,
        text,
        held_out=held_out,
        out=folder.with_name(f"{folder.name}-training"),
        held_out_sentences=len(sentences),
        device=device,
        report=report,
        epochs=config.epochs,
        batch_size=batch_size,
        window_length=min(MAX_WINDOW_LENGTH, n_predictions // batch_size),
        learning_rate=config.learning_rate or FINETUNING["learning_rate"],
    )
    save_folder(result.model, folder)

"""A task's ``elmo.finetune``: the biLM trained on the task's text first, then frozen (Peters et al. 2018, A.1)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from elmokit.cli.finetune import DEFAULTS, own_words
from elmokit.cli.training import MAX_WORDS, begin_run, carry_on
from elmokit.errors import TextError
from elmokit.io.atomic import atomic_write
from elmokit.tasks.config import FinetuneConfig
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.distributed import World
from elmokit.training.finetune import with_softmax_over
from elmokit.training.run import SETTINGS
from elmokit.weights.folder import load_folder, save_folder
from elmokit.weights.open import open_model
from elmokit.weights.softmaxes import softmax_config

HELD_OUT_EVERY = 20  # every so many sentences one is kept to judge by
MOST_ROWS, MOST_STEPS = 16, 20


def finetune_for_task(
    name: str | None, sentences: Sequence[Sequence[str]], config: FinetuneConfig, folder: Path, device: torch.device
) -> None:
    """Train a biLM on a task's sentences and write the best one, by held-out sentences, to a folder.

    The training is a run of its own beside the folder, and goes on where it was stopped.

    Args:
        name: the model's path or name; None for the one inside the package.

    Raises:
        TextError: there are too few sentences.
        ModelError: the model cannot be opened.
    """
    run, text = folder.with_name(folder.name + "-training"), folder.with_name(folder.name + "-text.txt")
    if not (run / SETTINGS).exists():
        held_out = [list(sentence) for sentence in sentences[::HELD_OUT_EVERY]]
        training = [sentence for place, sentence in enumerate(sentences) if place % HELD_OUT_EVERY]
        if not training:
            raise TextError(f"{len(sentences)} sentence is too little to fine-tune a biLM on. Take elmo.finetune out.")
        with atomic_write(text, overwrite=True) as beside:
            beside.write_text("".join(" ".join(tokens) + "\n" for tokens in training), encoding="utf-8", newline="\n")
        _begin(name, text, training, held_out, config, run)
    carry_on(run, (text,), {}, World(), device)
    save_folder(load_folder(run / "model"), folder)


def _begin(
    name: str | None,
    text: Path,
    training: Sequence[Sequence[str]],
    held_out: list[list[str]],
    config: FinetuneConfig,
    run: Path,
) -> None:
    stored = open_model(name)
    counts = Counter(token for sentence in training for token in sentence)
    vocabulary = own_words(stored) or Vocabulary.from_counts(counts, MAX_WORDS)
    corpus = TrainingCorpus([text], held_out, vocabulary, len(training), counts.total())
    initial = dataclasses.replace(with_softmax_over(stored, vocabulary, counts, len(training)), initial_state=None)
    assert initial.softmax is not None
    n_rows = min(MOST_ROWS, len(training))
    settings = TrainingConfig(
        model=initial.bilm.config,
        softmax=softmax_config(initial.softmax),
        epochs=config.epochs,
        learning_rate=config.learning_rate or DEFAULTS["learning_rate"],
        batch_size=n_rows,
        n_steps=min(MOST_STEPS, corpus.n_predictions // n_rows),
        eval_every=int(DEFAULTS["eval_every"]),
        save_every=int(DEFAULTS["save_every"]),
        patience=int(DEFAULTS["patience"]),
    )
    facts = {"files": [text.name], "n_sentences": corpus.n_sentences, "n_tokens": corpus.n_tokens}
    begin_run(run, settings, corpus, facts, 1, initial)

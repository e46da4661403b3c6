"""Which settings of a training are unusual for its text and machine, said before it starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from elmokit.lm.perplexity import unknown_words_warning
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.precision import uses_bfloat16

LOW_ADAGRAD_RATE = 0.05
MANY_EPOCHS = 100


def unusual_settings(config: TrainingConfig, corpus: TrainingCorpus, device: torch.device) -> Iterator[str]:
    """Yield a notice for each setting that is accepted but may be a mistake."""
    n_words = len(corpus.vocabulary)
    if config.precision == "bfloat16" and not uses_bfloat16(config, device):
        yield "bfloat16 needs a processor with AMX or AVX-512 BF16: this training computes in float32."
    if config.optimizer == "adagrad" and config.learning_rate < LOW_ADAGRAD_RATE:
        yield f"A learning rate of {config.learning_rate:g} is low for Adagrad: bilm-tf used 0.2."
    if config.tokens is not None and (epochs := config.tokens / corpus.n_predictions) > MANY_EPOCHS:
        # A frequent mistake with bilm-tf, whose example is for a text of 769 million tokens.
        yield (
            f"The length of {config.tokens:,} predictions is {epochs:,.0f} epochs over this text. Check tokens (in "
            "bilm-tf's options.json: n_train_tokens), or give epochs."
        )
    if warning := unknown_words_warning(corpus.held_out_unknown_ratio):
        yield (
            f"Held-out text: {warning} Train with words of this domain: max_words (--max-words) or vocabulary "
            "(--vocabulary)."
        )
    if config.n_samples > n_words:
        yield f"n_samples is {config.n_samples:,}, but the vocabulary has only {n_words:,} words: all are used."

"""Evaluate a biLM during its training, as ``elmokit evaluate perplexity`` evaluates it afterwards.

Every sentence is read from the model's start state, the mean state after a sentence. It belongs to the weights,
so it is calibrated before each evaluation and saved with the model.

The calibration continues from the LSTM state of the training, not from zero. A training passes its state on without an
end, and a model may learn to rely on cells that are always at their limit. From a state of zero, such cells can end at
another value and stay there: the perplexity of a small model was then 32,000 instead of 88, after any amount of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from elmokit.embedding.start_state import calibrate_start_state
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.perplexity import Perplexity, perplexity
from elmokit.network.bilm import BiLMState
from elmokit.storage.text_files import read_sentences
from elmokit.training.corpus import TrainingCorpus

CALIBRATION_SENTENCES = 32  # more change the perplexity by 0.01 %, and cost time in every evaluation
CALIBRATION_POOL = 1000  # sentences at the start of the files, among which they are chosen at equal distances
CALIBRATION_TOKENS = 200  # of each sentence at most: some texts have a document per line
CALIBRATION_SHARDS = 16


class HeldOutEvaluation:
    """Calibrates models on the training text of a corpus, and evaluates them on its held-out text."""

    def __init__(self, corpus: TrainingCorpus) -> None:
        self._corpus = corpus

    def calibrated(self, model: PretrainedBiLM, lstm_state: BiLMState) -> PretrainedBiLM:
        """Return the model, not copied, with the start state of its present weights; ``lstm_state`` has any rows."""
        model = model.replace(start_state=lstm_state.mean_row().numpy(), card=dict(model.card))
        calibrate_start_state(model, self._calibration_sentences, "the training text")
        return model

    def perplexity(self, model: PretrainedBiLM) -> Perplexity:
        """Compute the perplexity of a model with its start state on the held-out text."""
        return perplexity(model, self._corpus.held_out)

    @cached_property
    def _calibration_sentences(self) -> list[list[str]]:
        return _calibration_sentences(self._corpus.shards, self._corpus.bilm_tf_lines)


def _calibration_sentences(shards: Sequence[Path], bilm_tf_lines: bool = False) -> list[list[str]]:
    """Choose sentences among the first ones of some files of the training text."""
    sampled = shards[:: -(-len(shards) // CALIBRATION_SHARDS)]
    n_each = -(-CALIBRATION_POOL // len(sampled))
    read = [islice(read_sentences(shard, like_bilm_tf=bilm_tf_lines), n_each) for shard in sampled]
    pool = [tokens[:CALIBRATION_TOKENS] for sentences in read for tokens in sentences]
    n_chosen = min(CALIBRATION_SENTENCES, len(pool))
    return [pool[number * len(pool) // n_chosen] for number in range(n_chosen)]

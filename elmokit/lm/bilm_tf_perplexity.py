"""The perplexity that bilm-tf's ``run_test`` reports, to the digit.

bilm-tf reads a text in B parallel batch rows, one position per step. Each row takes the next sentence of the text when
it has finished one. The state starts at zero and is carried from sentence to sentence. The first row without a sentence
ends the test, and the rest of the other rows is never counted. So the number depends on B, and is NaN if B is larger
than the number of sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.embedding.computer import Computer, computer_of
from elmokit.engine.interface import NetworkInput
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.lm.perplexity import DirectionPerplexities, finite_or_none
from elmokit.lm.surprisal import softmax_and_vocabulary, softmax_vocabulary
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import check_sentence, check_sentences
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.vocabulary import UnknownWords, name_words

STEPS_AT_ONCE = 64  # positions per row in one call of the network; the state is carried, so the result is the same


@dataclass(frozen=True)
class BilmTfPerplexity(DirectionPerplexities):
    """The perplexity that bilm-tf reports for a text, and how much of the text it covers."""

    n_predictions: int
    """Counted predictions per direction."""
    n_lost: int
    """Predictions of the text that bilm-tf does not count, per direction."""
    batch_size: int
    """bilm-tf's batch size."""
    unknown_ratio: float
    """Fraction of the text's tokens that are outside the vocabulary and count as ``<UNK>``."""
    unknown_words: tuple[str, ...] = ()
    """The first ten of them, each once."""

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers by name, as printed by ``elmokit evaluate perplexity --json``: None for infinity."""
        return {
            "as_bilm_tf": self.batch_size,
            "n_predictions": self.n_predictions,
            "n_lost": self.n_lost,
            "unknown_ratio": self.unknown_ratio,
            "unknown_words": list(self.unknown_words),
            "perplexity": finite_or_none({**self.by_direction(self.per_direction), "as_bilm_tf": self.mean}),
        }

    def to_text(self) -> str:
        """Return the numbers as readable lines, as printed by ``elmokit evaluate perplexity``."""
        n_all = self.n_predictions + self.n_lost
        named = self.by_direction(self.per_direction)
        unknown = f" ({name_words(self.unknown_words)})" if self.unknown_words else ""
        lost = f"; bilm-tf does not count the other {self.n_lost:,}" if self.n_lost else ""
        return "\n".join(
            [
                f"as bilm-tf reports it with batch size {self.batch_size}: {self.mean:.5f}",
                *(f"{name:<19} {value:.5f}" for name, value in named.items()),
                f"predictions         {self.n_predictions:,} of {n_all:,} per direction{lost}",
                f"unknown words       {self.unknown_ratio:.2%} of the tokens{unknown}",
            ]
        )


def bilm_tf_perplexity(
    model: PretrainedBiLM | Computer,
    sentences: Iterable[Sequence[str]],
    batch_size: int,
    on_read: Callable[[int], object] = lambda _: None,
) -> BilmTfPerplexity:
    """Compute bilm-tf's test perplexity for a batch size; ``on_read`` is called with the predictions of a sentence."""
    check_at_least("batch_size", batch_size, 1)
    computer = computer_of(model)
    computer = computer.with_model(computer.model.replace(exact_marks=True))
    vocabulary = softmax_vocabulary(computer.model)
    n_text = n_sentences = 0
    unknown = UnknownWords()

    def counted() -> Iterator[Sequence[str]]:
        nonlocal n_text, n_sentences
        for sentence in map(check_sentence, check_sentences(sentences)):
            on_read(len(sentence) + 1)
            n_text += len(sentence) + 1
            n_sentences += 1
            unknown.add(sentence, vocabulary.known_ids(sentence) < 0)
            yield sentence

    source = counted()
    total, n_steps = _summed_nats(computer, source, batch_size)
    for _ in source:
        pass
    if not n_steps:
        raise TextError(
            f"{n_sentences} sentences do not fill a batch of {batch_size}, for which bilm-tf prints nan: give a "
            f"batch size of at most {n_sentences}."
        )
    n_predictions = n_steps * batch_size
    mean_nats = tuple((total / n_predictions).tolist())
    n_lost = n_text - n_predictions
    return BilmTfPerplexity(mean_nats, n_predictions, n_lost, batch_size, unknown.ratio, tuple(unknown.first))


def _summed_nats(
    computer: Computer, sentences: Iterator[Sequence[str]], n_rows: int
) -> tuple[NDArray[np.float64], int]:
    """Sum the nats of each direction; return the sums and the number of steps."""
    softmax, vocabulary = softmax_and_vocabulary(computer)
    config, network = computer.model.config, computer.network
    state: State | None = None  # of all rows, once there are sentences for them
    total, n_steps = np.zeros(config.n_directions), 0
    for window in _windows(sentences, n_rows):
        n_steps += len(window)
        if state is None:
            state = State.zero(config, n_rows)
        words, numbers = _number_words(window, n_rows)
        vectors = computer.word_vectors(words)
        word_ids = vocabulary.word_ids(words)
        lengths = np.full(n_rows, len(window))
        after = State.zero(config, n_rows)
        for direction, backward in enumerate(config.read_backward):
            index = numbers[0]
            if backward:  # the network gets the positions in text order, and reads them from the end
                index = numbers[1][:, ::-1]
            inputs, targets = index.reshape(-1, 2).T
            layers, end = network.direction(
                direction, NetworkInput(vectors, np.ascontiguousarray(inputs), lengths, state), [config.n_layers]
            )
            nats = softmax.nats(np.concatenate([top for (top,) in layers]), word_ids[targets])
            computer.check_finite(nats)
            total[direction] += nats.sum(dtype=np.float64)
            after = after.with_direction(direction, end)
        state = after
    return total, n_steps


def _number_words(window: Sequence[Step], n_rows: int) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct words of a window, and their numbers: ``(directions, rows, steps, 2)``, input and target."""
    word_index: dict[str, int] = {}
    numbers = np.empty((2, n_rows, len(window), 2), np.int64)
    for direction, row, step in np.ndindex(numbers.shape[:3]):
        for place, token in enumerate(window[step][row][direction]):
            numbers[direction, row, step, place] = word_index.setdefault(token, len(word_index))
    return list(word_index), numbers


Pair = tuple[str, str]  # the token that is read, and the token that is predicted from it
Step = list[tuple[Pair, Pair]]  # for each row: forward, backward, which reads each sentence from its end


def _windows(sentences: Iterator[Sequence[str]], n_rows: int) -> Iterator[list[Step]]:
    """Yield all steps up to the first one that some row cannot fill, ``STEPS_AT_ONCE`` at a time."""
    rows: list[tuple[list[str], int]] = []  # tokens with boundaries, and how many have been predicted
    window: list[Step] = []
    while True:
        step: Step = []
        for row in range(n_rows):
            tokens, n_done = rows[row] if row < len(rows) else ([], 1)
            if n_done >= len(tokens):
                sentence = next(sentences, None)
                if sentence is None:
                    if window:
                        yield window
                    return
                tokens, n_done = [BEGIN_SENTENCE, *sentence, END_SENTENCE], 1
            step.append(((tokens[n_done - 1], tokens[n_done]), (tokens[-n_done], tokens[-n_done - 1])))
            rows[row : row + 1] = [(tokens, n_done + 1)]
        window.append(step)
        if len(window) == STEPS_AT_ONCE:
            yield window
            window = []

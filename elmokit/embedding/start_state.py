"""The start state: the LSTM state that each sentence starts from.

A biLM is trained on running text, in which the LSTM state is never zero, so it gives poor vectors to the first words
after a zero state. AllenNLP carried the state from batch to batch instead, so vectors depended on whatever was embedded
before. A fixed state that is typical of sentence boundaries has neither problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from elmokit.config import check_choice
from elmokit.embedding.computer import Computer
from elmokit.embedding.documents import read_on
from elmokit.engine.interface import NetworkInput
from elmokit.engine.state import State
from elmokit.errors import TextError, warn_caller
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import number_tokens

StartName = Literal["warm", "zero"]
"""The name of a start state: the model's own, or all zeros."""
N_ROWS = 32  # sentences read in parallel for the mean state
STATE_FACT = "warm_state"  # the key in the model card for the text that the state was calibrated on


def check_start_name(start: str) -> None:
    """Check that the start is neither unknown nor "stateful", where all sentences must start from the same state."""
    check_choice("start", start, get_args(StartName))


def start_state(computer: Computer, start: StartName | State = "warm") -> State:
    """Return the start state with the given name, for one row; a ``State`` is returned unchanged."""
    if isinstance(start, State):
        return start
    check_start_name(start)
    if start == "zero":
        return State.zero(computer.model.config, 1)
    return computer.model.start_state or boundary_state(computer)


def note_start(model: PretrainedBiLM) -> None:
    """Warn that the vectors of a model in a foreign format differ from those of its original program.

    ``elmokit --quiet`` hides it.
    """
    if model.start_state is not None or model.family == "elmokit" or model.source is None:
        return
    from elmokit.storage.progress import is_quiet  # imported here because most models need no note

    if not is_quiet():
        warn_caller(
            f"{model.source_name} has no stored start state, so each sentence starts from the state after an empty "
            "one. For the numbers of AllenNLP and bilm-tf, choose the start 'stateful'; for those of TF-Hub, 'zero' "
            "(start= in Python, --start; elmokit convert --start stores one).",
        )


def with_start_state(model: PretrainedBiLM, start: StartName) -> PretrainedBiLM:
    """Return the model with the named start state, which is also noted in the model card."""
    if start == "warm" and model.start_state is not None:
        return model
    fact = "zero" if start == "zero" else "state after an empty sentence"
    return model.replace(start_state=start_state(Computer(model), start), card={**model.card, STATE_FACT: fact})


def stored_or_zero_state(model: PretrainedBiLM, n_rows: int) -> State:
    """Return the state for reading running text: the stored one in each row, or else zero."""
    if model.start_state is None:
        return State.zero(model.config, n_rows)
    return model.start_state.repeat_row(n_rows)


def calibrated(computer: Computer, sentences: Sequence[Sequence[str]], text_name: str) -> PretrainedBiLM:
    """Return the model with the mean state after a sentence as its start state, noted in the model card.

    The sentences are running text, in order; a few hundred are enough. ``text_name`` is for the card.
    """
    from elmokit.storage.progress import count_of  # imported here because embedding does not need it

    fact = f"mean state after a sentence, over {count_of(len(sentences), 'sentence')} of {text_name}"
    model = computer.model
    return model.replace(start_state=mean_state(computer, sentences), card={**model.card, STATE_FACT: fact})


def boundary_state(computer: Computer) -> State:
    """Return the state after one empty sentence, ``<S> </S>``, read from a zero state."""
    # Only one sentence: text never has many empty sentences in a row, and after sixteen of them, a trained biLM can be
    # far from any state that text leads to.
    batch = number_tokens([[]])
    vectors, start = computer.word_vectors(batch.words), State.zero(computer.model.config, 1)
    inputs = NetworkInput(vectors, batch.index, batch.lengths, start)
    _, after = computer.network.layers(inputs, (), returns_state=True)
    assert after is not None
    return after


def mean_state(computer: Computer, sentences: Sequence[Sequence[str]]) -> State:
    """Return the mean state after a sentence, with the state carried from sentence to sentence."""
    if not sentences:
        raise TextError("The start state cannot be calibrated: the text has no sentences.")
    n_rows = min(N_ROWS, len(sentences))
    # From the stored state, if any: a biLM that has never seen a zero state may not recover from it, however much text
    # it reads.
    state, states = stored_or_zero_state(computer.model, n_rows), []
    for first in range(0, len(sentences) - n_rows + 1, n_rows):
        rows = [[sentence] for sentence in sentences[first : first + n_rows]]
        state = read_on(computer, rows, state, ()).after
        states.append(state)
    states = states[len(states) // 5 :]  # the first batches are still affected by the initial state
    hidden = np.concatenate([state.hidden for state in states], axis=2)
    cell = np.concatenate([state.cell for state in states], axis=2)
    return State(hidden, cell).mean_row()

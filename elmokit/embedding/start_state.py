"""The start state: the LSTM state that every sentence starts from.

A biLM was trained on running text: it has never seen an LSTM state of zero in the middle of a text, and gives poor
vectors to the first words after one. AllenNLP carried the state from batch to batch instead, so that vectors depended
on whatever was embedded before. A fixed state that is typical of sentence boundaries has neither problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from elmokit.config import check_choice
from elmokit.embedding.computer import Computer
from elmokit.embedding.documents import read_on
from elmokit.engine.interface import NetworkInput
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import number_tokens

StartName = Literal["warm", "zero"]
"""The name of a start state: the model's own, or all zeros."""
N_ROWS = 32  # sentences that are read side by side for the mean state
STATE_FACT = "warm_state"  # what the model card calls the text that the state was calibrated on


def check_start_name(start: str) -> None:
    """Check, where every sentence must start from the same state, that the start is neither "stateful" nor unknown."""
    check_choice("start", start, get_args(StartName))


def start_state(computer: Computer, start: StartName | State = "warm") -> State:
    """Return the start state of a name, for one row; a ``State`` is returned as it is."""
    if isinstance(start, State):
        return start
    check_start_name(start)
    if start == "zero":
        return State.zero(computer.model.config, 1)
    return computer.model.start_state or boundary_state(computer)


def note_start(model: PretrainedBiLM) -> None:
    """Warn that the vectors of a model in a foreign format are not those of the program that it was made for.

    ``elmokit --quiet`` leaves it out.
    """
    if model.start_state is not None or model.family == "elmokit" or model.source is None:
        return
    from elmokit.storage.progress import is_quiet  # here, because most models need no note

    if not is_quiet():
        warnings.warn(
            f"{model.source_name} has no stored start state, so each sentence starts from the state after an empty "
            "one. For the numbers of AllenNLP and bilm-tf, choose the start 'stateful'; for those of TF-Hub, 'zero' "
            "(start= in Python, --start; elmokit convert --start stores one).",
            stacklevel=3,
        )


def with_start_state(model: PretrainedBiLM, start: StartName) -> PretrainedBiLM:
    """Return a model that stores the start state of a name, opens with it, and says so in its model card."""
    if start == "warm" and model.start_state is not None:
        return model
    fact = "zero" if start == "zero" else "state after an empty sentence"
    return model.replace(start_state=start_state(Computer(model), start), card={**model.card, STATE_FACT: fact})


def stored_or_zero_state(model: PretrainedBiLM, n_rows: int) -> State:
    """Return the state to read running text from: in each row that stored with the model, or else zero."""
    if model.start_state is None:
        return State.zero(model.config, n_rows)
    return model.start_state.repeat_row(n_rows)


def calibrated(computer: Computer, sentences: Sequence[Sequence[str]], text_name: str) -> PretrainedBiLM:
    """Return the model with the mean state after a sentence as its start state, and say so in its model card.

    The sentences are running text, in order; a few hundred are enough. ``text_name`` is for the card.
    """
    from elmokit.storage.progress import count_of  # here, because who embeds does not need it

    fact = f"mean state after a sentence, over {count_of(len(sentences), 'sentence')} of {text_name}"
    model = computer.model
    return model.replace(start_state=mean_state(computer, sentences), card={**model.card, STATE_FACT: fact})


def boundary_state(computer: Computer) -> State:
    """Return the state after one empty sentence, ``<S> </S>``, read from a state of zero."""
    # One sentence only: text never contains many empty sentences in a row, and a trained biLM that reads sixteen of
    # them can end far from any state that text leads to.
    batch = number_tokens([[]])
    vectors, start = computer.word_vectors(batch.words), State.zero(computer.model.config, 1)
    inputs = NetworkInput(vectors, batch.index, batch.lengths, start)
    _, after = computer.network.layers(inputs, (), returns_state=True)
    assert after is not None
    return after


def mean_state(computer: Computer, sentences: Sequence[Sequence[str]]) -> State:
    """Return the mean state after a sentence, with the state carried from sentence to sentence."""
    if not sentences:
        raise TextError("The start state cannot be calibrated: the text has no sentence.")
    n_rows = min(N_ROWS, len(sentences))
    # From the stored state, if there is one: a biLM that has never seen a state of zero may not recover from it,
    # however much text it reads.
    state, states = stored_or_zero_state(computer.model, n_rows), []
    for first in range(0, len(sentences) - n_rows + 1, n_rows):
        rows = [[sentence] for sentence in sentences[first : first + n_rows]]
        state = read_on(computer, rows, state, ()).after
        states.append(state)
    states = states[len(states) // 5 :]  # the first batches are still affected by the state before them
    return State(*(np.concatenate(arrays, axis=2) for arrays in zip(*states, strict=True))).mean_row()

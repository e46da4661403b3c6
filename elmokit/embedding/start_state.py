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
from elmokit.embedding.documents import read_on
from elmokit.engine.network import NetworkInput
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.formats.model import PretrainedBiLM
from elmokit.text.batching import number_tokens

StartName = Literal["warm", "zero"]
"""The name of a start state: the model's own, or all zeros."""
N_ROWS = 32  # sentences that are read side by side for the mean state
STATE_FACT = "warm_state"  # what the model card calls the text that the state was calibrated on


def check_start_name(start: str) -> None:
    """Check, where every sentence must start from the same state, that the start is neither "stateful" nor unknown."""
    check_choice("start", start, get_args(StartName))


def start_state(model: PretrainedBiLM, start: StartName | State = "warm") -> State:
    """Return the start state of a name, for one row; a ``State`` is returned as it is."""
    if isinstance(start, State):
        return start
    check_start_name(start)
    if start == "zero":
        return State.zero(model.config, 1)
    return model.start_state or boundary_state(model)


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


def store_start_state(model: PretrainedBiLM, start: StartName) -> None:
    """Store the start state of a name with a model, which then opens with it, and record that in its model card."""
    if start == "zero" or model.start_state is None:
        model.start_state = start_state(model, start)
        model.card[STATE_FACT] = "zero" if start == "zero" else "state after an empty sentence"


def stored_or_zero_state(model: PretrainedBiLM, n_rows: int) -> State:
    """Return the state to read running text from: in each row that stored with the model, or else zero."""
    if model.start_state is None:
        return State.zero(model.config, n_rows)
    return model.start_state.repeat_row(n_rows)


def calibrate_start_state(model: PretrainedBiLM, sentences: Sequence[Sequence[str]], text_name: str) -> None:
    """Set the start state of a model to the mean state after a sentence, and record that in its model card.

    The sentences are running text, in order; a few hundred are enough. ``text_name`` is for the card.
    """
    from elmokit.storage.progress import count_of  # here, because who embeds does not need it

    model.start_state = mean_state(model, sentences)
    model.card[STATE_FACT] = f"mean state after a sentence, over {count_of(len(sentences), 'sentence')} of {text_name}"


def boundary_state(model: PretrainedBiLM) -> State:
    """Return the state after one empty sentence, ``<S> </S>``, read from a state of zero."""
    # One sentence only: text never contains many empty sentences in a row, and a trained biLM that reads sixteen of
    # them can end far from any state that text leads to.
    batch = number_tokens([[]])
    vectors, start = model.word_vectors(batch.words), State.zero(model.config, 1)
    _, after = model.network.layers(NetworkInput(vectors, batch.index, batch.lengths, start), (), returns_state=True)
    assert after is not None
    return after


def mean_state(model: PretrainedBiLM, sentences: Sequence[Sequence[str]]) -> State:
    """Return the mean state after a sentence, with the state carried from sentence to sentence."""
    if not sentences:
        raise TextError("The start state cannot be calibrated: the text has no sentence.")
    n_rows = min(N_ROWS, len(sentences))
    # From the stored state, if there is one: a biLM that has never seen a state of zero may not recover from it,
    # however much text it reads.
    state, states = stored_or_zero_state(model, n_rows), []
    for first in range(0, len(sentences) - n_rows + 1, n_rows):
        rows = [[sentence] for sentence in sentences[first : first + n_rows]]
        state = read_on(model, rows, state, ()).after
        states.append(state)
    states = states[len(states) // 5 :]  # the first batches are still affected by the state before them
    return State(*(np.concatenate(arrays, axis=2) for arrays in zip(*states, strict=True))).mean_row()

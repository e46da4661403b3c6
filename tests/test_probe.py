from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedder import Elmo
from elmokit.errors import MissingExtraError, TextError
from elmokit.probe.neighbours import nearest_tokens
from elmokit.probe.pos import TaggedSentence, probe_pos, read_conllu
from elmokit.weights.model import StoredModel

VECTORS = [
    np.array([[[1, 0], [0, 1]], [[0, 1], [1, 1]]], dtype=np.float32),  # (layers, tokens, dim)
    np.array([[[0, 1], [3, 0.1]], [[1, 0], [1, 0]]], dtype=np.float32),
    np.array([[[-1, 0]], [[2, 2]]], dtype=np.float32),
]


def test_nearest_tokens_are_by_cosine_in_one_layer_and_in_other_sentences() -> None:
    places = [(n.sentence, n.token) for n in nearest_tokens(VECTORS, 0, 0, layer=0)]
    assert places == [(1, 1), (1, 0), (2, 0)]
    best = nearest_tokens(VECTORS, 0, 1, layer=1, n_neighbours=1)
    assert [(n.sentence, n.token) for n in best] == [(2, 0)]
    assert best[0].similarity == pytest.approx(1.0)


def test_nearest_tokens_are_chosen_among_places_if_given() -> None:
    found = nearest_tokens(VECTORS, 0, 0, layer=0, among=[(0, 1), (1, 0), (2, 0)])
    assert [(n.sentence, n.token) for n in found] == [(1, 0), (2, 0)]


def test_conllu_is_read_without_multiword_tokens_and_empty_nodes(tmp_path: Path) -> None:
    path = tmp_path / "text.conllu"
    tail = "\t_" * 6
    path.write_text(
        f"# sent_id = 1\n1-2\tdon't\t_\t_{tail}\n1\tdo\t_\tAUX{tail}\n2\tn't\t_\tPART{tail}\n2.1\tx\t_\tX{tail}\n\n"
        f"1\tGo\t_\tVERB{tail}\n"
    )
    assert list(read_conllu(path)) == [
        TaggedSentence(["do", "n't"], ["AUX", "PART"]),
        TaggedSentence(["Go"], ["VERB"]),
    ]
    path.write_text("1\tGo\tVERB\n")
    with pytest.raises(TextError, match=r"text\.conllu, line 1: 3 columns, expected 10"):
        list(read_conllu(path))


def test_probe_wants_sentences_and_its_library(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = TaggedSentence(["Go"], ["VERB"])
    with pytest.raises(TextError, match="one of the two is empty"):
        probe_pos(Elmo(model), [], [sentence])
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'elmokit\[probe\]'"):
        probe_pos(Elmo(model), [sentence], [sentence])

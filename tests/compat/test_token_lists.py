"""The classes of the old programs iterate over whatever is given as a sentence or a batch, as those programs did."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from elmokit.compat import tfhub
from elmokit.compat.allennlp import ElmoEmbedder, batch_to_ids
from elmokit.compat.bilm import Batcher, TokenBatcher, UnicodeCharsVocabulary
from elmokit.compat.many_langs import Embedder
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.compat.token_lists import token_list, token_lists
from elmokit.errors import TextError
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from tests.conftest import WORDS, random_model

TOKENS = ["the", "cat", "sat"]


class Series:
    """Behaves like a pandas Series whose index does not start at 0."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, label: int) -> Any:
        raise KeyError(label)

    def __bool__(self) -> bool:
        raise ValueError("The truth value of a Series is ambiguous.")


SENTENCES: dict[str, Callable[[], Any]] = {
    "array": lambda: np.array(TOKENS),
    "array of objects": lambda: np.array(TOKENS, dtype=object),
    "strings of NumPy": lambda: list(np.array(TOKENS)),
    "series": lambda: Series(TOKENS),
    "tuple": lambda: tuple(TOKENS),
    "deque": lambda: deque(TOKENS),
    "generator": lambda: (token for token in TOKENS),
    "map": lambda: map(str, TOKENS),
    "filter": lambda: filter(None, TOKENS),
    "iterator": lambda: iter(TOKENS),
    "keys": lambda: dict.fromkeys(TOKENS).keys(),
    "values": lambda: dict(enumerate(TOKENS)).values(),
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], Any]]:
    """Every call of the old programs that takes a batch of tokenized sentences."""
    folder = tmp_path_factory.mktemp("model")
    write_hdf5(random_model(), folder / "options.json", folder / "model.hdf5")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    embedder = ElmoEmbedder(folder / "options.json", folder / "model.hdf5", stateful=False)
    simple = ElmoModel()
    simple.load(folder)
    vocabulary = UnicodeCharsVocabulary(folder / "vocab.txt", 50)
    module = tfhub.Module(folder)
    return {
        "batch_to_ids": batch_to_ids,
        "embed_batch": embedder.embed_batch,
        "embed_sentences": lambda batch: list(embedder.embed_sentences(batch, 1)),
        "embed_sentence": lambda batch: [embedder.embed_sentence(sentence) for sentence in batch],
        "batch_to_embeddings": lambda batch: embedder.batch_to_embeddings(batch)[0],
        "Batcher": Batcher(folder / "vocab.txt", 50).batch_sentences,
        "TokenBatcher": TokenBatcher(folder / "vocab.txt").batch_sentences,
        "encode": lambda batch: [vocabulary.encode(sentence, split=False) for sentence in batch],
        "encode_chars": lambda batch: [vocabulary.encode_chars(sentence) for sentence in batch],
        "sents2elmo": Embedder(folder).sents2elmo,
        "get_elmo_vectors": simple.get_elmo_vectors,
        "get_elmo_vector_average": simple.get_elmo_vector_average,
        "tokens": lambda batch: module({"tokens": batch, "sequence_len": np.array([3, 3])}, "tokens").detach(),
    }


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_sentence_may_be_any_iterable_with_an_order(kind: str) -> None:
    make = SENTENCES[kind]
    assert token_list(make()) == TOKENS
    assert token_lists(make() for _ in range(2)) == [TOKENS, TOKENS]


def test_every_call_reads_such_a_batch(calls: dict[str, Callable[[Any], Any]]) -> None:
    for name, call in calls.items():
        expected = call([TOKENS, TOKENS])
        for batch in (
            np.array([TOKENS, TOKENS]),
            Series([Series(TOKENS)] * 2),
            ((token for token in TOKENS) for _ in range(2)),
        ):
            for one, other in zip(expected, call(batch), strict=True):
                np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=name)


def test_empty_arrays_are_sentences_without_tokens(calls: dict[str, Callable[[Any], Any]]) -> None:
    empty = np.array([], dtype=str)
    assert [array.shape for array in calls["embed_batch"]([empty, empty])] == [(3, 0, 64)] * 2
    assert calls["batch_to_ids"]([empty, np.array(TOKENS)]).shape == (2, 3, 50)
    assert calls["get_elmo_vectors"]([empty]).shape == (1, 0, 64)


@pytest.mark.parametrize("sentence", ["the cat", b"the cat", {"the", "cat"}, {"the": 1}, 5, [1, 2], iter([None])])
def test_what_has_no_order_of_strings_is_refused(sentence: Any) -> None:
    with pytest.raises(TextError):
        token_list(sentence)
    with pytest.raises(TextError):
        token_lists("the cat")

from __future__ import annotations

import contextlib
import copy
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import Elmo
from elmokit.engine.state import Floats
from elmokit.engine.token_cache import TokenCache
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import random_model

DIM = 4
ROW_BYTES = 4 * DIM
VERSION = object()


def vector(word: str) -> list[float]:
    return [float(ord(word)), len(word), 0.5, -1.0]


class Counting:
    """Computes vectors and notes for which words."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, words: Sequence[str]) -> Floats:
        self.words += words
        return np.array([vector(word) for word in words], np.float32).reshape(-1, DIM)


@pytest.mark.slow
@given(
    batches=st.lists(st.lists(st.characters(codec="latin-1"), min_size=1, max_size=12, unique=True), max_size=12),
    rows=st.integers(1, 10),
)
def test_whatever_is_kept_the_vectors_are_those_of_the_words(batches: list[list[str]], rows: int) -> None:
    cache = TokenCache(rows * ROW_BYTES)
    for words in batches:
        found = cache.vectors(words, Counting(), VERSION)
        assert found.tolist() == [vector(word) for word in words]
        assert len(cache) <= rows


def test_a_token_is_computed_once() -> None:
    cache, compute = TokenCache(), Counting()
    for words in (["a", "b"], ["b", "c", "a"], ["c"]):
        cache.vectors(words, compute, VERSION)
    assert compute.words == ["a", "b", "c"]


def test_what_was_used_longest_ago_goes_first() -> None:
    cache, compute = TokenCache(3 * ROW_BYTES), Counting()
    for words in (["a", "b", "c"], ["a"], ["d"], ["a", "c", "d"]):
        cache.vectors(words, compute, VERSION)
    assert compute.words == ["a", "b", "c", "d"]  # d took b's place
    cache.vectors(["b"], compute, VERSION)
    assert compute.words[-1] == "b"


def test_the_table_grows_past_its_first_rows_and_keeps_what_it_has() -> None:
    cache, compute = TokenCache(), Counting()
    words = [chr(200 + i) for i in range(3000)]
    for start in range(0, 3000, 500):
        cache.vectors(words[start : start + 500], compute, VERSION)
    random.Random(0).shuffle(words)
    assert cache.vectors(words, compute, VERSION).tolist() == [vector(word) for word in words]
    assert len(compute.words) == 3000


def test_it_forgets_when_the_weights_change_and_a_copy_starts_empty() -> None:
    cache = TokenCache()
    cache.vectors(["a"], Counting(), VERSION)
    assert len(copy.deepcopy(cache)) == 0
    compute = Counting()
    cache.vectors(["a"], compute, object())
    assert compute.words == ["a"]


class InterruptingWord(str):
    """A word that Ctrl-C interrupts at one of its uses as a key."""

    n_uses_left: int

    def __hash__(self) -> int:
        self.n_uses_left -= 1
        if not self.n_uses_left:
            raise KeyboardInterrupt
        return super().__hash__()


@pytest.mark.parametrize("n_uses", range(1, 9))
def test_after_ctrl_c_the_vectors_are_those_of_the_words(n_uses: int) -> None:
    cache = TokenCache(4 * ROW_BYTES)
    cache.vectors(["a", "b", "c", "d"], Counting(), VERSION)
    word = InterruptingWord("a")
    word.n_uses_left = n_uses
    with contextlib.suppress(KeyboardInterrupt):
        cache.vectors(["b", word, "e"], Counting(), VERSION)
    for words in (["f"], ["a", "b", "c", "d"], ["g", "h"], ["a", "c", "f"], ["d", "g", "h"]):
        assert cache.vectors(words, Counting(), VERSION).tolist() == [vector(word) for word in words]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_process_that_is_forked_while_another_thread_computes_can_compute() -> None:
    script = """
import os, signal, threading
import numpy as np
from elmokit.engine.token_cache import TokenCache

cache, computes, may_end = TokenCache(), threading.Event(), threading.Event()

def compute_until_told(words):
    computes.set()
    may_end.wait()
    return np.zeros((len(words), 4), np.float32)

thread = threading.Thread(target=cache.vectors, args=(["a"], compute_until_told, "version"))
thread.start()
computes.wait()
child = os.fork()
if not child:
    signal.alarm(60)  # ends a child that waits
    may_end.set()
    os._exit(0 if cache.vectors(["a"], compute_until_told, "version").shape == (1, 4) else 1)
status = os.waitpid(child, 0)[1]
may_end.set()
thread.join()
assert status == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_vectors_are_the_same_with_and_without_it(model: PretrainedBiLM) -> None:
    sentences = [["the", "cat", "sat"], ["on", "the", "mat", "."], ["the", "the"], []] * 3
    kept = Elmo(model).embed(sentences, batch_tokens=8)
    anew = Elmo(random_model(), token_cache_mib=0).embed(sentences, batch_tokens=8)
    for ours, theirs in zip(kept, anew, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)

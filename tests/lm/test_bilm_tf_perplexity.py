"""bilm-tf's own test perplexity, batch size and all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.engine.architecture import BiLMConfig
from elmokit.formats import tf_checkpoint
from elmokit.lm import bilm_tf_perplexity as as_bilm_tf
from elmokit.lm.bilm_tf_perplexity import bilm_tf_perplexity
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.perplexity import perplexity
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from tests.helpers import trace_b

TEXT = [line.split() for line in trace_b.LINES]


@pytest.mark.parametrize(
    ("config", "tied", "expected"),
    [
        (trace_b.CHARS, False, (15.720540, 15.197031)),
        (trace_b.TIED_WORDS, True, (13.671339, 13.262549)),
        (trace_b.FORWARD_WORDS, False, (12.080170, 12.335299)),
    ],
    ids=["characters", "words, tied", "words, forward"],
)
def test_the_perplexity_equals_traces_of_bilm_tf(
    tmp_path: Path, config: BiLMConfig, tied: bool, expected: tuple[float, float]
) -> None:
    model = tf_checkpoint.FORMAT.load(trace_b.write_checkpoint(tmp_path, config, tied))
    for n_rows, number in enumerate(expected, start=1):
        result = bilm_tf_perplexity(model, TEXT, n_rows)
        assert result.mean == pytest.approx(number, abs=1e-4)
        assert (result.n_predictions, result.n_lost) == (20, 0)


@pytest.mark.parametrize(("n_rows", "expected"), [(1, 100.72575), (7, 100.67164)])
def test_the_perplexity_equals_that_of_a_run_of_bilm_tf(bilm_tf_run: Path, n_rows: int, expected: float) -> None:
    sentences = Text(bilm_tf_run / "train.txt", kind="bilm-tf").token_lists()
    assert bilm_tf_perplexity(tf_checkpoint.FORMAT.load(bilm_tf_run), sentences, n_rows).mean == pytest.approx(
        expected, abs=1e-4
    )


@pytest.mark.parametrize(("n_rows", "n_counted"), [(1, 15), (2, 10), (3, 9), (4, 8)])
def test_tails_are_lost_as_in_bilm_tf(model: PretrainedBiLM, n_rows: int, n_counted: int) -> None:
    text = [["the"] * n_words for n_words in (3, 2, 1, 5)]
    result = bilm_tf_perplexity(model, text, n_rows)
    assert (result.n_predictions, result.n_lost) == (n_counted, 15 - n_counted)


def plain_rows(text: Sequence[Sequence[str]], n_rows: int, backward: bool) -> list[list[tuple[str, str]]]:
    """Step by step as the original's batches are described: inputs and targets of each row."""
    boundaries = ("</S>", "<S>") if backward else ("<S>", "</S>")
    stream = iter([[boundaries[0], *(reversed(words) if backward else words), boundaries[1]] for words in text])
    rest: list[list[str]] = [[] for _ in range(n_rows)]
    steps: list[list[tuple[str, str]]] = []
    while True:
        step = []
        for row in range(n_rows):
            if len(rest[row]) <= 1:
                if (sentence := next(stream, None)) is None:
                    return steps
                rest[row] = sentence
            step.append((rest[row][0], rest[row][1]))
            rest[row] = rest[row][1:]
        steps.append(step)


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=4), max_size=8), st.integers(1, 4))
def test_rows_are_filled_as_in_bilm_tf(text: list[list[str]], n_rows: int) -> None:
    steps = [step for window in as_bilm_tf._windows(iter(text), n_rows) for step in window]
    for direction in range(2):
        assert [[pair[direction] for pair in step] for step in steps] == plain_rows(text, n_rows, direction == 1)


def test_one_row_equals_the_perplexity_of_a_document_from_zero(model: PretrainedBiLM) -> None:
    ours = perplexity(model, [TEXT], "zero", documents=True)
    assert bilm_tf_perplexity(model, TEXT, 1).mean_nats == pytest.approx(ours.mean_nats, abs=1e-6)


def test_the_last_file_comes_first_and_blank_lines_are_sentences(model: PretrainedBiLM, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the\u00a0cat\n\n")
    (tmp_path / "b.txt").write_text("the dog\n")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    of_files = LanguageModel(model).bilm_tf_perplexity(paths, 1)
    assert of_files == bilm_tf_perplexity(model, [["the", "dog"], ["the", "cat"], []], 1)

"""Packing as bilm-tf's, and a position that can be saved."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.text.text import Text
from elmokit.text.vocabulary import Vocabulary
from elmokit.training import shards as shards_module
from elmokit.training import windows as stream_module
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.windows import Window, WindowStream

VOCABULARY = Vocabulary(["<S>", "</S>", "<UNK>", "the", ".", "Āt"])


def encode_words(tokens: object) -> np.ndarray:
    return VOCABULARY.word_ids(tokens) + 1  # type: ignore[arg-type]


def make_stream(
    paths: list[Path], batch_size: int = 2, window_length: int = 3, same_order: bool = True, **order: Any
) -> WindowStream:
    blocks = [SentenceBlocks(Text(paths), ReadingOrder(**order), reader) for reader in range(1 if same_order else 2)]
    return WindowStream(blocks, VOCABULARY, encode_words, batch_size, window_length)


def written(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"shard-{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def input_ids(window: Window) -> list[list[list[int]]]:
    return (window.tokens[window.inputs] - 1).tolist()


def test_windows_are_those_of_bilm_tfs_own_example(tmp_path: Path) -> None:
    stream = make_stream(written(tmp_path, "the unknown .\nth .\nthe\n"), shuffle=False)
    first, second = islice(stream, 2)
    assert input_ids(first)[0] == [[0, 3, 2], [0, 2, 4]]
    assert first.targets[0].tolist() == [[3, 2, 4], [2, 4, 1]]
    assert input_ids(second)[0] == [[4, 0, 3], [0, 3, 2]]
    assert second.targets[0].tolist() == [[1, 3, 1], [3, 2, 4]]
    assert input_ids(first)[1] == [[1, 4, 2], [1, 4, 2]]
    assert first.targets[1].tolist() == [[4, 2, 3], [4, 2, 0]]
    assert input_ids(second)[1] == [[3, 1, 3], [1, 4, 2]]
    assert second.targets[1].tolist() == [[0, 3, 0], [4, 2, 3]]


def test_an_epoch_reads_every_sentence_once(tmp_path: Path) -> None:
    paths = written(tmp_path, "the\n. .\n", "\nthe . the\n", ". the\n")
    stream = make_stream(paths, batch_size=1, window_length=1)
    n_predictions = (1 + 1) + (2 + 1) + (3 + 1) + (2 + 1)
    targets = [int(window.targets[0, 0, 0]) for window in islice(stream, n_predictions)]
    assert stream.epoch == 0
    assert targets.count(VOCABULARY.end_id) == 4
    assert sorted(targets) == sorted([3, 4, 4, 3, 4, 3, 4, 3] + 4 * [1])


@settings(max_examples=25)
@given(
    n_before=st.integers(0, 30),
    batch_size=st.integers(1, 4),
    window_length=st.integers(1, 5),
    seed=st.integers(0, 5),
    passage_length=st.integers(1, 3),
)
def test_a_restored_stream_continues_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    n_before: int,
    batch_size: int,
    window_length: int,
    seed: int,
    passage_length: int,
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    paths = written(folder, "the .\nthe unknown words .\n.\nthe the the\n", ". .\nthe\n", "Āt\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "RANGE_LINES", 5)
        patch.setattr(shards_module, "BLOCK_LINES", 2)
        patch.setattr(shards_module, "OPEN_SHARDS", 2)
        straight = make_stream(
            paths, batch_size, window_length, seed=seed, passage_length=passage_length, lower_case=0.5
        )
        for _ in islice(straight, n_before):
            pass
        position = json.loads(json.dumps(straight.position()))
        restored = make_stream(
            paths, batch_size, window_length, seed=seed, passage_length=passage_length, lower_case=0.5
        )
        restored.restore(position)
        for expected, window in zip(islice(straight, 12), restored, strict=False):
            np.testing.assert_array_equal(window.targets, expected.targets)
            np.testing.assert_array_equal(window.tokens[window.inputs], expected.tokens[expected.inputs])


def test_the_order_follows_from_the_seed(tmp_path: Path) -> None:
    paths = written(tmp_path, "".join(f"{'the ' * n}.\n" for n in range(1, 30)))

    def lengths(seed: int) -> list[int]:
        return next(make_stream(paths, 8, 20, seed=seed)).targets[0].ravel().tolist()

    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)


def test_shards_are_mixed(tmp_path: Path) -> None:
    paths = written(tmp_path, "the\n" * 50, ".\n" * 50)
    words = next(make_stream(paths, 1, 40)).targets[0].ravel().tolist()
    assert 3 < words.count(3) < 17
    assert 3 < words.count(4) < 17


def test_processes_share_the_corpus_and_finish_an_epoch_together(tmp_path: Path) -> None:
    lengths = list(range(1, 40))
    sentences = [f"{'the ' * length}.\n" for length in lengths]
    paths = written(tmp_path, "\n".join(sentences[:30]), "".join(sentences[30:]), "\n\n \t\n")
    read: list[list[int]] = []
    for number in range(3):
        blocks = SentenceBlocks(Text(paths), ReadingOrder(rank=number, n_ranks=3))
        passes = takewhile(lambda block: block.position.epoch == 0, blocks)
        read.append([len(sentence) - 1 for block in passes for passage in block.passages for sentence in passage])
        blocks.close()
    assert sorted(chain.from_iterable(read)) == lengths
    assert {len(of_process) for of_process in read} == {13}


def test_a_process_that_gets_no_passage_in_an_epoch_reads_on_in_the_next(tmp_path: Path) -> None:
    paths = written(tmp_path, "the cat .\n" * 30)
    for seed in range(10):
        for number in range(2):
            blocks = SentenceBlocks(Text(paths), ReadingOrder(seed, rank=number, n_ranks=2, passage_length=35))
            assert next(blocks).passages
            blocks.close()


def test_each_direction_can_read_the_corpus_in_its_own_order(tmp_path: Path) -> None:
    paths = written(tmp_path, "".join(f"{'the ' * n}.\n" for n in range(1, 40)))
    same = next(make_stream(paths, 4, 30)).targets
    apart = next(make_stream(paths, 4, 30, same_order=False)).targets
    np.testing.assert_array_equal(apart[0], same[0])
    assert (apart[1] != same[1]).any()
    position = json.loads(json.dumps(make_stream(paths, 4, 30, same_order=False).position()))
    assert len(position) == 2


def test_unknown_words_are_dropped_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_UNKNOWN", 10)
    monkeypatch.setattr(shards_module, "BLOCK_LINES", 4)
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the"])
    text = "".join(f"the word{n} the new{n}\n" for n in range(60))
    paths = written(tmp_path, text)

    def codes(tokens: Sequence[str]) -> np.ndarray:
        return np.array([sum(map(ord, token)) for token in tokens])

    def stream() -> WindowStream:
        return WindowStream([SentenceBlocks(Text(paths), ReadingOrder())], vocabulary, codes, 3, 4)

    bounded = stream()
    with monkeypatch.context() as unbounded_limit:
        windows = list(islice(bounded, 90))
        unbounded_limit.setattr(stream_module, "MAX_UNKNOWN", 10_000)
        for ours, theirs in zip(windows, stream(), strict=False):
            np.testing.assert_array_equal(ours.tokens[ours.inputs], theirs.tokens[theirs.inputs])
            np.testing.assert_array_equal(ours.targets, theirs.targets)
    assert bounded._table.n_unknown < 40


def test_a_stream_can_start_at_a_later_epoch(tmp_path: Path) -> None:
    paths = written(tmp_path, "".join(f"{'the ' * n}.\n" for n in range(1, 10)))
    stream = make_stream(paths, 1, 5)
    first = next(stream).targets.copy()
    while stream.epoch < 1:
        expected = next(stream)
    stream.start_epoch(0)
    np.testing.assert_array_equal(next(stream).targets, first)
    stream.start_epoch(1)
    assert next(stream).targets.shape == expected.targets.shape
    assert stream.epoch == 1


def passages_of(paths: list[Path], **settings: Any) -> list[list[str]]:
    """Return the passages of one epoch, each sentence as a line."""
    blocks = SentenceBlocks(Text(paths), ReadingOrder(n_epochs=1, **settings))
    passages = [[" ".join(tokens) for tokens in passage] for block in blocks for passage in block.passages]
    blocks.close()
    return passages


def test_half_of_the_text_is_read_in_passages_that_end_with_the_document(tmp_path: Path) -> None:
    documents = [[f"{document} {line} ." for line in range(60)] for document in range(40)]
    (path,) = written(tmp_path, "".join("\n".join(lines) + "\n\n" for lines in documents))
    passages = passages_of([path], passage_length=10)
    assert sorted(line for passage in passages for line in passage) == sorted(chain.from_iterable(documents))
    for passage in passages:
        document, first, _ = passage[0].split()
        assert passage == documents[int(document)][int(first) : int(first) + len(passage)]
    longer = [len(passage) for passage in passages if len(passage) > 1]
    assert max(longer) == 15
    # Each passage stays whole with a probability of a half: 240 of them, so five standard deviations are 0.16.
    assert abs(sum(longer) / 2400 - 0.5) < 0.17
    assert passages != sorted(passages)


def test_some_sentences_are_read_in_lower_case(tmp_path: Path) -> None:
    (path,) = written(tmp_path, "The Thames FLOWS .\n" * 4000)
    lines = [line for passage in passages_of([path], lower_case=0.2) for line in passage]
    counts = Counter(lines)
    assert set(counts) == {"The Thames FLOWS .", "the thames flows .", "the Thames FLOWS ."}
    # 10 % of 4,000 with a standard deviation of 19.
    assert all(abs(counts[line] - 400) < 95 for line in ("the thames flows .", "the Thames FLOWS ."))

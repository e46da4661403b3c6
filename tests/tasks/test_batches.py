"""Batches of an epoch, and samples of the data."""

from __future__ import annotations

from typing import Any

from elmokit.tasks.run import sample_texts
from elmokit.tasks.task import MAX_SQUARES, _bounded
from elmokit.tasks.task_loop import epoch_batches
from elmokit.text.batching import plan_batches

LENGTHS = [(n % 17 + 1,) for n in range(100)]


def test_every_example_is_in_one_batch() -> None:
    for bucketed in (False, True):
        batches = epoch_batches(LENGTHS, 8, bucketed, seed=1, epoch=0)
        assert sorted(place for batch in batches for place in batch) == list(range(100))
        assert sorted(map(len, batches)) == [4] + [8] * 12


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    once = epoch_batches(LENGTHS, 8, True, seed=1, epoch=3)
    assert once == epoch_batches(LENGTHS, 8, True, seed=1, epoch=3)
    assert once != epoch_batches(LENGTHS, 8, True, seed=1, epoch=4)
    assert once != epoch_batches(LENGTHS, 8, True, seed=2, epoch=3)


def test_buckets_hold_similar_lengths() -> None:
    def padding(bucketed: bool) -> int:
        batches = epoch_batches(LENGTHS, 8, bucketed, seed=1, epoch=0)
        return sum(len(batch) * max(LENGTHS[place][0] for place in batch) for batch in batches)

    real = sum(length for (length,) in LENGTHS)
    assert padding(True) < 1.25 * real < padding(False)


def test_a_smaller_sample_is_part_of_a_larger_one_and_texts_stay_together() -> None:
    texts = [f"text {n // 3}" for n in range(90)]
    samples = [sample_texts(texts, ratio) for ratio in (0.1, 0.3, 1.0)]
    assert [len(sample) for sample in samples] == [9, 27, 90]
    assert set(samples[0]) < set(samples[1]) < set(samples[2])
    assert sample_texts(["a"], 0.001) == [0]
    for ratio, n_texts, expected in ((0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7), (0.001, 100, 1), (0.071, 100, 8)):
        assert len(sample_texts([str(number) for number in range(n_texts)], ratio)) == expected


def test_a_batch_with_a_long_example_is_divided() -> None:
    lengths: list[Any] = [(2000, 3), *[(4, 2)] * 31]
    plan = list(_bounded(plan_batches(lengths, batch_size=32), lengths))
    assert sorted(number for batch in plan for number in batch) == list(range(32))
    assert all(len(batch) * max(lengths[batch[0]]) ** 2 <= MAX_SQUARES for batch in plan)
    assert list(_bounded([[0, 1]], [10_000, 3])) == [[0], [1]]

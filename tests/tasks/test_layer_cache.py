"""The layer cache: exact to its number format, shared by processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, OutputError
from elmokit.network.scalar_mix import ScalarMix
from elmokit.tasks.layer_cache import LayerCache
from tests.conftest import edited_model, model_beyond_float16, random_model

SENTENCES = [["the", "cat", "sat"], ["dog"], [], ["the", "cat", "sat"], ["a b", "c"], ["a", "b c"], ["a", "b", "c"]]


@pytest.fixture
def elmo() -> Elmo:
    return Elmo(random_model())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float32", 1e-5)])
def test_layers_are_the_embedder_s_to_the_stored_precision(
    elmo: Elmo, tmp_path: Path, dtype: Literal["float16", "float32"], tolerance: float
) -> None:
    cache = LayerCache(tmp_path, elmo, dtype)
    direct = cache.layers(SENTENCES)
    assert cache.fill(SENTENCES) == 3 + 1 + 0 + 2 + 2 + 3
    for again in (cache, LayerCache(tmp_path, elmo, dtype)):
        for stored, before, plain in zip(again.layers(SENTENCES), direct, elmo.embed(SENTENCES), strict=True):
            assert (stored.dtype, stored.shape) == (dtype, plain.shape)
            np.testing.assert_allclose(stored, plain, atol=tolerance, rtol=tolerance)
            np.testing.assert_allclose(before, stored, atol=tolerance, rtol=tolerance)
    alone = LayerCache(tmp_path / "alone", elmo, dtype)
    alone.fill(SENTENCES[:1])
    np.testing.assert_array_equal(alone.layers(SENTENCES[:1])[0], elmo.embed(SENTENCES[:1])[0].astype(dtype))


def test_a_number_that_float16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, Elmo(model_beyond_float16()), "float16")
    for read in (cache.layers, cache.fill):
        with pytest.raises(ConfigError, match=r"beyond 65,504, the largest of float16.*elmo\.cache_dtype"):
            read(SENTENCES)


def test_a_batch_is_what_a_mix_takes(elmo: Elmo, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, elmo, "float16")
    cache.fill(SENTENCES[:2])  # some on disk, the others computed
    layers, mask = cache.batch(SENTENCES)
    assert (layers.shape, layers.dtype) == ((elmo.n_layers, len(SENTENCES), 3, elmo.output_dim), torch.float32)
    assert mask.sum(dim=1).tolist() == [3, 1, 0, 3, 2, 2, 3]
    for row, array in enumerate(cache.layers(SENTENCES)):
        np.testing.assert_array_equal(layers[:, row][:, mask[row]], array.astype(np.float32))
    assert not layers[:, ~mask].any()
    assert ScalarMix(elmo.n_layers, layer_norm=True)(layers, mask).shape == layers.shape[1:]
    assert cache.batch([])[0].shape == (elmo.n_layers, 0, 1, elmo.output_dim)


def test_each_distinct_sentence_is_computed_once(elmo: Elmo, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, elmo)
    reports: list[tuple[str, int, int | None]] = []
    cache.fill(SENTENCES, lambda *report: reports.append(report))
    assert reports[-1] == ("layers", 11, 11)
    assert ["dog"] in cache
    assert ["cow"] not in cache
    assert cache.fill(SENTENCES) == 0
    assert LayerCache(tmp_path, elmo).fill(SENTENCES[:3]) == 0


def test_the_folder_is_named_by_all_that_the_layers_depend_on(elmo: Elmo, tmp_path: Path) -> None:
    other = Elmo(random_model(seed=1))
    cold = Elmo(random_model(), start="zero")
    assert len({fingerprint(model.model, model.start) for model in (elmo, other, cold)}) == 3
    assert fingerprint(elmo.model, elmo.start) == fingerprint(random_model(), "warm")
    moved = Elmo(edited_model(random_model(), lambda bilm: next(bilm.parameters()).view(-1)[-1].add_(1e-3)))
    assert fingerprint(moved.model, moved.start) != fingerprint(elmo.model, elmo.start)
    LayerCache(tmp_path, elmo).fill(SENTENCES)
    assert ["dog"] not in LayerCache(tmp_path, other)
    assert ["dog"] not in LayerCache(tmp_path, elmo, "float32")


@pytest.mark.slow
def test_layers_that_another_precision_computed_are_not_taken(tmp_path: Path) -> None:
    exact, rounded = (Elmo.from_pretrained(precision=precision) for precision in ("float32", "int8"))
    if exact.computer.network.computation() == rounded.computer.network.computation():
        pytest.skip("this machine computes the included model in float32 only")
    LayerCache(tmp_path, rounded).fill(SENTENCES)
    assert ["dog"] not in LayerCache(tmp_path, exact)
    assert ["dog"] in LayerCache(tmp_path, Elmo.from_pretrained())  # int8 by its files


def test_sentences_that_another_process_adds_are_found(elmo: Elmo, tmp_path: Path) -> None:
    first, second = LayerCache(tmp_path, elmo), LayerCache(tmp_path, elmo)
    first.fill([["dog"]])
    np.testing.assert_array_equal(second.layers([["dog"]])[0], first.layers([["dog"]])[0])
    assert ["dog"] in second
    second.fill([["cow"]])
    assert first.fill([["cow"], ["cat"]]) == 1


def test_two_writers_share_a_cache_in_which_they_commit_often(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.tasks.layer_cache.CHUNK_TOKENS", 25)  # five sentences with their boundaries
    monkeypatch.setattr("elmokit.storage.workspace.COMMIT_SECONDS", 0.0)
    sentences = [[f"word{n}", "the", "cat"] for n in range(60)]
    halves = (LayerCache(tmp_path, elmo), sentences[:40]), (LayerCache(tmp_path, elmo), sentences[20:])
    with ThreadPoolExecutor() as pool:
        for filled in [pool.submit(cache.fill, part) for cache, part in halves]:
            filled.result()
    cache = LayerCache(tmp_path, elmo)
    assert all(sentence in cache for sentence in sentences)
    for stored, plain in zip(cache.layers(sentences), elmo.embed(sentences), strict=True):
        np.testing.assert_allclose(stored, plain, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("ends", [[1 << 40, 4, 4], [3, 3, 3]], ids=["not in order", "not all rows"])
def test_a_damaged_list_of_sentences_is_named(elmo: Elmo, tmp_path: Path, ends: list[int]) -> None:
    cache = LayerCache(tmp_path, elmo, "float16")
    cache.fill(SENTENCES[:3])  # of 3, 1 and 0 tokens
    np.array(ends, np.int64).tofile(cache.folder / "ends")
    with pytest.raises(OutputError, match="ends is damaged: delete the directory"):
        LayerCache(tmp_path, elmo, "float16")


def test_carried_state_cannot_be_cached(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start is 'stateful'"):
        LayerCache(tmp_path, Elmo(random_model(), start="stateful"))

"""The layer cache: exact to its number format, shared by processes, safe under interruption."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, FormatError, OutputError
from elmokit.formats.save import save_model
from elmokit.network.scalar_mix import ScalarMix
from elmokit.storage.resumable import ResumableStore
from elmokit.tasks import layer_cache
from elmokit.tasks.layer_cache import LayerCache
from tests.conftest import model_beyond_float16, random_model
from tests.helpers.killing import Killed, kill_at
from tests.helpers.paths import ROOT

SENTENCES = [["the", "cat", "sat"], ["dog"], [], ["the", "cat", "sat"], ["a b", "c"], ["a", "b c"], ["a", "b", "c"]]


@pytest.fixture
def elmo() -> Elmo:
    return Elmo(random_model())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layers_are_the_embedder_s_to_the_stored_precision(elmo: Elmo, tmp_path: Path, dtype: str) -> None:
    cache = LayerCache(tmp_path, elmo, dtype)  # type: ignore[arg-type]
    direct = cache.layers(SENTENCES)
    assert cache.fill(SENTENCES) == 3 + 1 + 0 + 2 + 2 + 3
    for again in (cache, LayerCache(tmp_path, elmo, dtype)):  # type: ignore[arg-type]
        expected = elmo.embed(SENTENCES)
        for stored, before, plain in zip(again.layers(SENTENCES), direct, expected, strict=True):
            assert stored.dtype == dtype
            assert stored.shape == plain.shape
            tolerance = 1e-5 if dtype == "float32" else 2e-3
            np.testing.assert_allclose(stored, plain, atol=tolerance, rtol=tolerance)
            np.testing.assert_allclose(before, stored, atol=tolerance, rtol=tolerance)


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


def test_stored_numbers_are_exactly_the_rounded_ones(elmo: Elmo, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, elmo, "float16")
    sentences = [["the", "cat"]]
    cache.fill(sentences)
    np.testing.assert_array_equal(cache.layers(sentences)[0], elmo.embed(sentences)[0].astype(np.float16))


def test_each_distinct_sentence_is_computed_once(elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LayerCache(tmp_path, elmo)
    reports: list[tuple[str, int, int | None]] = []
    cache.fill(SENTENCES, lambda *report: reports.append(report))
    assert reports[-1] == ("layers", 11, 11)
    assert ["dog"] in cache
    assert ["cow"] not in cache

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be computed")

    monkeypatch.setattr(Elmo, "embed", refuse)
    assert cache.fill(SENTENCES) == 0
    assert LayerCache(tmp_path, elmo).fill(SENTENCES[:3]) == 0
    assert len(cache.layers(SENTENCES)) == len(SENTENCES)


def test_the_folder_is_named_by_all_that_the_layers_depend_on(elmo: Elmo, tmp_path: Path) -> None:
    other = Elmo(random_model(seed=1))
    cold = Elmo(random_model(), start="zero")
    assert len({fingerprint(model.model, model.start) for model in (elmo, other, cold)}) == 3
    assert fingerprint(elmo.model, elmo.start) == fingerprint(random_model(), "warm")
    moved = Elmo(random_model())
    with torch.no_grad():
        next(moved.model.bilm.parameters()).view(-1)[-1].add_(1e-3)
    assert fingerprint(moved.model, moved.start) != fingerprint(elmo.model, elmo.start)
    LayerCache(tmp_path, elmo).fill(SENTENCES)
    assert ["dog"] not in LayerCache(tmp_path, other)
    assert ["dog"] not in LayerCache(tmp_path, elmo, "float32")


def test_layers_that_another_precision_computed_are_not_taken(tmp_path: Path) -> None:
    exact, rounded = (Elmo.from_pretrained(precision=precision) for precision in ("float32", "int8"))
    if exact.model.network.computation() == rounded.model.network.computation():
        pytest.skip("this machine computes the included model in float32 only")
    LayerCache(tmp_path, rounded).fill(SENTENCES)
    assert ["dog"] not in LayerCache(tmp_path, exact)
    assert ["dog"] in LayerCache(tmp_path, Elmo.from_pretrained())  # int8 by its files


def test_an_interrupted_call_continues_after_the_last_commit_with_the_same_numbers(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.tasks.layer_cache.CHUNK_TOKENS", 25)  # five sentences with their boundaries
    monkeypatch.setattr(ResumableStore, "commit_is_due", lambda store: True)
    sentences = [[f"word{n}", "and", "more"] for n in range(20)]
    straight, broken = LayerCache(tmp_path / "straight", elmo), LayerCache(tmp_path / "broken", elmo)
    straight.fill(sentences)
    with pytest.raises(Killed):
        broken.fill(sentences, kill_at("layers", 36))
    assert [sentence in broken for sentence in sentences] == [False] * 20
    assert LayerCache(tmp_path / "broken", elmo).fill(sentences) == 3 * 10
    for one, other in zip(straight.layers(sentences), broken.layers(sentences), strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(sentence in broken for sentence in sentences)


def test_sentences_that_another_process_adds_are_found(elmo: Elmo, tmp_path: Path) -> None:
    first, second = LayerCache(tmp_path, elmo), LayerCache(tmp_path, elmo)
    first.fill([["dog"]])
    np.testing.assert_array_equal(second.layers([["dog"]])[0], first.layers([["dog"]])[0])
    assert ["dog"] in second
    second.fill([["cow"]])
    first.fill([["cow"], ["cat"]])
    assert len(LayerCache(tmp_path, elmo)._rows) == 3


FILL = """
import sys
from elmokit import Elmo
from elmokit.tasks import layer_cache
from elmokit.tasks.layer_cache import LayerCache
from elmokit.storage import resumable
resumable.COMMIT_SECONDS = 0.01
from elmokit.tasks import layer_cache
layer_cache.CHUNK_TOKENS = 100
cache = LayerCache(sys.argv[1], Elmo.from_pretrained(sys.argv[2]))
cache.fill([[f"word{n}", "the", "cat"] for n in range(int(sys.argv[3]), int(sys.argv[4]))])
"""


def fill(folder: Path, model: Path, start: int, stop: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", FILL, folder, model, str(start), str(stop)], env=environment)


@pytest.mark.slow
def test_two_processes_share_a_cache_and_a_killed_one_leaves_it_usable(elmo: Elmo, tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "cache"
    save_model(random_model(), model)
    killed = fill(folder, model, 0, 2000)
    while not any('"n_sentences"' in journal.read_text() for journal in folder.rglob("journal.json")):
        time.sleep(0.05)
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    both = [fill(folder, model, 0, 300), fill(folder, model, 100, 400)]
    assert [process.wait() for process in both] == [0, 0]
    cache = LayerCache(folder, elmo)
    sentences = [[f"word{n}", "the", "cat"] for n in range(400)]
    assert all(sentence in cache for sentence in sentences)
    for stored, plain in zip(cache.layers(sentences), elmo.embed(sentences), strict=True):
        np.testing.assert_allclose(stored, plain, atol=2e-3, rtol=2e-3)


def test_a_damaged_cache_is_named(elmo: Elmo, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, elmo)
    cache.fill([["dog"]])
    whole = (cache.folder / "layers").read_bytes()
    (cache.folder / "layers").write_bytes(whole[:-2])
    with pytest.raises(OutputError, match="is damaged"):
        LayerCache(tmp_path, elmo)
    (cache.folder / "layers").write_bytes(whole)
    journal = cache.folder / "journal.json"
    journal.write_text(journal.read_text().replace('"keys": 16', '"keys": 0'))
    with pytest.raises(OutputError, match="its checksum is wrong"):
        LayerCache(tmp_path, elmo)
    shutil.rmtree(cache.folder)
    assert LayerCache(tmp_path, elmo).fill([["dog"]]) == 1


@pytest.mark.parametrize("name", ["keys", "ends", "crc32", "checksums"])
def test_a_changed_list_of_sentences_is_noticed_when_the_cache_is_opened(elmo: Elmo, tmp_path: Path, name: str) -> None:
    cache = LayerCache(tmp_path, elmo)
    cache.fill(SENTENCES)
    flip_bit(cache.folder / name, 5)
    with pytest.raises(OutputError, match=rf"{name} is damaged.*computed again"):
        LayerCache(tmp_path, elmo)


def test_changed_layers_are_noticed_when_they_are_read(elmo: Elmo, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path, elmo)
    cache.fill(SENTENCES)
    flip_bit(cache.folder / "layers", 9)  # of the first sentence
    again = LayerCache(tmp_path, elmo)
    with pytest.raises(FormatError, match=r"layers is damaged.*computed again"):
        again.layers(SENTENCES)
    again.layers(SENTENCES[4:])
    (cache.folder / "layers").write_bytes(bytes((cache.folder / "layers").stat().st_size))
    with pytest.raises(FormatError, match="layers is damaged"):
        again.layers(SENTENCES[4:])


def flip_bit(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_carried_state_cannot_be_cached(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be cached"):
        LayerCache(tmp_path, Elmo(random_model(), start="stateful"))


def test_layers_are_computed_in_chunks_of_bounded_size(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_cache, "CHUNK_TOKENS", 10)
    sizes: list[int] = []
    embed = elmo.embed

    def counted(sentences: Iterable[list[str]], batch_tokens: int) -> Iterator[object]:
        chunk = list(sentences)
        sizes.append(sum(map(len, chunk)))
        return embed(iter(chunk), batch_tokens=batch_tokens)

    sentences = [[f"word{n}", "and", "more"] for n in range(20)]
    cache = LayerCache(tmp_path, elmo)
    monkeypatch.setattr(elmo, "embed", counted)
    cache.fill(sentences)
    assert sizes == [6] * 10  # two sentences of 3 tokens and 2 boundaries reach the limit
    for stored, plain in zip(cache.layers(sentences), embed(sentences), strict=True):
        np.testing.assert_allclose(stored, plain, atol=2e-3, rtol=2e-3)

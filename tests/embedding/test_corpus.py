from __future__ import annotations

import copy
import io
import json
import re
import signal
import threading
import time
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmokit.embedding.corpus import BackgroundWriter, embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.outputs.layout import Layout
from elmokit.embedding.outputs.writer import partial_folder
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.precision import VARIABLE
from elmokit.errors import OutputError, TextError
from elmokit.formats.save import save_model
from elmokit.network import backends
from elmokit.storage import workspace
from elmokit.text.text import Text
from tests.conftest import random_model
from tests.helpers.instruction_sets import choose_kernels_as_if
from tests.helpers.killing import Killed

TEXT = "the cat sat .\n\nthe dog ran on\u00a0the mat\nthe cat sat .\n"


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(random_model())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_each_line_becomes_a_dataset_under_its_number(elmo: Elmo, text: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        assert (stage, total) in [("laying out the file", 4), ("embedding", 13)]
        if stage == "embedding":
            seen.append(done)

    summary = embed_file(elmo, text, tmp_path / "out.hdf5", progress=progress)
    assert (summary.n_sentences, summary.n_tokens, summary.n_blank) == (4, 13, 1)
    assert (seen[0], seen[-1], sorted(np.diff(seen).tolist())) == (0, 13, [0, 4, 4, 5])
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [file[str(number)].shape for number in range(4)] == [(3, 4, 64), (3, 0, 64), (3, 5, 64), (3, 4, 64)]
        (expected,) = elmo.embed([["the", "dog", "ran", "on\u00a0the", "mat"]])
        np.testing.assert_allclose(file["2"][...], expected, atol=1e-5)


def lines(n: int) -> str:
    return "".join(f"{'the cat ' * (number % 5)}{'sat' if number % 7 else ''} .\n" for number in range(n))


def test_resuming_requires_the_same_text_and_model(elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "COMMIT_SECONDS", 0.0)
    text, output = tmp_path / "text.txt", tmp_path / "out.hdf5"
    text.write_text(lines(60))
    interrupted_run(elmo, text, output)
    with pytest.raises(OutputError, match="was started with another model"):
        embed_file(Elmo(random_model(seed=1)), text, output, Layout(batch_tokens=8))
    with pytest.raises(OutputError, match="was started with batch 8, and now it is 9"):
        embed_file(elmo, text, output, Layout(batch_tokens=9))
    text.write_text("the dog\n" + lines(60))
    with pytest.raises(TextError, match="differs from that of the interrupted run"):
        embed_file(elmo, text, output, Layout(batch_tokens=8))
    embed_file(elmo, text, output, Layout(batch_tokens=8), overwrite=True)
    with h5py.File(output) as file:
        assert len(file) == 62


def interrupted_run(elmo: Elmo, source: str | Path, output: Path, layout: Layout = Layout(batch_tokens=8)) -> None:  # noqa: B008
    """Start a run, and stop it after its first commit."""

    def stop(stage: str, done: int, total: int | None) -> None:
        journal = partial_folder(output) / "journal.json"
        if journal.exists() and json.loads(journal.read_text())["progress"]:
            raise Killed

    with pytest.raises(Killed):
        embed_file(elmo, source, output, layout, progress=stop)


def test_standard_input_is_resumed_from_its_start(elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "COMMIT_SECONDS", 0.0)

    def give(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    text = "".join(f"the cat {number} .\n" for number in range(40))
    give(text)
    embed_file(elmo, "-", tmp_path / "whole.hdf5", Layout(batch_tokens=8, use_sentence_keys=True))
    give(text)
    interrupted_run(elmo, "-", tmp_path / "parts.hdf5", Layout(batch_tokens=8, use_sentence_keys=True))
    give(text)
    with pytest.raises(OutputError, match="keys 'sentences', and now it is 'numbers'"):
        embed_file(elmo, "-", tmp_path / "parts.hdf5", Layout(batch_tokens=8))
    give(text)
    embed_file(elmo, "-", tmp_path / "parts.hdf5", Layout(batch_tokens=8, use_sentence_keys=True))
    assert (tmp_path / "parts.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.parametrize("changed", ["instructions", "precision"])
def test_a_run_is_resumed_only_by_an_equal_computation(
    elmo: Elmo, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(workspace, "COMMIT_SECONDS", 0.0)
    library = backends.native_library()
    if library is None:
        pytest.skip("no C functions")
    text, output = tmp_path / "text.txt", tmp_path / "out.hdf5"
    text.write_text(lines(60))
    interrupted_run(elmo, text, output)
    own = library.instructions
    with monkeypatch.context() as patch:
        if changed == "instructions":
            different = "avx2" if own == "portable" else "portable"
            patch.setattr(library, "instructions", different)
            expected = f"instructions '{own}', and now it is '{different}'"
        else:
            choose_kernels_as_if(patch)  # then even small layers are rounded
            patch.setenv(VARIABLE, "int8")
            expected = "precision 'float32', and now it is 'int8'"
        other = Elmo(copy.deepcopy(elmo.model))  # with an engine of its own
        with pytest.raises(OutputError, match=re.escape(f"was started with {expected}")):
            embed_file(other, text, output, Layout(batch_tokens=8))
    embed_file(elmo, text, output, Layout(batch_tokens=8))


def test_vectors_never_replace_the_weights_that_compute_them(text: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.hdf5"
    save_model(random_model(), weights)
    before = weights.read_bytes()
    with pytest.raises(OutputError, match=r"weights\.hdf5 is both the input and the output"):
        embed_file(Elmo.from_pretrained(tmp_path), text, weights, overwrite=True)
    assert weights.read_bytes() == before


@pytest.mark.parametrize("tokenize", [str.split, partial(str.split, sep=" "), methodcaller("split")], ids=repr)
def test_anything_that_splits_a_line_can_be_called(elmo: Elmo, tmp_path: Path, tokenize: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog\n")
    embed_file(elmo, text, tmp_path / "plain.npz")
    embed_file(elmo, Text(text, kind=tokenize), tmp_path / "called.npz")
    with np.load(tmp_path / "plain.npz") as plain, np.load(tmp_path / "called.npz") as called:
        np.testing.assert_array_equal(called["vectors"], plain["vectors"])


def test_a_module_of_pytorch_embeds_a_file_as_its_elmo_does(text: Path, tmp_path: Path) -> None:
    module = ElmoModule(random_model())
    for number, elmo in enumerate((module, module.elmo)):
        embed_file(elmo, text, tmp_path / f"{number}.npz")
        embed_file(SentenceEmbedder(elmo), text, tmp_path / f"sentences-{number}.npz")
    for name in ("", "sentences-"):
        ours, expected = (np.load(tmp_path / f"{name}{number}.npz") for number in (0, 1))
        assert ours.files == expected.files
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], expected[key])


def test_an_error_while_writing_is_raised_by_the_next_put_or_at_the_end() -> None:
    def broken(item: int) -> None:
        raise OSError(f"disk full at {item}")

    with pytest.raises(OSError, match="disk full at 0"), BackgroundWriter(1) as behind:
        list(map(behind.put, [partial(broken, item) for item in range(1000)]))
    with pytest.raises(OSError, match="disk full at 7"), BackgroundWriter(1) as behind:
        behind.put(partial(broken, 7))


def test_the_thread_ends_with_the_block_even_if_interrupted_repeatedly() -> None:
    handled: list[int] = []
    n_interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal n_interrupts
        n_interrupts += 1
        raise KeyboardInterrupt

    def slowly(item: int) -> None:
        for number in range(3):
            time.sleep(0.03)  # until the main thread waits: it does not notice a signal that comes just before
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            # On a busy machine, the next one could come before Python has noticed this one, and both would be one.
            for _ in range(100):
                if n_interrupts > number:
                    break
                time.sleep(0.01)
        handled.append(item)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        # The first Ctrl-C comes while the block ends by itself and waits for its last item.
        with pytest.raises(KeyboardInterrupt), BackgroundWriter(1) as behind:
            behind.put(partial(slowly, 1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [1]

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.corpus.embed import embed_file
from elmokit.corpus.reading import survey
from elmokit.embedder import Elmo
from elmokit.errors import OutputError, TextError
from tests.conftest import random_model

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
    summary = embed_file(elmo, text, tmp_path / "out.hdf5", progress=seen.append)
    assert (summary.n_sentences, summary.n_tokens, summary.n_blank) == (4, 13, 1)
    assert sorted(seen) == [0, 4, 4, 5]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [file[str(number)].shape for number in range(4)] == [(3, 4, 64), (3, 0, 64), (3, 5, 64), (3, 4, 64)]
        (expected,) = elmo.embed([["the", "dog", "ran", "on\u00a0the", "mat"]])
        np.testing.assert_allclose(file["2"][...], expected, atol=1e-5)


@pytest.mark.parametrize(("layers", "shape"), [("top", (4, 64)), ("average", (4, 64)), ([0, 2], (2, 4, 64))])
def test_chosen_layers_are_written(elmo: Elmo, text: Path, tmp_path: Path, layers: object, shape: object) -> None:
    embed_file(elmo, text, tmp_path / "out.hdf5", layers=layers)  # type: ignore[arg-type]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["0"].shape == shape


def test_blank_lines_are_refused_on_request(elmo: Elmo, text: Path, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"text\.txt, line 2 is blank"):
        embed_file(elmo, text, tmp_path / "out.hdf5", strict=True)
    assert not (tmp_path / "out.hdf5").exists()


def test_a_bad_line_leaves_earlier_output_untouched(elmo: Elmo, tmp_path: Path) -> None:
    output = tmp_path / "out.hdf5"
    output.write_text("earlier")
    (tmp_path / "bad.txt").write_bytes(b"the cat\n\xe9t\xe9\n")
    with pytest.raises(TextError, match=r"bad\.txt, line 2: not UTF-8"):
        embed_file(elmo, tmp_path / "bad.txt", output, overwrite=True)
    with pytest.raises(OutputError, match="exists already"):
        embed_file(elmo, tmp_path / "bad.txt", output)
    assert output.read_text() == "earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"out.hdf5", "bad.txt"}


def test_an_empty_file_gives_a_file_with_an_empty_map(elmo: Elmo, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert embed_file(elmo, tmp_path / "empty.txt", tmp_path / "out.hdf5").n_sentences == 0
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file["sentence_to_index"].asstr()[0] == "{}"


def test_survey_counts_before_any_work(text: Path) -> None:
    found = survey(text)
    assert (found.n_sentences, found.n_tokens, found.n_blank) == (4, 13, 1)

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from elmokit.corpus.embed import embed_file
from elmokit.corpus.plan import describe, in_bytes, in_time, output_bytes, refuse_too_large
from elmokit.corpus.reading import Sentence, Survey, survey
from elmokit.corpus.unfinished import Done
from elmokit.embedder import Elmo, Layers
from elmokit.errors import OutputError
from tests.conftest import random_model


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(random_model())


@pytest.mark.parametrize(("layers", "dtype"), [("all", "float32"), ("top", "float16"), ([0, 2], "float32")])
def test_the_size_said_is_the_size_written(elmo: Elmo, tmp_path: Path, layers: Layers, dtype: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat {'sat ' * (number % 7)}{number} .\n" for number in range(300)))
    embed_file(elmo, text, tmp_path / "out.hdf5", layers=layers, dtype=dtype)  # type: ignore[arg-type]
    said = output_bytes(elmo, survey(text), layers, dtype, "numbers", 1)  # type: ignore[arg-type]
    assert said == pytest.approx((tmp_path / "out.hdf5").stat().st_size, rel=0.01)


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1_000_000))
    refuse_too_large(tmp_path / "out.hdf5", 900_000, Done())
    refuse_too_large(tmp_path / "out.hdf5", 1_900_000, Done(data_end=1_000_000))
    with pytest.raises(OutputError, match=r"will take 1\.9 MB, and its disk has 1\.0 MB left.*--force"):
        refuse_too_large(tmp_path / "out.hdf5", 1_900_000, Done())


def test_much_work_is_tried_and_little_is_not(elmo: Elmo) -> None:
    sentences = [Sentence("", ["the", "cat"], "")] * 10
    much = describe(elmo, "out.hdf5", Survey(10**6, 10**8, 0), Done(n_tokens=5), 10**11, sentences, "all", 2048)
    expected = r"1,000,000 sentences, 100,000,000 tokens, 5 done before; out.hdf5 will take 100 GB and about "
    assert re.fullmatch(expected + r".+ \(.+ tokens/s\)", much)
    little = describe(elmo, "out.hdf5", Survey(10, 20, 0), Done(), 5000, sentences, "all", 2048)
    assert little == "10 sentences, 20 tokens; out.hdf5 will take 5.0 kB"


def test_sizes_and_times_are_short() -> None:
    assert [in_bytes(n) for n in (0, 999, 1600, 242_000_000, 2.5e15)] == [
        *("0 bytes", "999 bytes", "1.6 kB", "242 MB", "2,500.0 TB")
    ]
    assert [in_time(n) for n in (0.1, 40, 720, 12_600)] == ["1 s", "40 s", "12 min", "3.5 h"]

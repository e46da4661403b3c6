"""Hostile text: every line has its row, every token its vector, every word its count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.hdf5 import read_sentence_map
from elmokit.embedding.outputs.layout import Layout
from elmokit.text.characters import encode_tokens
from elmokit.text.first_lines import HEAD_LINES
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.text.vocabulary_files import build_vocabulary, counts_path
from tests.campaign.hostile_text import hostile_line, tokens_of
from tests.campaign.specimens import small_model

N_LINES = 2_000

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.* is read as one token")]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    random = Random(0)
    # Plain lines come first: many tabs there would look like a table, which is refused.
    return [*["the cat ."] * HEAD_LINES, *(hostile_line(random) for _ in range(N_LINES))]


@pytest.fixture
def text(lines: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_every_line_has_the_vectors_of_its_tokens(lines: list[str], text: Path, tmp_path: Path) -> None:
    elmo = Elmo(small_model())
    summary = embed_file(elmo, text, tmp_path / "out.hdf5", Layout(batch_tokens=512))
    tokens = [tokens_of(line) for line in lines]
    assert summary.n_sentences == len(lines)
    assert summary.n_tokens == sum(map(len, tokens))
    assert summary.n_blank == tokens.count([])
    order = Random(1).sample(range(len(lines)), len(lines))
    shuffled = dict(zip(order, elmo.embed([tokens[number] for number in order]), strict=True))
    alone = Random(2).sample(range(len(lines)), 200)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert len(file) == len(lines) + 1
        for number in range(len(lines)):
            stored = file[str(number)][()]
            assert np.isfinite(stored).all()
            np.testing.assert_array_equal(stored, shuffled[number], err_msg=repr(lines[number]))
            if number in alone:
                np.testing.assert_array_equal(stored, elmo.embed([tokens[number]])[0], err_msg=repr(lines[number]))
        # As in AllenNLP: of equal lines the last one counts, and spaces around a line are not part of its name.
        assert read_sentence_map(file) == {line.rstrip("\r").strip(" \t"): number for number, line in enumerate(lines)}


def test_every_word_has_its_count(lines: list[str], text: Path, tmp_path: Path) -> None:
    report = build_vocabulary([text], tmp_path / "words.txt")
    counts = Counter(token for line in lines for token in tokens_of(line))
    assert report.n_tokens == sum(counts.values())
    assert report.n_types == len(counts)
    stored = counts_path(tmp_path / "words.txt").read_bytes().decode().removesuffix("\n").split("\n")
    words = [line.rpartition("\t")[::2] for line in stored]
    assert [word for word, _ in words] == Vocabulary.from_file(tmp_path / "words.txt").words
    for word, count in words[len(SPECIALS) :]:
        assert int(count) == counts[word], repr(word)


def test_the_characters_of_every_word_are_numbered_as_bilm_tf_defines_it(lines: list[str]) -> None:
    words = sorted({token for line in lines for token in tokens_of(line)})
    for word, row in zip(words, encode_tokens(words, 50), strict=True):
        boundary = {"<S>": [256], "</S>": [257]}
        ids = [258, *boundary.get(word, list(word.encode())[:48]), 259]
        assert row.tolist() == [one + 1 for one in ids + [260] * (50 - len(ids))], repr(word)

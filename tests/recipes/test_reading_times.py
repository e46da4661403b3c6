"""``recipes/reading_times.py`` finds the slopes and the gain of a known effect in stories of the release's layout."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")
N_WORDS = 60
VOCABULARY = ["a" * (1 + rank % 9) + chr(97 + rank // 26) + chr(97 + rank % 26) for rank in range(N_WORDS)]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["reading_times.py", *arguments])
    from recipes import reading_times  # which needs the libraries above

    reading_times.main()


def write_release(folder: Path, stories: list[list[tuple[str, float]]]) -> None:
    """Write stories of words, each a text with spaces between its tokens, and its reading time."""
    words, times = [], ["word\tzone\titem\tnItem\tmeanItemRT"]
    for story, content in enumerate(stories, start=1):
        for zone, (text, milliseconds) in enumerate(content, start=1):
            words += [f"{story}.{zone}.whole\t{text}", f"{story}.{zone}.word\t{text}"]
            words += [f"{story}.{zone}.{number}\t{token}" for number, token in enumerate(text.split(), start=1)]
            times.append(f"{text.replace(' ', '')}\t{zone}\t{story}\t80\t{milliseconds}")
    folder.mkdir()
    (folder / "words.tsv").write_text("\n".join(words) + "\n")
    (folder / "processed_wordinfo.tsv").write_text("\n".join(times) + "\n")


def test_stories_are_printed_as_they_were_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = ["Mr.", "Ada !", "she", "said .", "' Forty - seven ' ."]
    write_release(tmp_path / "stories", [[(text, 300.0) for text in story], [("No", 300.0)]])
    run(monkeypatch, str(tmp_path / "stories"))
    assert capsys.readouterr().out == "Mr. Ada! she said. 'Forty-seven'.\n\nNo\n\n"


def test_the_regression_finds_the_slopes_and_the_gain_of_a_known_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(1)
    frequency = -np.log(np.arange(1, N_WORDS + 1))
    stories, rows = [], ["text_index\tword\tforward_nats\tbackward_nats\tunknown\tspelling_nats"]
    for number in range(5):
        chosen, nats = draw.integers(0, N_WORDS, 300), draw.gamma(2, 2, 300)
        lengths = np.array([len(VOCABULARY[word]) for word in chosen])
        before = np.concatenate([[0], nats[:-1]])
        times = 300 + 2 * lengths - 3 * frequency[chosen] + 4 * nats + 2 * before + draw.normal(0, 5, 300)
        stories.append([(VOCABULARY[word], ms) for word, ms in zip(chosen, times, strict=True)])
        noise, letters = draw.permutation(nats), draw.gamma(1, 1, 300)
        rows += [
            f"{number}\t{VOCABULARY[w]}\t{x}\t{y}\t0\t{z}"
            for w, x, y, z in zip(chosen, nats, noise, letters, strict=True)
        ]
    write_release(tmp_path / "stories", stories)
    (tmp_path / "model.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "vocabulary.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *VOCABULARY]) + "\n")
    paths = [str(tmp_path / name) for name in ("stories", "model.tsv", "vocabulary.txt")]
    run(monkeypatch, paths[0], paths[1], "--vocabulary", paths[2], "--by-story")
    out = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in out.splitlines()[2:7]]
    forward, backward, with_letters, _, letters = rows
    assert (forward[0], forward[2], forward[3]) == ("model, forward", "5 of 5", "")
    assert with_letters[0] == "model, forward, with letters"
    assert with_letters[3].startswith("-")  # letters that say nothing blur it
    assert letters[0] == "model, letters alone"
    assert abs(float(letters[1].split()[0])) < 20
    assert "| gain in story | 1 | 2 | 3 | 4 | 5 |" in out
    assert [float(slope) for slope in forward[4:]] == pytest.approx([4, 2, 0], abs=0.2)
    # Without surprisal its variance, 8 * (4**2 + 2**2), is added to that of the noise, 25.
    assert float(forward[1].split()[0]) == pytest.approx(500 * math.log((25 + 160) / 25), abs=100)
    assert abs(float(backward[1].split()[0])) < 20
    assert "1,490 words" in out  # the first two of a story have no words before them

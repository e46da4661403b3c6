"""Reading times: reading Natural Stories, the regression, and the command."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from elmokit.errors import TextError
from elmokit.evaluation.natural_stories import Story, StoryWord, read_large_model, read_natural_stories
from elmokit.evaluation.reading_times import evaluate_reading_times, regress_reading_times
from elmokit.lm.surprisal import surprisals
from elmokit.storage.part_results import PartResults
from tests.conftest import random_model
from tests.helpers.shell import Shell

TEXT = ["the cat sat on the mat .", "' the dog ran . '", "the cat-dog ran on , the mat sat on the cat ."]


def write_release(folder: Path) -> None:
    """Write the files of the release for three short stories."""
    words, times, large = [], ["word\tzone\titem\tnItem\tmeanItemRT"], ["token,logprob,offset,story"]
    draw = np.random.default_rng(0)
    for story in range(1, 4):
        shown = [
            word
            for line in TEXT * 2
            for word in line.replace(" .", ".").replace(" ,", ",").replace("' ", "'").replace(" '", "'").split()
        ]
        for number, word in enumerate(shown, start=1):
            tokens = word.replace("-", " - ").replace(".", " .").replace(",", " ,").replace("'", " ' ").split()
            words.append(f"{story}.{number}.whole\t{' '.join(tokens)}")
            words.append(f"{story}.{number}.word\t{word.strip('.,')}")
            words += [f"{story}.{number}.{n}\t{token}" for n, token in enumerate(tokens, start=1)]
            times.append(f"{word}\t{number}\t{story}\t80\t{draw.uniform(300, 400)}")
            space = "" if number == 1 else " "
            large.append(f'"{space}{word[0]}",{"" if number == 1 else -draw.uniform(0, 5)},0,{story - 1}')
            if word[1:]:
                large.append(f'"{word[1:]}",-0.5,0,{story - 1}')
    folder.mkdir()
    (folder / "words.tsv").write_text("\n".join(words) + "\n")
    (folder / "processed_wordinfo.tsv").write_text("\n".join(times) + "\n")
    (folder / "all_stories_gpt3.csv").write_text("\n".join(large) + "\n")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write_release(tmp_path / "stories")
    return tmp_path / "stories"


def test_words_are_read_with_their_tokens_sentences_and_times(release: Path) -> None:
    stories = read_natural_stories(release)
    assert [story.number for story in stories] == [1, 2, 3]
    words = stories[0].words
    assert (words[5].text, words[5].tokens) == ("mat.", ("mat", "."))
    assert words[6].tokens == ("'", "the")
    assert words[10].tokens == ("cat-dog",)  # three tokens in the file
    assert words[0].milliseconds == pytest.approx(363.7, abs=0.1)


def test_a_sentence_ends_after_a_full_stop_unless_a_small_letter_follows() -> None:
    texts = [("Mr.",), ("Ada", "!"), ("she", "said", "."), ("Then", "?", "'"), ("'", "No", "'", "."), ("1",)]
    story = Story(1, [StoryWord("".join(tokens), tokens, 300.0) for tokens in texts])
    assert [(one.start, one.stop) for one in story.sentences()] == [(0, 3), (3, 4), (4, 5), (5, 6)]


def test_the_large_models_tokens_are_added_up_to_words(release: Path) -> None:
    stories = read_natural_stories(release)
    columns = read_large_model(release, stories)
    assert columns is not None
    assert [len(column) for column in columns] == [len(story.words) for story in stories]
    assert math.isnan(columns[0][0])
    assert all(np.isfinite(column[1:]).all() for column in columns)
    (release / "all_stories_gpt3.csv").unlink()
    assert read_large_model(release, stories) is None


REFUSED = [
    ("words.tsv", "1.1.whole\tthe", "1.1.whole", "line 1: expected 'story.word.kind<TAB>text'"),
    ("words.tsv", "1.1.whole\tthe", "1.1.whole\t ", "line 1: expected 'story.word.kind<TAB>text'"),
    ("words.tsv", "1.1.whole", "a.1.whole", "line 1: expected 'story.word.kind<TAB>text'"),
    ("words.tsv", "1.1.whole\tthe", "1.1.whole\tthe\tx", "line 1: expected 'story.word.kind<TAB>text'"),
    ("words.tsv", "", None, "has no file words.tsv"),
    ("processed_wordinfo.tsv", "meanItemRT", "RT", "'meanItemRT'"),
    ("processed_wordinfo.tsv", "the\t1\t1\t", "the\tone\t1\t", "line 2: expected a table with the columns word, item"),
    ("processed_wordinfo.tsv", "\t80", "", "line 2: expected a table with the columns word, item"),
    ("processed_wordinfo.tsv", "the\t", "a\t", "words of words.tsv are others in processed_wordinfo.tsv"),
    ("all_stories_gpt3.csv", '"t",,0,0', '"x",,0,0', "the words of story 1 are not those of"),
    ("all_stories_gpt3.csv", '"t",,0,0', '"t",much,0,0', "line 2: expected a table with the columns token"),
]


@pytest.mark.parametrize(("file", "old", "new", "mentioned"), REFUSED)
def test_a_bad_file_is_refused(release: Path, file: str, old: str, new: str | None, mentioned: str) -> None:
    content = (release / file).read_text()
    assert old in content
    (release / file).write_text(content.replace(old, new or ""))
    if new is None:
        (release / file).unlink()
    with pytest.raises(TextError, match=re.escape(mentioned)):
        read_large_model(release, read_natural_stories(release))


def test_a_release_without_any_reading_time_is_refused(release: Path) -> None:
    head = (release / "processed_wordinfo.tsv").read_text().partition("\n")[0]
    (release / "processed_wordinfo.tsv").write_text(f"{head}\n")
    with pytest.raises(TextError, match="all are missing there"):
        read_natural_stories(release)


def made_stories(effect: float) -> tuple[list[Story], list[np.ndarray], list[np.ndarray]]:
    """Stories whose reading times follow a known formula, with their log frequencies and surprisals."""
    draw = np.random.default_rng(1)
    stories, frequencies, surprisal = [], [], []
    for number in range(1, 6):
        lengths, frequency, nats = draw.integers(1, 12, 200), draw.normal(-8, 2, 200), draw.gamma(2, 2, 200)
        before = np.concatenate([[0], nats[:-1]])
        times = 300 + 2 * lengths - 3 * frequency + effect * nats + 0.5 * effect * before + draw.normal(0, 5, 200)
        words = [StoryWord("x" * n, ("x",), float(ms)) for n, ms in zip(lengths, times, strict=True)]
        stories.append(Story(number, words))
        frequencies.append(frequency)
        surprisal.append(nats)
    return stories, frequencies, surprisal


def test_the_regression_finds_the_slopes_and_the_gain_of_a_known_effect() -> None:
    stories, frequencies, surprisal = made_stories(effect=4.0)
    shuffled = [np.random.default_rng(2).permutation(nats) for nats in surprisal]
    result = regress_reading_times(stories, frequencies, {"true": surprisal, "noise": shuffled})
    true, noise = result.effects
    assert result.n_words == 5 * 198
    assert true.slopes == pytest.approx([4, 2, 0], abs=0.2)
    # Without surprisal its variance, 8 * (4**2 + 2**2), is added to that of the noise, 25.
    assert true.gain == pytest.approx(0.5 * math.log((25 + 160) / 25), abs=0.1)
    assert abs(noise.gain) < 0.01
    assert true.gain == pytest.approx(np.mean(true.gain_by_story))


def test_the_regression_equals_the_normal_equations() -> None:
    stories, frequencies, surprisal = made_stories(effect=1.0)
    nats = [values.copy() for values in surprisal]
    nats[0][10] = np.nan  # words 10 to 12 of the first story do not count
    result = regress_reading_times(stories, frequencies, {"a": nats})
    rows, times, folds = [], [], []
    for fold, story in enumerate(stories):
        for t in range(2, len(story.words)):
            if fold == 0 and t in (10, 11, 12):
                continue
            base = [float(len(story.words[t - lag].text)) for lag in range(3)]
            base += [frequencies[fold][t - lag] for lag in range(3)]
            rows.append([1.0, *base, *(nats[fold][t - lag] for lag in range(3))])
            times.append(story.words[t].milliseconds)
            folds.append(fold)
    x, y, fold_of = np.array(rows), np.array(times), np.array(folds)
    gains = np.empty(len(y))
    for fold in range(5):
        test = fold_of == fold
        likelihoods = []
        for columns in (x[:, :7], x):
            known = columns[~test]
            weights = np.linalg.solve(known.T @ known, known.T @ y[~test])
            variance = np.mean((y[~test] - known @ weights) ** 2)
            residual = y[test] - columns[test] @ weights
            likelihoods.append(-0.5 * np.log(2 * np.pi * variance) - residual**2 / (2 * variance))
        gains[test] = likelihoods[1] - likelihoods[0]
    assert result.n_words == len(y)
    assert result.effects[0].gain == pytest.approx(gains.mean(), rel=1e-6)


def test_words_that_explain_nothing_are_refused(release: Path, tmp_path: Path) -> None:
    stories, frequencies, surprisal = made_stories(effect=1.0)
    equal = [Story(s.number, [dataclasses.replace(word, milliseconds=300.0) for word in s.words]) for s in stories]
    short = [Story(s.number, s.words[:4]) for s in stories]
    for given, n_words in ((equal, 200), (stories[:1], 200), (short, 4)):
        n = len(given)
        columns = ([values[:n_words] for values in part[:n]] for part in (frequencies, surprisal))
        with pytest.raises(TextError, match=f"in {n} of {n} stories"):
            regress_reading_times(given, next(columns), {"a": next(columns)})
    (tmp_path / "text.txt").write_text("zebra giraffe\n")
    with pytest.raises(TextError, match="No word of the text to count"):
        evaluate_reading_times(random_model(), read_natural_stories(release), text=[tmp_path / "text.txt"])


def test_a_words_surprisal_is_the_sum_over_its_tokens(release: Path) -> None:
    model, stories = random_model(), read_natural_stories(release)
    with PartResults(None, {}) as parts:
        result = evaluate_reading_times(model, stories, parts=parts)
        stored = parts.compute("reading times, story 1", lambda: [[]])
    (sentence,) = surprisals(model, [["the", "cat", "sat", "on", "the", "mat", "."]])
    assert stored[0][4:6] == pytest.approx([sentence.nats[0, 5], sentence.nats[0, 6:8].sum()])
    assert stored[1][5] == pytest.approx(sentence.nats[1, 6:8].sum())
    assert [effect.name for effect in result.effects] == ["forward", "backward"]


def test_an_interrupted_evaluation_resumes_with_the_same_result(release: Path, tmp_path: Path) -> None:
    model, stories = random_model(), read_natural_stories(release)
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in TEXT))
    whole = evaluate_reading_times(model, stories, text=[tmp_path / "text.txt"])

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "5-gram":
            raise KeyboardInterrupt

    def interrupted() -> None:
        with PartResults(tmp_path / "kept", {}) as parts:
            evaluate_reading_times(model, stories, text=[tmp_path / "text.txt"], parts=parts, progress=stop)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with PartResults(tmp_path / "kept", {}) as parts:
        assert "reading times, story 3" in parts
        assert evaluate_reading_times(model, stories, text=[tmp_path / "text.txt"], parts=parts) == whole


def test_the_command_compares_all_models(shell: Shell, release: Path) -> None:
    call = ("evaluate", "reading-times", str(release), "--model", "model")
    ran = shell(*call, "--text", "text.txt", "--figure", "times.png", "--keep", "kept")
    assert ran.code == 0, ran.err
    names = [line.split()[0] for line in ran.out.splitlines()[1:5]]
    assert names == ["forward", "backward", "5-gram", "GPT-3"]
    assert "tokens of text" in ran.out
    assert Path("times.svg").is_file()
    facts = json.loads(shell(*call, "--json").out)
    assert [effect["name"] for effect in facts["effects"]] == ["forward", "backward", "GPT-3"]
    assert "Zipf" in facts["frequencies"]

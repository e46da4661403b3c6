"""Reading times: how much of the time that people take to read a word does its surprisal explain?

    python recipes/reading_times.py natural-stories > stories.txt
    elmokit surprisal stories.txt --words --out sentences.tsv
    elmokit surprisal stories.txt --words --documents --out documents.tsv
    elmokit surprisal stories.txt --words --documents --cache --out cached.tsv
    python recipes/reading_times.py natural-stories sentences.tsv documents.tsv cached.tsv --vocabulary vocab.txt

natural-stories is the release of github.com/languageMIT/naturalstories (May 2025 or later). The first command prints
the stories as they were shown to the readers, one per paragraph. The last one takes tables of one model or of several,
and a vocabulary, whose words follow Zipf's law; with ``--text 'corpus/*.txt.xz'``, they are counted in that text. It
compares a regression of the reading time on length and log frequency, of a word and of the two words before it, with
one that also has their surprisal: without and with the letters of unknown words (``spelling_nats``), and these alone.
Each story is predicted from the others, and errors are those over stories.
"""

from __future__ import annotations

import argparse
import csv
import glob
import lzma
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
from statsmodels.api import OLS

from elmokit import tokenize

TSV = {"sep": "\t", "quoting": csv.QUOTE_NONE, "keep_default_na": False}
LAGS = (0, 1, 2)


def find(folder: Path, name: str) -> Path:
    """Return a file of the release, compressed or not."""
    return next((path for path in folder.glob(f"{name}*") if path.suffix != ".md"), folder / name)


def read_words(folder: Path) -> pandas.DataFrame:
    """Return a row for each word of the stories: as it was shown, and its reading time."""
    lines = pandas.read_csv(find(folder, "words.tsv"), names=["code", "text"], **TSV)
    lines[["story", "zone", "kind"]] = lines["code"].str.split(".", n=2, expand=True)
    lines = lines[lines["kind"] == "whole"].astype({"story": int, "zone": int}).set_index(["story", "zone"])
    words = lines["text"].str.replace(" ", "").to_frame("word").sort_index()
    times = pandas.read_csv(find(folder, "processed_wordinfo.tsv"), index_col=["item", "zone"], **TSV)
    words[["timed", "milliseconds"]] = times[["word", "meanItemRT"]].reindex(words.index)
    if (words["timed"].notna() & (words["timed"] != words["word"])).mean() > 0.01:
        sys.exit(f"{folder}: the reading times are of other words; expected the release of May 2025 or later.")
    return words


def read_surprisal(words: pandas.DataFrame, path: Path) -> pandas.DataFrame:
    """Return the surprisal of each word in each direction of a model, without and with letters, and these alone."""
    table = pandas.read_csv(path, sep="\t", keep_default_na=False)
    if table["word"].tolist() != words["word"].tolist():
        sys.exit(f"{path}: the words are not those of the stories.")
    nats = table.filter(regex="^(forward|backward)_nats$").apply(pandas.to_numeric)
    nats = nats.set_axis(words.index).rename(columns=lambda name: name.removesuffix("_nats"))
    if "spelling_nats" in table:
        letters = pandas.to_numeric(table["spelling_nats"]).set_axis(words.index)
        for side in list(nats):
            nats[f"{side}, with letters"] = nats[side] + letters
        nats["letters alone"] = letters
    return nats


def large_model(words: pandas.DataFrame, path: Path) -> pandas.Series:
    """Return the surprisal of each word by the model whose log probabilities the release has."""
    rows = pandas.read_csv(path, keep_default_na=False)
    starts = rows["token"].str.startswith(" ") | (rows["story"] != rows["story"].shift())
    nats = -pandas.to_numeric(rows["logprob"]).groupby(starts.cumsum()).agg(lambda values: values.sum(skipna=False))
    return pandas.Series(nats.to_numpy(), words.index)


def count_words(texts: list[str]) -> Counter[str]:
    """Count the words of tokenized text, compressed or not."""
    found: Counter[str] = Counter()
    for path in (path for pattern in texts for path in glob.glob(pattern)):
        with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
            for line in file:
                found.update(line.split())
    return found


def log_frequencies(words: pandas.DataFrame, vocabulary: Path, texts: list[str], all_words: bool) -> pandas.Series:
    """Return the log probability of each word in running text: that of its rarest token, punctuation apart."""
    known = [word for word in vocabulary.read_text(encoding="utf-8").split("\n")[3:] if word]
    counts: dict[str, float] = {word: 1 / rank for rank, word in enumerate(known, start=1)}
    if texts:
        found = count_words(texts)
        counts = {word: found[word] for word in (found if all_words else known) if found[word]}
    rarest, total = min(counts.values()), sum(counts.values())

    def of_word(word: str) -> float:
        tokens = [token for sentence in tokenize(word) for token in sentence]
        shown = [token for token in tokens if any(map(str.isalnum, token))] or tokens
        return min(max(counts.get(token, rarest), counts.get(token.lower(), rarest)) for token in shown)

    return np.log(words["word"].map(of_word) / total)


def with_words_before(columns: pandas.DataFrame) -> pandas.DataFrame:
    """Add the numbers of the words before each word, within its story."""
    return pandas.concat([columns.groupby(level=0).shift(lag).add_suffix(f" {lag}") for lag in LAGS], axis=1)


def log_likelihood(times: pandas.Series, columns: pandas.DataFrame) -> pandas.Series:
    """Return the log-likelihood of each word by a regression on the other stories."""
    columns = columns.assign(constant=1.0)
    parts, stories = [], times.index.get_level_values(0)
    for story in stories.unique():
        is_test = stories == story
        fit = OLS(times[~is_test], columns[~is_test]).fit()
        variance = (fit.resid**2).mean()
        residuals = times[is_test] - fit.predict(columns[is_test])
        parts.append(-0.5 * (np.log(2 * np.pi * variance) + residuals**2 / variance))
    return pandas.concat(parts)


def over_stories(gains: pandas.Series, sign: str = "") -> str:
    """Write the mean of words, with its standard error over stories."""
    by_story = gains.groupby(level=0).mean()
    return f"{gains.mean():{sign}.2f} ± {by_story.std() / len(by_story) ** 0.5:.2f}"


def n_above_zero(gains: pandas.Series) -> str:
    """Write how many stories gain."""
    by_story = gains.groupby(level=0).mean()
    return f"{(by_story > 0).sum()} of {len(by_story)}"


def main() -> None:
    """Print the stories; or, given tables of surprisal, the gain of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", type=Path, help="directory of Natural Stories")
    parser.add_argument("surprisal", type=Path, nargs="*", help="tables of surprisal --words; needs --vocabulary")
    parser.add_argument("--vocabulary", type=Path, help="vocabulary file, most frequent words first")
    parser.add_argument("--text", action="append", default=[], help="files in which words are counted; can be repeated")
    parser.add_argument("--all-words", action="store_true", help="count words outside of the vocabulary, too")
    parser.add_argument("--by-story", action="store_true", help="print the gain in each story, too")
    parser.add_argument("--against", help="the row that others are compared with, story by story; by default the first")
    arguments = parser.parse_args()
    words = read_words(arguments.stories)
    if not arguments.surprisal:
        for _, story in words.groupby(level=0):
            print(*story["word"], end="\n\n")
        return
    tables = {path.stem: read_surprisal(words, path) for path in arguments.surprisal}
    nats = {f"{name}, {side}": table[[side]] for name, table in tables.items() for side in table}
    if (path := find(arguments.stories, "all_stories_gpt3.csv")).is_file():
        nats["large model"] = large_model(words, path).to_frame("nats")
    frequency = log_frequencies(words, arguments.vocabulary, arguments.text, arguments.all_words)
    base = with_words_before(pandas.DataFrame({"length": words["word"].str.len(), "frequency": frequency}))
    added = {name: with_words_before(column) for name, column in nats.items()}
    times = words["milliseconds"].astype(float)
    is_defined = pandas.concat([times, base, *added.values()], axis=1).notna().all(axis=1)
    times, base = times[is_defined], base[is_defined]
    without = log_likelihood(times, base)
    full = {name: pandas.concat([base, columns[is_defined]], axis=1) for name, columns in added.items()}
    gains = {name: 1000 * (log_likelihood(times, columns) - without) for name, columns in full.items()}
    against = arguments.against or next(iter(gains))
    head = f"gain (nats per 1,000 words) | stories that gain | against {against} | ms/nat, word | 1 before | 2 before"
    print(f"| surprisal | {head} |")
    print("|---|---|---|---|---|---|---|")
    for name, gain in gains.items():
        slopes = OLS(times, full[name].assign(constant=1.0)).fit().params[added[name].columns]
        shown = " | ".join(f"{slope:.2f}" for slope in slopes)
        difference = "" if name == against else over_stories(gain - gains[against], sign="+")
        print(f"| {name} | {over_stories(gain)} | {n_above_zero(gain)} | {difference} | {shown} |")
    if arguments.by_story:
        print("\n| gain in story |", *(f"{story} |" for story in times.index.unique(level=0)))
        print("|---" * (1 + times.index.unique(level=0).size) + "|")
        for name, gain in gains.items():
            print(f"| {name} |", *(f"{mean:.1f} |" for mean in gain.groupby(level=0).mean()))
    print(f"\n{len(times):,} words; log-likelihood without surprisal: {without.mean():.4f} nats per word.")


if __name__ == "__main__":
    main()

"""``elmokit train``: raw text to a biLM."""

from __future__ import annotations

import dataclasses
import json
import random
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import PROGRAM, expand_paths
from elmokit.errors import ConfigError, OutputError, TextError, TrainingError

if TYPE_CHECKING:
    from elmokit.train.trainer import Progress

HELD_OUT_SENTENCES = 2000


@click.command(short_help="Raw text to a biLM.")
@click.argument("texts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Folder for checkpoints, log and model.")
@click.option("--held-out", required=True, multiple=True, type=click.Path(path_type=Path), help="Text to judge by.")
@click.option("--preset", default="mini", show_default=True, help="Sizes: tiny, mini, small, medium, original.")
@click.option("--max-words", default=10_000, show_default=True, help="Words the softmax predicts, the most frequent.")
@click.option("--predictions", default=10_000_000, show_default=True, help="Predictions per direction to train on.")
@click.option("--batch-size", default=48, show_default=True, help="Rows read side by side.")
@click.option("--steps", default=20, show_default=True, help="Positions per row and window (TBPTT).")
@click.option("--learning-rate", default=5e-3, show_default=True, help="Peak learning rate of Adam.")
@click.option("--dropout", default=0.1, show_default=True, help="On every LSTM layer's input and on the top output.")
@click.option("--seed", default=0, show_default=True, help="Of weights, text order and dropout.")
@click.option("--resume", is_flag=True, help="Go on with the run in the folder, with the same arguments.")
def train(texts: tuple[Path, ...], run: Path, held_out: tuple[Path, ...], resume: bool, **settings: Any) -> None:
    """Pre-train a biLM on TEXTS: tokenised sentences, one per line (.txt, .gz, .xz)."""
    from elmokit.bilm import PRESETS
    from elmokit.files import read_lines, split_tokens, written_whole
    from elmokit.text.vocabulary import Vocabulary, WordCounts
    from elmokit.train.trainer import TrainConfig
    from elmokit.train.trainer import train as run_training

    if settings["preset"] not in PRESETS:
        raise ConfigError(f"There is no preset {settings['preset']!r}. Choose one of: {', '.join(PRESETS)}.")
    model = dataclasses.replace(PRESETS[settings["preset"]], dropout=settings["dropout"])
    config = TrainConfig(
        model=model,
        n_predictions=settings["predictions"],
        batch_size=settings["batch_size"],
        n_steps=settings["steps"],
        learning_rate=settings["learning_rate"],
        seed=settings["seed"],
    )
    if run.exists() and not (resume and run.is_dir()):
        raise OutputError(f"{run} exists already. Add --resume to go on with a run's folder, or choose another.")
    shards = expand_paths(texts)
    held_out_lines = (line for path in expand_paths(held_out) for line in read_lines(path))
    sentences = [tokens for line in held_out_lines if (tokens := split_tokens(line))]
    if not sentences:
        raise TextError(f"There is no sentence in {', '.join(map(str, held_out))}: nothing to judge by.")
    sentences = random.Random(0).sample(sentences, min(HELD_OUT_SENTENCES, len(sentences)))
    vocabulary_file, corpus_file = run / "vocab.txt", run / "corpus.json"
    if corpus_file.exists():
        vocabulary = Vocabulary.from_file(vocabulary_file)
        corpus = json.loads(corpus_file.read_text(encoding="utf-8"))
        if corpus["max_words"] != settings["max_words"]:
            raise TrainingError(f"{run} was begun with --max-words {corpus['max_words']}. Resume with the same.")
    else:
        counts = WordCounts()
        for shard in shards:
            counts.add(shard)
        if not counts.n_sentences:
            raise TextError(f"There is no sentence in {', '.join(map(str, texts))}: nothing to train on.")
        vocabulary = Vocabulary.from_counts(counts.words, settings["max_words"])
        known = sum(counts.words[word] for word in vocabulary.words)
        corpus = {
            "files": [shard.name for shard in shards],
            "n_sentences": counts.n_sentences,
            "n_tokens": counts.n_tokens,
            "n_types": len(counts.words),
            "max_words": settings["max_words"],
            "unknown_share": 1 - known / counts.n_tokens,
        }
        for path, content in (
            (vocabulary_file, vocabulary.to_text()),
            (corpus_file, json.dumps(corpus, indent=2) + "\n"),
        ):
            with written_whole(path, overwrite=True) as beside:
                beside.write_text(content, encoding="utf-8", newline="\n")
    card = {"corpus": corpus, "vocabulary_size": len(vocabulary), "command": _command(), "train": _plain(config)}
    click.echo(
        f"{corpus['n_sentences']:,} sentences, {corpus['n_tokens']:,} tokens, {corpus['n_types']:,} types; "
        f"{corpus['unknown_share']:.1%} of the tokens are outside the vocabulary of {len(vocabulary):,}"
    )
    result = run_training(config, shards, sentences, vocabulary, run, card, _print_progress)
    click.echo(f"Held-out perplexity {result.mean:.2f}. The model is in {run / 'model'}.")


def _command() -> str:
    return shlex.join([PROGRAM, *sys.argv[1:]])


def _plain(config: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(config).items() if name != "model"}


def _print_progress(progress: Progress) -> None:
    hours, minutes = divmod(round(progress.seconds_left / 60), 60)
    losses = " / ".join(f"{loss:.3f}" for loss in progress.losses)
    line = (
        f"step {progress.n_steps:>6}  {progress.share:6.1%}  {progress.tokens_per_second:6.0f} tokens/s  "
        f"{hours}:{minutes:02} left  loss {losses}"
    )
    if progress.held_out:
        line += "  held-out perplexity " + " / ".join(f"{value:.2f}" for value in progress.held_out)
    click.echo(line)

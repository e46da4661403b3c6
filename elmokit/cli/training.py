"""What ``train`` and ``finetune`` share: a run's folder from its beginning to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from elmokit.bilm import BiLM
from elmokit.cli.common import PROGRAM
from elmokit.config import read_json
from elmokit.errors import ConfigError, LockedError, MissingExtraError, TextError, TrainingError
from elmokit.initial_state import calibrate_initial_state
from elmokit.io.atomic import atomic_write
from elmokit.io.progress import ProgressBar
from elmokit.io.text_files import find_text_files, read_sentences, total_bytes
from elmokit.nn.devices import parse_device
from elmokit.text.counts import WordCounts
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.training.config import MAY_CHANGE, TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.curves import Board, draw_curves
from elmokit.training.finetune import before_and_after
from elmokit.training.loop import train as run_training
from elmokit.training.plan import Plan, Sizes
from elmokit.training.run import VOCABULARY, RunSettings
from elmokit.training.run_folder import run_lock
from elmokit.training.state import checkpoints
from elmokit.weights.folder import is_folder, load_folder, save_folder
from elmokit.weights.softmaxes import build_softmax

if TYPE_CHECKING:
    from elmokit.scoring.perplexity import Perplexity
    from elmokit.training.distributed import World
    from elmokit.training.loop import Progress as TrainingProgress
    from elmokit.weights.model import PretrainedBiLM

HELD_OUT, OLD_TEXT, CARD, INITIAL = "held-out.txt", "old-text.txt", "card.json", "initial"
MAX_WORDS = 30_000
CALIBRATING_SENTENCES, CALIBRATING_TOKENS, CALIBRATING_SHARDS = 1000, 200, 16  # in all, of a sentence, at most
FLAGS = {"file": "config", "inputs": "input"}  # settings whose flag has another name


def device_of(name: str) -> torch.device:
    """The device of a ``--device`` flag.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"There is no device {name!r}. Choose cpu, cuda or auto.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Training runs on cpu and cuda, not on {name!r}. Choose cpu, cuda or auto.")
    return parse_device(device)


def counted_corpus(
    texts: Sequence[Path],
    held_out: Sequence[Path],
    vocab: Path | Vocabulary | None,
    max_words: int | None,
    held_out_sentences: int,
) -> tuple[TrainingCorpus, dict[str, Any], dict[str, int]]:
    """Count a text and read what it is judged by.

    Args:
        vocab: the words of the softmax, or their file; None for the ``max_words`` most frequent ones.

    Returns:
        the corpus, what the model card says of it, and how often each word of the vocabulary stands in it, all others
        as the unknown word.

    Raises:
        TextError, ModelError, ConfigError: a file cannot be used.
    """
    shards = find_text_files(texts, reread=True)
    sentences = read_held_out(held_out, held_out_sentences)
    click.echo(f"counting {len(shards)} file{'s' * (len(shards) != 1)}", err=True)
    with WordCounts() as counts, ProgressBar("B", total_bytes(shards)) as progress:
        for shard in shards:
            counts.add(shard, progress.update)
        if isinstance(vocab, Vocabulary):
            vocabulary = vocab
        elif vocab is not None:
            vocabulary = Vocabulary.from_file(vocab)
        else:
            vocabulary = Vocabulary.from_counts(counts, MAX_WORDS if max_words is None else max_words)
        words, n_types = dict.fromkeys(vocabulary.words, 0), 0
        for word, count in counts.items():
            n_types += 1
            if word in words:
                words[word] = count
    known = sum(words.values())
    words[vocabulary.words[vocabulary.unknown_id]] += counts.n_tokens - known
    facts = {
        "files": [shard.name for shard in shards],
        "n_sentences": counts.n_sentences,
        "n_tokens": counts.n_tokens,
        "n_types": n_types,
        "unknown_share": 1 - known / max(1, counts.n_tokens),
    }
    click.echo(
        f"{counts.n_sentences:,} sentences, {counts.n_tokens:,} tokens, {n_types:,} types; "
        f"{facts['unknown_share']:.1%} of the tokens are outside the vocabulary of {len(vocabulary):,}"
    )
    return TrainingCorpus(shards, sentences, vocabulary, counts.n_sentences, counts.n_tokens), facts, words


def read_held_out(paths: Sequence[Path], most: int) -> list[list[str]]:
    """The sentences of some files; ``most`` of them at random where there are more.

    Raises:
        TextError: a file cannot be read, or holds none.
        ConfigError: ``most`` is below 1.
    """
    if most < 1:
        raise ConfigError(f"held_out_sentences is {most}; it must be at least 1.")
    sentences = [tokens for path in find_text_files(paths) for tokens in read_sentences(path)]
    return random.Random(0).sample(sentences, most) if len(sentences) > most else sentences


def tell_word_order(config: TrainingConfig, vocabulary: Vocabulary, counts: Mapping[str, int]) -> None:
    """Warn where words that must stand by descending frequency do not.

    Args:
        counts: how often each word stands in the text.
    """
    if not config.n_samples and config.softmax.kind != "adaptive":
        return
    listed = [counts[word] for word in vocabulary.words if word not in SPECIALS]
    size = max(1, len(listed) // 10)
    tenths = [sum(listed[first : first + size]) for first in range(0, len(listed), size)]
    if tenths and max(tenths) > tenths[0]:
        what = "n_samples draws" if config.n_samples else "the adaptive softmax divides"
        click.echo(
            f"The vocabulary's first tenth does not hold the most frequent words of this text, and {what} by their "
            "order. elmokit vocab writes words by descending frequency.",
            err=True,
        )


def begin_run(
    run: Path,
    config: TrainingConfig,
    corpus: TrainingCorpus,
    facts: Mapping[str, Any],
    n_processes: int,
    initial: PretrainedBiLM | None = None,
    old_text: Sequence[Sequence[str]] = (),
) -> None:
    """Write down all that a run is begun with.

    Args:
        facts: what the model card says of the corpus.
        initial: the model to start from; the run keeps it, and its card says where it came from.
        old_text: sentences like those that model was trained on, scored before and after.

    Raises:
        TextError: the corpus is too small for the settings.
        OutputError: the folder exists already, or cannot be written.
    """
    corpus.check(config, n_processes)
    with torch.device("meta"):  # refused before anything is written, where the softmax does not fit
        build_softmax(config.softmax, len(corpus.vocabulary), BiLM(config.model))
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in ("model", "softmax")}
    card = {
        "corpus": facts,
        "vocabulary_size": len(corpus.vocabulary),
        "command": shlex.join([PROGRAM, *sys.argv[1:]]),
        "elmokit": _version(),
        "train": settings,
    }
    if initial is not None:
        card["initial"] = {"source": None if initial.source is None else initial.source.name, "card": initial.card}
    with atomic_write(run, folder=True) as folder:
        (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
        for name, sentences in ((HELD_OUT, corpus.held_out), (OLD_TEXT, old_text)):
            if sentences:
                lines = [" ".join(sentence) + "\n" for sentence in sentences]
                (folder / name).write_text("".join(lines), encoding="utf-8", newline="\n")
        (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        RunSettings.of(config, corpus, 0).save(folder)
        if initial is not None:
            save_folder(initial, folder / INITIAL)


def carry_on(
    run: Path,
    texts: Sequence[Path],
    changes: Mapping[str, Any],
    world: World,
    device: torch.device,
) -> Perplexity:
    """Train to the end, from the run's last checkpoint or from its beginning.

    Args:
        texts: the run's shards, where they stand elsewhere by now.
        changes: settings that differ from those the run was begun with.

    Raises:
        TrainingError: there is no such run, its text is not there, or a setting cannot change.
    """
    earlier = RunSettings.open(run)
    if fixed := sorted({FLAGS.get(name, name) for name in set(changes) - MAY_CHANGE}):
        raise TrainingError(
            f"A run goes on with its own settings: --{fixed[0].replace('_', '-')} cannot change. What can: "
            f"{', '.join(sorted(MAY_CHANGE))}."
        )
    budgets = dict.fromkeys(("epochs", "tokens", "hours")) if {"epochs", "tokens", "hours"} & set(changes) else {}
    config = dataclasses.replace(earlier.config, **{**budgets, **changes})
    shards = find_text_files(texts, reread=True) if texts else [Path(name) for name, _ in earlier.shards]
    if missing := [shard for shard in shards if not shard.is_file()]:
        raise TextError(f"{missing[0]}, which the run reads, is not there. Give the run's texts where they are now.")
    held_out = list(read_sentences(run / HELD_OUT))
    vocabulary = Vocabulary.from_file(run / VOCABULARY)
    corpus = TrainingCorpus(shards, held_out, vocabulary, earlier.n_sentences, earlier.n_tokens)
    card = json.loads((run / CARD).read_text(encoding="utf-8"))
    say = click.echo if world.is_main_process else _say_nothing
    begins = (run / INITIAL).exists() and not checkpoints(run)
    board = Board(run, _n_steps(run)) if config.tensorboard and world.is_main_process else None

    def report(progress: TrainingProgress) -> None:
        _print_progress(progress)
        if board is not None:
            board.add(progress)

    result = run_training(
        config,
        corpus,
        run,
        card,
        report=report,
        tell=lambda line: say(line, err=True),
        show_plan=lambda plan: say(_described(plan, config)),
        initial=load_folder(run / INITIAL) if begins else None,
        world=world,
        device=device,
        hours_from_now="hours" in changes,
    )
    if world.is_main_process:
        click.echo(f"Held-out perplexity {_slashed(result.per_direction)} at the end (full softmax).")
        if is_folder(run / "model"):  # not where perplexity never was a number
            best = read_json(run / "model" / "config.json")["card"]
            scored = f"{_slashed(best['held_out_perplexity'])} at step {best['n_steps']:,}"
            click.echo(f"The best model, {scored}, is in {run / 'model'}.")
        if board is not None:
            board.close()
        with contextlib.suppress(LockedError), run_lock(run):  # else another process has resumed the run already
            _conclude(run, corpus, config)
    return result


def _conclude(run: Path, corpus: TrainingCorpus, config: TrainingConfig) -> None:
    """Curves, and what the best model's card tells at the end: its warm state, what a fine-tuning has changed."""
    try:
        curves = draw_curves(run, "sampled loss" if config.n_samples else "training loss")
        click.echo(f"The curves are in {curves[0]}.")
    except MissingExtraError as error:
        click.echo(str(error), err=True)
    is_tuned = (run / INITIAL).exists()
    if not is_folder(run / "model") and not is_tuned:
        return
    best = load_folder(run / "model")
    calibrate_initial_state(best, _calibrating(corpus.shards), "the training text")
    if is_tuned:
        best.card["perplexity"] = _compared(run, best, corpus.held_out)
    save_folder(best, run / "model", overwrite=True)
    if is_tuned:
        _tell_changes(best.card)


def _calibrating(shards: Sequence[Path]) -> list[list[str]]:
    """Some sentences of a training text."""
    chosen = shards[:: -(-len(shards) // CALIBRATING_SHARDS)]
    n_each = -(-CALIBRATING_SENTENCES // len(chosen))
    # Cut, as some texts have a document a line.
    return [tokens[:CALIBRATING_TOKENS] for shard in chosen for tokens in islice(read_sentences(shard), n_each)]


def _n_steps(run: Path) -> int:
    """Steps of the last checkpoint."""
    found = checkpoints(run)
    return int(found[-1].name.removeprefix("step-")) if found else 0


def _compared(run: Path, best: PretrainedBiLM, held_out: Sequence[Sequence[str]]) -> dict[str, dict[str, list[float]]]:
    """Perplexity before and after, on the new domain and the old."""
    texts = {"held-out": held_out}
    if (run / OLD_TEXT).exists():
        texts["old text"] = list(read_sentences(run / OLD_TEXT))
    return before_and_after(load_folder(run / INITIAL), best, texts)


def _tell_changes(card: Mapping[str, Any]) -> None:
    for name, values in card["perplexity"].items():
        before, after = (_slashed(values[when]) for when in ("before", "after"))
        click.echo(f"{name:<9} perplexity before {before}, after {after} (each sentence alone)")
    if not card["n_steps"]:
        click.echo("Training made nothing better: the model is as it was. Lower --learning-rate, or give more text.")


def _say_nothing(line: str, err: bool = False) -> None:
    pass


def _described(plan: Sizes | Plan, config: TrainingConfig) -> str:
    if isinstance(plan, Sizes):
        return (
            f"{plan.n_parameters / 1e6:.1f} M parameters and {plan.n_softmax_parameters / 1e6:.1f} M of the softmax; "
            f"about {max(1, round(plan.memory_bytes / 2**20)):,} MiB a process"
        )
    return (
        f"{plan.n_predictions:,} predictions per direction in {plan.n_steps:,} steps of {config.n_positions:,} a "
        f"process; about {_clock(plan.seconds)}"
    )


def _slashed(perplexities: Sequence[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in perplexities)


def _print_progress(progress: TrainingProgress) -> None:
    losses = " / ".join(f"{loss:.3f}" for loss in progress.losses)
    line = (
        f"step {progress.n_steps:>6}  {progress.share:6.1%}  pass {progress.n_passes:.2f}  "
        f"{progress.tokens_per_second:6.0f} tokens/s  {_clock(progress.seconds_left)} left  training loss {losses}"
    )
    if progress.held_out:
        line += f"  held-out perplexity {_slashed(progress.held_out)}"
    click.echo(line)


def _clock(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}:{minutes:02} h"


def _version() -> str:
    """The package's version, and the commit where it runs from a checkout."""
    here = Path(__file__).parent
    if (here.parents[1] / ".git").exists():
        command = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return f"{version(PROGRAM)} at commit {ran.stdout.strip()}"
    return version(PROGRAM)

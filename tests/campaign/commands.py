"""The commands that the campaign interrupts, each with small inputs and with commits as often as possible."""

from __future__ import annotations

import json
from pathlib import Path

from elmokit.formats.save import save_model
from tests.campaign.interruptions import Command, commit_always
from tests.conftest import random_model
from tests.helpers.task_examples import write_config

WORDS = "the cat sat on the mat . the dog ran . a cat and a dog ran on .".split()  # noqa: SIM905


def text(n_lines: int) -> str:
    """Return sentences of different lengths, some of them blank."""
    return "".join(" ".join(WORDS[n % 7 : n % 7 + n % 11]) + "\n" for n in range(n_lines))


def write_text_and_model(folder: Path) -> None:
    (folder / "text.txt").write_text(text(60), encoding="utf-8")
    save_model(random_model(), folder / "model")


def write_text(folder: Path) -> None:
    (folder / "text.txt").write_text(text(120), encoding="utf-8")


def write_task(folder: Path) -> None:
    save_model(random_model(), folder / "model")
    write_config(folder=folder, elmo={"model": "model"}, train={"epochs": 2, "average": 0.99})


def write_joint_task(folder: Path) -> None:
    save_model(random_model(), folder / "model")
    write_config(folder=folder, elmo={"model": "model", "trainable": True}, train={"epochs": 2})


def write_pairs(folder: Path) -> None:
    save_model(random_model(), folder / "model")
    for paradigm in ("one", "two"):
        pair = {"sentence_good": "the cat sat .", "sentence_bad": "cat the sat .", "UID": paradigm}
        (folder / f"{paradigm}.jsonl").write_text(json.dumps(pair | {"linguistics_term": "order"}) + "\n")


def _embed(name: str, output: str, *flags: str) -> Command:
    small_batches = () if "--batch-size" in flags else ("--batch-tokens", "64")
    start = ("embed", "text.txt", output, "--model", "model", *small_batches, *flags)

    def resume(folder: Path) -> tuple[str, ...]:
        # The process may have died between publishing the output and removing what is left.
        return (*start, "--overwrite") if (folder / output).exists() else start

    return Command(name, write_text_and_model, start, resume, commit_always)


def _again(name: str, write: object, *start: str, flags: tuple[str, ...] = ()) -> Command:
    return Command(name, write, start, lambda _: (*start, *flags), commit_always)  # type: ignore[arg-type]


SMALL = ("--max-words", "9", "--batch-size", "4", "--window-length", "5", "--n-samples", "5", "--dropout", "0.2")
OFTEN = ("--save-every", "4", "--eval-every", "6", "--log-every", "3")
OTHER_COMMANDS = {
    command.name: command
    for command in (
        _embed("embed to parquet", "out.parquet", "--dtype", "float16"),
        _embed("embed to npz", "out.npz", "--pool", "mean", "--documents"),
        _embed("embed stateful", "out.hdf5", "--start", "stateful", "--batch-size", "4"),
        _again(
            *("finetune", write_text_and_model, "finetune", "text.txt", "--model", "model", "--held-out", "text.txt"),
            *("--run", "run", *SMALL[2:6], "--tokens", "160", *OFTEN),
        ),
        _again("task train, biLM too", write_joint_task, "task", "train", "config.toml", "--run", "run"),
        _again("vocab", write_text, "vocab", "text.txt", "words.txt", flags=("--overwrite",)),
        _again("convert", write_text_and_model, "convert", "model", "weights.hdf5", flags=("--overwrite",)),
        _again(
            *("perplexity", write_text_and_model, "evaluate", "perplexity", "text.txt", "--model", "model"),
            *("--per-token", "table.tsv"),
            flags=("--overwrite",),
        ),
    )
}
"""Commands that `make test` interrupts at two changes of the disk, and `make campaign` at all."""
COMMANDS = {
    command.name: command
    for command in (
        _embed("embed", "out.hdf5"),
        _again(
            *("train", write_text, "train", "text.txt", "--held-out", "text.txt", "--run", "run", "--preset", "tiny"),
            *(*SMALL, "--tokens", "160", *OFTEN),
        ),
        _again("task train", write_task, "task", "train", "config.toml", "--run", "run"),
        _again("neighbors index", write_text_and_model, "neighbors", "index", "text.txt", "index", "--model", "model"),
    )
}
"""Commands that `make test` interrupts at more changes of the disk, from different places of the program."""
ALL_COMMANDS = COMMANDS | OTHER_COMMANDS

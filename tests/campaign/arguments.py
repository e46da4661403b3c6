"""Command lines with wrong, odd and huge arguments: each ends with 0, or with 2 and an error without a traceback.

Commands of every kind, with small inputs, get other values, missing and repeated arguments, further flags, and ``-``.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import click

from elmokit.cli.main import elmokit
from tests.campaign.commands import ALL_COMMANDS, SMALL, text
from tests.campaign.hostile_text import hostile_token
from tests.campaign.interruptions import LIMITS, Outcome, commit_always, in_parallel
from tests.campaign.specimens import SPECIMENS, conllu, own_format
from tests.helpers.children import Ended, Limits, run_elmokit

N_LINES_OF_ARGUMENTS = 6_000
MUTANT_LIMITS = Limits(seconds=600, cpu_seconds=30, memory=3 << 30)
VALUES = (
    *("", " ", "-", "--", "\n", "\t", "\udcff", "\u202e", "e\u0301", "漢", "😀", "a" * 300, "a" * 1_000_000),
    *("-1", "0", "1", "2", "007", "1.5", "1e309", "nan", "-inf", "0x10", "٣", "½", "1_000", "1,2", "99999999999"),
    *("all", "top", "0,1", "0-9999999", "None", "null", "true", "[]", "{}", "[", "a=b", "a.b=1", "@file", "*", "%s"),
    *("float32", "int8", "int4", "float16", "cuda", "cuda:7", "cpu:3", "meta", "warm", "stateful", "mean", "sif"),
    *("text.txt", "model", "missing.hdf5", "out.hdf5", "out.parquet", "out.npz", "out.arrow", ".", "/dev/full"),
)


def is_safe(value: str) -> bool:
    """Check that a value can be an argument, which ends at a NUL, and leads to no file outside of the directory."""
    return value in VALUES or not any(part in value for part in ("\0", "/", "~", "..", "://"))


def hostile_value(random: Random) -> str:
    """Return a value that no command expects."""
    while True:
        value = random.choice(VALUES) if random.random() < 0.7 else hostile_token(random)
        if is_safe(value):
            return value


def flags_of(arguments: tuple[str, ...]) -> list[str]:
    """Return all flags of the command that arguments name."""
    command: click.Command = elmokit
    for name in arguments:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), name)
        if found is None:
            break
        command = found
    return [name for option in command.params for name in option.opts if name.startswith("-")] or ["--quiet"]


def mutate(arguments: tuple[str, ...], flags: list[str], random: Random) -> tuple[str, ...]:
    """Change one to three things about a command line. Its command stays."""
    n_names = 1 + (arguments[0] in ("task", "neighbors", "evaluate", "export", "bilm-tf"))
    head, rest = list(arguments[:n_names]), list(arguments[n_names:])
    for _ in range(random.choice((1, 1, 2, 3))):
        kind, at = random.randrange(6), random.randrange(len(rest)) if rest else 0
        if kind == 0 and rest:
            rest[at] = hostile_value(random)
        elif kind == 1 and rest:
            rest[at] = "-"
        elif kind == 2 and rest:
            del rest[at]
        elif kind == 3 and rest:
            rest.insert(at, random.choice(rest))
        elif kind == 4:
            rest += [random.choice(flags), hostile_value(random)]
        else:
            flag = random.choice(flags)
            rest.insert(at, random.choice((flag, f"{flag}={hostile_value(random)}", flag[: random.randint(2, 9)])))
    return (*head, *rest)


def read_text_from_standard_input() -> None:
    """Let a file be this process's standard input."""
    commit_always()
    descriptor = os.open("standard-input", os.O_RDONLY)
    os.dup2(descriptor, 0)
    os.close(descriptor)


def judge(ended: Ended) -> str | None:
    """Return what is wrong with how a command line ended."""
    if ended.code == -signal.SIGXCPU:  # it may have been told to compute for long
        return None
    if ended.timed_out:
        return "did not end"
    if ended.code not in (0, 2) or "Traceback" in ended.err:
        return f"ended with {ended.code}: {ended.err[-1500:]}"
    if len(ended.err) > 20_000:
        return f"printed {len(ended.err):,} characters of errors: {ended.err[:300]}"
    return None


def sources() -> dict[str, tuple[Callable[[Path], None], tuple[str, ...]]]:
    """Return what writes the inputs of each command, and its arguments."""
    found = {name: (command.prepare, command.start) for name, command in ALL_COMMANDS.items()}
    for name in (
        *("own format", "TF checkpoint", "AllenNLP ner", "FASTA", "task run", "index, vectors"),
        *("config of AllenNLP", "similarity", "minimal pairs", "senses"),
    ):
        found[name] = (SPECIMENS[name].write, SPECIMENS[name].command)
    for line, write in OTHER_COMMANDS.items():
        found[line] = (write, tuple(line.split()))
    return found


def _write_lines(folder: Path) -> None:
    own_format(folder)
    (folder / "words.txt").write_text("cat\nsat\nthe\n")


def _write_run(folder: Path) -> None:
    (folder / "text.txt").write_text(text(30))
    flags = ("--held-out", "text.txt", "--run", "run", "--preset", "tiny", "--recipe", "bilm-tf", "--tokens", "40")
    ended = run_elmokit("train", "text.txt", *flags, *SMALL, folder=folder, limits=LIMITS)
    assert ended.code == 0, ended.err


def _write_task_run(folder: Path) -> None:
    SPECIMENS["task run"].write(folder)
    (folder / "text.txt").write_text(text(30))


OTHER_COMMANDS: dict[str, Callable[[Path], None]] = {
    "surprisal text.txt --model model": own_format,
    "info --model model": own_format,
    "distill model text.txt --held-out words.txt --run run --preset tiny --batch-size 1 --tokens 20": _write_lines,
    "evaluate pos text.conllu text.conllu --model model --layers 0 --epochs 1 --seeds 1": conllu,
    "task predict run text.txt": _write_task_run,
    "allennlp-elmo words.txt out.hdf5 --weight-file model --all": _write_lines,
    "allennlp-vocab --vocab_path run/vocab.txt --elmo_weights run --output_dir o --use_custom_oov_token 1": _write_run,
    "bilm-tf restart --save_dir run --vocab_file run/vocab.txt --train_prefix text.txt": _write_run,
    "bilm-tf run_test --save_dir run --vocab_file run/vocab.txt --test_prefix text.txt --batch_size 2": _write_run,
    "bilm-tf dump_weights --save_dir run --outfile out.hdf5": _write_run,
    "models": own_format,
    "help embed": own_format,
    "version": own_format,
    "completion bash": own_format,
}
"""Command lines, and what writes their inputs."""
NOT_TRIED = {"serve", "bench", "bilm-tf train_elmo"}
"""Commands that run until they are stopped, or compute for long, whatever most of their arguments are."""


def command_names(command: click.Command = elmokit, *before: str) -> Iterator[str]:
    """Yield the names of all commands, such as "task train"."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from command_names(inner, *before, name)
    else:
        yield " ".join(before)


def judge_arguments(name: str, numbers: Iterable[int], work: Path, limits: Limits = MUTANT_LIMITS) -> Outcome:
    """Change the arguments of a command, once for each number, which is the seed; number 0 changes nothing."""
    write, arguments = sources()[name]
    (work / "sound").mkdir()
    write(work / "sound")
    (work / "sound" / "standard-input").write_text(text(20))
    flags, counts = flags_of(arguments), Counter[int]()

    def attempt(number: int) -> list[str]:
        folder, random = work / str(number), Random(f"{name} {number}")
        shutil.copytree(work / "sound", folder, symlinks=True)
        changed = mutate(arguments, flags, random) if number else arguments
        ended = run_elmokit(*changed, folder=folder, before=read_text_from_standard_input, limits=limits)
        counts[ended.code] += 1
        shutil.rmtree(folder)
        problem = judge(ended)
        if not number and ended.code:  # what always fails tries little
            problem = f"without a change, it ended with {ended.code}: {ended.err[-1500:]}"
        shown = [argument if len(argument) < 100 else f"{argument[:40]!r}..." for argument in changed]
        return [] if problem is None else [f"elmokit {shown} (number {number}): {problem}"]

    problems = in_parallel(attempt, numbers)
    note = ", ".join(f"{count} ended with {code}" for code, count in sorted(counts.items()))
    return counts.total(), problems, note


def changed_arguments(name: str, work: Path, scale: float) -> Outcome:
    """Change the arguments of a command many times."""
    return judge_arguments(name, range(max(5, round(N_LINES_OF_ARGUMENTS * scale / len(sources())))), work)


STEPS = {name: partial(changed_arguments, name) for name in sources()}

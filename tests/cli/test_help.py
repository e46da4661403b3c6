"""``--help``: commands by purpose, and examples that are real command lines."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

from elmokit.cli.command import SHOWS_ALL, DocumentedCommand
from elmokit.cli.main import elmokit
from elmokit.version import __version__
from tests.helpers.paths import ROOT
from tests.helpers.shell import Shell


def _all_commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(names), group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _all_commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


ALL = dict(_all_commands(elmokit))
FLAGS = Path(__file__).with_name("flags.txt")


def _help(name: str, shows_all: bool = True) -> str:
    """Return the help text of a command as --help-all or --help shows it, in lines of 100 columns."""
    context = click.Context(elmokit, info_name="elmokit", terminal_width=100, **elmokit.context_settings)
    context.meta[SHOWS_ALL] = shows_all
    command: click.Command = elmokit
    for part in name.split():
        assert isinstance(command, click.Group)
        inner = command.get_command(context, part)
        assert inner is not None
        command, context = inner, click.Context(inner, parent=context, info_name=part, terminal_width=100)
    return command.get_help(context) + "\n"


def _parse(line: str) -> None:
    """Parse a command line without running it."""
    words = shlex.split(re.sub(r" > \S+$", "", re.sub(r'^eval "\$\((.+)\)"$', r"\1", line)))
    while words[0] != "elmokit":  # environment variables, `torchrun -m`
        words = words[1:]
    command: click.Command = elmokit
    arguments = words[1:]
    while isinstance(command, click.Group) and not arguments[0].startswith("-"):
        found = command.get_command(click.Context(command), arguments[0])
        assert found is not None, line
        command, arguments = found, arguments[1:]
    with contextlib.suppress(click.exceptions.Exit):  # --version
        command.make_context(command.name, arguments)


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_every_command_is_short_and_ends_with_two_examples_that_it_accepts(name: str, folder: Path) -> None:
    command = ALL[name]
    assert isinstance(command, DocumentedCommand)
    examples = command.examples
    assert len(examples) >= 2
    shown = _help(name).splitlines()
    assert [line.strip() for line in shown[-len(examples) - 1 :]] == ["Examples:", *examples]
    assert any(f"elmokit {name}".rstrip() in line for line in examples)
    for line in examples:
        _parse(line)
    assert len(_help(name, shows_all=False).splitlines()) <= 55


def _flags(name: str) -> str:
    """Return what scripts depend on, and no prose: a command's arguments, and its options with their defaults."""
    context = click.Context(ALL[name], info_name=f"elmokit {name}".rstrip(), **elmokit.context_settings)
    lines = [" ".join((context.command_path, *ALL[name].collect_usage_pieces(context)))]
    for option in ALL[name].get_params(context):
        if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None:
            flags, text = record
            lines.append("  ".join(("", flags, *re.findall(r"\[(?:default|required)[^\]]*\]", text))))
    return "\n".join(lines) + "\n\n"


def test_a_change_of_a_flag_or_a_default_is_reviewed() -> None:
    shown = "".join(map(_flags, ALL)).removesuffix("\n")
    if os.environ.get("ELMOKIT_UPDATE_HELP"):
        FLAGS.write_text(shown, encoding="utf-8")
    assert shown == FLAGS.read_text(encoding="utf-8"), "Store it: ELMOKIT_UPDATE_HELP=1 pytest tests/cli/test_help.py"


@pytest.mark.parametrize("name", ALL)
def test_every_option_has_a_help_text(name: str) -> None:
    assert not [option.name for option in ALL[name].params if isinstance(option, click.Option) and not option.help]


def test_a_model_as_an_argument_is_answered_with_the_option(shell: Shell) -> None:
    for command in (["info"], ["bench"], ["serve"]):
        ran = shell(*command, "original")
        assert ran.code == 2
        assert ran.err.startswith("elmokit: Unexpected argument 'original'. Pass a model with --model. Try ")
    ran = shell("embed", "a.txt", "b.hdf5", "c.txt", "--device", "cpu")
    expected = "elmokit: Unexpected argument 'c.txt'. Pass a model with --model. Try 'elmokit embed --help'.\n"
    assert ran.err == expected


def test_a_misspelt_command_is_answered_with_the_nearest_one(shell: Shell) -> None:
    for group, wrong, right in (((), "embd", "embed"), (("task",), "trein", "train"), (("evaluate",), "po", "pos")):
        path = " ".join(("elmokit", *group))
        expected = f"elmokit: No such command {wrong!r}. Did you mean {right!r}? Try '{path} --help'.\n"
        for ran in (shell(*group, wrong), shell("help", *group, wrong)):
            assert (ran.code, ran.err) == (2, expected)


def test_help_of_a_command_is_what_its_flag_shows(shell: Shell) -> None:
    for command in ((), ("embed",), ("task",), ("task", "train")):
        assert shell("help", *command).out == shell(*command, "--help").out
    ran = shell("help", "embed", "text")
    assert (ran.code, ran.err) == (2, "elmokit: elmokit embed has no commands. Try 'elmokit embed --help'.\n")


def test_the_version_is_shown_in_three_ways(shell: Shell) -> None:
    for arguments in (("version",), ("-V",), ("--version",)):
        assert shell(*arguments) == (0, f"elmokit {__version__}\n", "")


def test_a_bug_report_gets_its_versions_without_pytorch(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_torch(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_torch)
    lines = shell("version", "--all").out.splitlines()
    assert lines[:2] == [f"elmokit {__version__}", f"Python {platform.python_version()}"]
    assert lines[-2:] == [f"numpy {version('numpy')}", "torch is not installed"]
    template = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    assert "`elmokit version --all`" in template


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_completion_of_bash_lists_commands(shell: Shell, tmp_path: Path) -> None:
    program = tmp_path / "elmokit"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m elmokit\n")
    program.chmod(0o755)
    script = shell("completion", "bash").out.replace("complete -o nosort", ": complete")
    use = f'COMP_WORDS=(elmokit ver); COMP_CWORD=1; _elmokit_completion {program}; echo "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(["bash", "-c", f"{script}\n{use}"], capture_output=True, text=True, env=environment)
    assert ran.stdout == "version\n", ran.stderr


def test_a_group_without_a_command_shows_its_help(shell: Shell) -> None:
    for group in ((), ("evaluate",), ("task",)):
        ran = shell(*group)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == shell(*group, "--help").out


def test_pages_that_messages_and_help_name_exist() -> None:
    for path in (ROOT / "elmokit").rglob("*.py"):
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{path.name}: {page}"

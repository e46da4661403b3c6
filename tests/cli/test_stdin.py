"""``-`` in place of a path: standard input where a text is read once, and standard output for a table.

A file of the name ``-``, which an earlier command may have left, changes nothing.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from elmokit.cli.main import elmokit
from elmokit.cli.parameters import OutputPath
from elmokit.errors import OutputError
from tests.helpers.shell import Shell

TEXT = "the cat sat .\nthe dog ran on the mat .\n" * 5
MODEL = ("--model", "model")


@pytest.fixture
def folder(folder: Path) -> Path:
    """A working directory that has a file of the name ``-``."""
    (folder / "-").write_text("", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("embed", "-", "vectors.hdf5", *MODEL),
        ("allennlp-elmo", "-", "vectors.hdf5", "--top", "--weight-file", "model"),
        ("vocab", "-", "vocabulary.txt"),
        ("surprisal", "-", *MODEL),
        ("evaluate", "perplexity", "-", *MODEL),
        ("evaluate", "perplexity", "-", *MODEL, "--documents"),
        ("evaluate", "perplexity", "-", *MODEL, "--per-token", "-"),
        ("evaluate", "perplexity", "-", *MODEL, "--as-bilm-tf", "2"),
        ("convert", "model", "converted", "--calibrate", "-"),
    ],
    ids=" ".join,
)
def test_a_text_is_read_from_standard_input(
    arguments: tuple[str, ...], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    ran = shell(*arguments)
    assert ran.code == 0, ran.err


def test_standard_input_is_one_text(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    ran = shell("convert", "model", "converted", "--calibrate", "-", "--whiten", "-")
    assert (ran.code, "can be used for only one text" in ran.err) == (2, True)


def all_commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command, click.Context]]:
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if (found := command.get_command(context, inner)) is not None:
                yield from all_commands(found, f"{name} {inner}")
    else:
        yield name, command, context


def test_only_tables_of_surprisals_go_to_standard_output_and_no_directory_is_created_for_an_output() -> None:
    allowed, n_refused = [], 0
    for name, command, context in all_commands(elmokit, "elmokit"):
        for parameter in command.get_params(context):
            if not isinstance(parameter.type, OutputPath):
                continue
            if not name.startswith("elmokit allennlp"):  # AllenNLP created it
                with pytest.raises(OutputError, match="nowhere does not exist"):
                    parameter.type.convert("nowhere/out", parameter, context)
            if parameter.type.allow_dash:
                allowed.append(f"{name} {parameter.name}")
                continue
            with pytest.raises(click.BadParameter, match=r"standard output \(-\) is not supported"):
                parameter.type.convert("-", parameter, context)
            n_refused += 1
    assert allowed == ["elmokit surprisal out", "elmokit evaluate perplexity per_token"]
    assert n_refused > 15


@pytest.mark.parametrize(("chosen", "word"), [(None, "ʃæt".encode()), ("cp1252", rb"\u0283" + "æt".encode("cp1252"))])
def test_a_table_in_a_pipe_is_utf_8_unless_another_encoding_is_chosen(
    chosen: str | None, word: bytes, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("ipa.txt").write_text("the ʃæt sat .\n", encoding="utf-8")
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if chosen:
        monkeypatch.setenv("PYTHONIOENCODING", chosen)
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="cp1252"))  # as Python does on Windows
    assert shell("surprisal", "ipa.txt", *MODEL).code == 0
    sys.stdout.flush()
    assert b"\t" + word + b"\t" in output.getvalue()

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from elmokit.cli.options import GroupedOption, SettingsCommand, setting_options
from elmokit.config import setting


@dataclass(frozen=True)
class Settings:
    rate: float | None = setting(0.5, "How fast.", "Speed")
    kind: Literal["a", "b"] = setting("a", "Which one.", "Choice")
    layers: tuple[int, ...] = setting((), "Which layers.", "Choice")
    is_quiet: bool = setting(False, "Say less.")
    is_loud: bool = setting(True, "Say more.", off_flag="--calm")
    texts: tuple[str, ...] = setting((), "What to read.", is_path=True)
    internal: int = 3


class Command(SettingsCommand):
    @staticmethod
    def setting_options() -> list[click.Option]:
        return setting_options(Settings, {"rate": 0.25})


@click.command(cls=Command)
@click.argument("text")
@click.option("--out", cls=GroupedOption, group="Output", help="Where to.")
def command(text: str, out: str | None, **settings: object) -> None:
    click.echo({name: value for name, value in settings.items() if value not in (None, ())})


def test_each_setting_is_an_option_with_its_default_under_its_heading() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    assert lines[1:] == [
        "Output:",
        "--out TEXT Where to.",
        "Speed:",
        "--rate FLOAT How fast. [default: 0.25]",
        "Choice:",
        "--kind [a|b] Which one. [default: a]",
        "--layers NUMBERS Which layers.",
        "Options:",
        "--is-quiet / --no-is-quiet Say less. [default: no]",
        "--is-loud / --calm Say more. [default: yes]",
        "--texts PATH What to read.",
        "--help Show this message and exit.",
    ]


def test_only_settings_that_were_given_are_returned() -> None:
    given = ["text", "--rate", "2", "--layers", "0,2", "--no-is-quiet"]
    assert CliRunner().invoke(command, given).output == "{'rate': 2.0, 'layers': [0, 2], 'is_quiet': False}\n"
    assert CliRunner().invoke(command, ["text"]).output == "{}\n"
    assert CliRunner().invoke(command, ["text", "--calm"]).output == "{'is_loud': False}\n"
    repeated = CliRunner().invoke(command, ["text", "--texts", "a", "--texts", "b"]).output
    assert repeated == f"{{'texts': {(Path('a'), Path('b'))}}}\n"


def test_some_fields_can_become_options_under_names_and_a_heading_of_their_own() -> None:
    options = setting_options(Settings, {}, {"quiet": "is_quiet", "sort": "kind"}, "Other")
    assert [(option.name, option.opts, getattr(option, "group", None)) for option in options] == [
        ("quiet", ["--quiet"], "Other"),
        ("sort", ["--sort"], "Choice"),
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [(("--layers", "0,x"), "not a list of whole numbers"), (("--kind", "c"), "'c' is not one of 'a', 'b'")],
)
def test_a_wrong_value_is_a_usage_error(option: tuple[str, str], message: str) -> None:
    ran = CliRunner().invoke(command, ["text", *option])
    assert ran.exit_code == 2
    assert message in ran.output

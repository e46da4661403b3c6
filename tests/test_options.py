from __future__ import annotations

from dataclasses import dataclass
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
    internal: int = 3


class Command(SettingsCommand):
    @staticmethod
    def setting_options() -> list[click.Option]:
        return setting_options(Settings, {"rate": 0.25})


@click.command(cls=Command)
@click.argument("text")
@click.option("--out", cls=GroupedOption, group="Output", help="Where to.")
def command(text: str, out: str | None, **settings: object) -> None:
    click.echo({name: value for name, value in settings.items() if value is not None})


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
        "--help Show this message and exit.",
    ]


def test_only_settings_that_were_given_are_returned() -> None:
    given = ["text", "--rate", "2", "--layers", "0,2", "--no-is-quiet"]
    assert CliRunner().invoke(command, given).output == "{'rate': 2.0, 'layers': [0, 2], 'is_quiet': False}\n"
    assert CliRunner().invoke(command, ["text"]).output == "{}\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [(("--layers", "0,x"), "not a list of whole numbers"), (("--kind", "c"), "'c' is not one of 'a', 'b'")],
)
def test_a_wrong_value_is_a_usage_error(option: tuple[str, str], message: str) -> None:
    ran = CliRunner().invoke(command, ["text", *option])
    assert ran.exit_code == 2
    assert message in ran.output

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from elmokit import distill, finetune
from elmokit import train as train_bilm
from elmokit.cli.command import Flag, command_of, setting_options, with_settings, with_underscores
from elmokit.cli.training_commands import Running
from elmokit.config import setting
from elmokit.embedding.elmo import Elmo
from elmokit.formats.opening import ElmoKeywords, ElmoOpening, LanguageModelOpening
from elmokit.lm.language_model import LanguageModel


@dataclass(frozen=True)
class Settings:
    rate: float | None = setting(0.5, "How fast.")
    kind: Literal["a", "b"] = setting("a", "Which one.")
    layers: tuple[int, ...] = setting((), "Which layers.")
    is_quiet: bool = setting(False, "Say less.")
    is_loud: bool = setting(True, "Say more.", off_flag="--calm")
    texts: tuple[str, ...] = setting((), "What to read.", is_path=True)
    internal: int = 3


@with_settings(lambda: setting_options(Settings, {"rate": 0.25}))
def train(text: str, *, out: Annotated[str | None, Flag("Where to.")] = None, **settings: Any) -> None:
    """Train on TEXT.

    Args:
        rate, kind:
    """
    click.echo({name: value for name, value in settings.items() if value not in (None, ())})


@dataclass(frozen=True)
class Shared:
    json: Annotated[bool, Flag("Print JSON.")] = False
    seed: Annotated[int, Flag("First random number.")] = 0


def measure(
    files: tuple[Path, ...],
    out: Path,
    *,
    kind: Literal["fast", "exact"] = "fast",
    layers: tuple[int, ...] | None = None,
    text: tuple[str, ...] = (),
    model: Annotated[str | None, Flag("The model.")] = None,
    all_: bool = False,
    check: bool = True,
    number: Annotated[int | None, Flag(names=("-n",))] = None,
    ratio: float,
    shared: Shared,
) -> None:
    """Measure FILES.

    More about it.

    More options:
        kind: How fast it is,
            or how exact.
        model, seed:

    Args:
        layers: Which layers.  [default: all]
        text (FILE): Other text.
        all_: Everything.
        check: Look first.
        number: How many.
        ratio: Of what.

    Examples:
        elmokit measure a b
        elmokit measure a b --all
    """
    click.echo((files, out, kind, layers, text, model, all_, check, number, ratio, shared))


def run(function: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command_of(function, "measure"), arguments)


def shown(function: Any) -> list[str]:
    return [" ".join(line.split()) for line in run(function, "--help-all").output.splitlines() if line.strip()]


def test_signature_and_docstring_make_flags_and_help() -> None:
    assert shown(measure) == [
        "Usage: measure [OPTIONS] FILES... OUT",
        "Measure FILES.",
        "More about it.",
        "Options:",
        "--layers N[,N...] Which layers. [default: all]",
        "--text FILE Other text.",
        "--all Everything.",
        "--check / --no-check Look first. [default: check]",
        "-n, --number INTEGER How many.",
        "--ratio FLOAT Of what. [required]",
        "--json Print JSON.",
        "-q, --quiet Print results, warnings and errors only.",
        "--help Show this message and exit.",
        "--help-all Show all 10 options.",
        "More options:",
        "--kind [fast|exact] How fast it is, or how exact. [default: fast]",
        "--model TEXT The model.",
        "--seed INTEGER First random number. [default: 0]",
        "Examples:",
        "elmokit measure a b",
        "elmokit measure a b --all",
    ]


def test_values_have_the_types_of_the_signature() -> None:
    files = (Path("a"), Path("b"))
    few = run(measure, "a", "b", "c", "--ratio", "1").output
    assert few == f"{(files, Path('c'), 'fast', None, (), None, False, True, None, 1.0, Shared())}\n"
    flags = ["--kind", "exact", "--layers", "0,2", "--text", "x", "--text", "y", "--model", "m", "--all", "--no-check"]
    many = run(measure, "a", "b", "c", "--ratio", "1", *flags, "-n", "3", "--json", "--seed", "5").output
    expected = (files, Path("c"), "exact", (0, 2), ("x", "y"), "m", True, False, 3, 1.0, Shared(True, 5))
    assert many == f"{expected}\n"


def test_flags_can_have_underscores() -> None:
    @with_underscores
    def dump(*, save_dir: Path) -> None:
        """Dump weights."""
        click.echo(save_dir)

    assert [run(dump, flag, "run").output for flag in ("--save_dir", "--save-dir")] == ["run\n", "run\n"]


def test_only_settings_that_were_given_are_returned() -> None:
    given = ["text", "--rate", "2", "--layers", "0,2", "--no-is-quiet"]
    assert run(train, *given).output == "{'rate': 2.0, 'layers': (0, 2), 'is_quiet': False}\n"
    # Large numbers can be written with a unit.
    assert "'layers': (2000, 1000000, 3)" in run(train, "text", "--layers", "2k,1M,3").output
    assert run(train, "text").output == "{}\n"
    assert run(train, "text", "--calm").output == "{'is_loud': False}\n"
    repeated = run(train, "text", "--texts", "a", "--texts", "b").output
    assert repeated == f"{{'texts': {(Path('a'), Path('b'))}}}\n"


@dataclass(frozen=True)
class Opening:
    kind: Literal["a", "b"] = setting("a", "Which one.")
    device: str | None = setting(None, "Where to compute.  [default: the CPU]")


def show(*, layers: tuple[int, ...] | None = None, opening: Opening) -> None:
    """Show what a command passes on.

    Args:
        layers: The layers.
        device:
    """
    click.echo((layers, opening))


def test_a_dataclass_stands_for_its_fields_whose_settings_have_their_help() -> None:
    assert shown(show)[2:] == [
        "Options:",
        "--layers N[,N...] The layers.",
        "--device TEXT Where to compute. [default: the CPU]",
        "-q, --quiet Print results, warnings and errors only.",
        "--help Show this message and exit.",
        "--help-all Show all 3 options.",
        "More options:",
        "--kind [a|b] Which one. [default: a]",
    ]
    assert run(show, "--kind", "b", "--layers", "0,2").output == f"{((0, 2), Opening('b'))}\n"
    assert "'c' is not one of 'a', 'b'" in run(show, "--kind", "c").output


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (ElmoOpening, Elmo.from_pretrained),
        (LanguageModelOpening, LanguageModel.from_pretrained),
        (Running, train_bilm),
        (Running, distill),
        (Running, finetune),
    ],
)
def test_options_that_are_passed_on_have_the_names_and_defaults_of_the_function(
    options: type, function: Callable[..., object]
) -> None:
    parameters = inspect.signature(function).parameters
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    assert defaults == {name: parameters[name].default for name in defaults}


def test_keywords_that_are_passed_on_are_those_of_the_function() -> None:
    names = set(inspect.signature(Elmo.from_pretrained).parameters)
    assert names == {"path_or_name", *ElmoKeywords.__annotations__}

"""``elmokit perplexity``: how well a model predicts a text."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import options_option, overwrite_option
from elmokit.errors import ConfigError
from elmokit.io.atomic import atomic_write
from elmokit.io.progress import ProgressBar
from elmokit.io.text_files import STDIN

if TYPE_CHECKING:
    from elmokit.scoring.bilm_tf import BilmTfPerplexity
    from elmokit.scoring.perplexity import Perplexity
    from elmokit.scoring.surprisal import Surprisal

DIRECTIONS = ("forward", "backward")


@click.command(short_help="How well a model predicts a text.")
@click.argument("model")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@options_option
@click.option("--vocabulary", help="The words of the softmax, if they do not stand beside the weights.")
@click.option(
    "--state",
    type=click.Choice(["warm", "zero", "stateful"]),
    help="What each sentence starts from; carry: from the end of the sentence before, one after another (slow).  "
    "[default: warm]",
)
@click.option("--batch-tokens", default=2048, show_default=True, help="Positions per batch; the numbers stay the same.")
@click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
@click.option(
    "--per-token",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a table: sentence, token, forward nats, backward nats (TSV; - for standard output).",
)
@click.option("--as-bilm-tf", type=int, metavar="B", help="The number that bilm-tf's run_test gives with batch size B.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@overwrite_option
def perplexity(
    model: str,
    texts: tuple[Path, ...],
    options: str | None,
    vocabulary: str | None,
    state: str | None,
    batch_tokens: int,
    device: str | None,
    per_token: Path | None,
    as_bilm_tf: int | None,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Perplexity of MODEL on TEXT: full softmax, every token and sentence end counted once, each direction apart.

    TEXT is tokenised, one sentence per line: files (.txt, .gz, .xz, .zst), folders, quoted patterns, or - for standard
    input; several are scored as one text.
    """
    from elmokit.initial_state import warm_start
    from elmokit.io.atomic import check_output_path
    from elmokit.io.text_files import find_text_files, read_sentences
    from elmokit.nn.devices import usable_device
    from elmokit.scoring.bilm_tf import perplexity_as_bilm_tf, read_as_bilm_tf
    from elmokit.scoring.perplexity import perplexity as score
    from elmokit.scoring.perplexity import spelling_of
    from elmokit.scoring.surprisal import predicting
    from elmokit.weights.open import open_model

    if batch_tokens < 1:
        raise ConfigError(f"--batch-tokens is {batch_tokens}; at least 1.")
    if as_bilm_tf is not None and (per_token is not None or state is not None):
        raise ConfigError("--as-bilm-tf gives one number, state carried from zero: leave out --per-token and --state.")
    if str(per_token) == STDIN and as_json:
        raise ConfigError("--per-token - and --json both write to standard output. Write the table to a file.")
    if per_token is not None:
        check_output_path(per_token, overwrite)
    found = find_text_files(texts)
    opened = open_model(model, options=options, vocabulary=vocabulary)
    predicting(opened)
    if device is not None:
        where = usable_device(device)
        for part in (opened.bilm, opened.softmax):
            assert part is not None
            part.to(where)
    # A pipe can be read only once; any other text is read through first: it is all there, and this is how much it is.
    is_known = all(path.is_file() for path in found)
    total = sum(len(tokens) + 1 for path in found for tokens in read_sentences(path)) if is_known else None
    with ProgressBar("tokens", total) as progress:
        if as_bilm_tf is not None:
            read = _told(read_as_bilm_tf(found), progress)
            theirs = perplexity_as_bilm_tf(opened, read, as_bilm_tf)
        else:
            start = opened.bilm.zero_state(1)
            if state in (None, "warm"):
                start = warm_start(opened).to(start.hidden.device, start.hidden.dtype)
            with _table(per_token, overwrite) as write:

                def each(sentence: Surprisal) -> None:
                    write(sentence)
                    progress.update(len(sentence.tokens) - 1)

                ours = score(
                    opened,
                    chain.from_iterable(map(read_sentences, found)),
                    start,
                    n_carried_rows=1 if state == "stateful" else None,
                    batch_tokens=batch_tokens,
                    spelling=spelling_of(opened),
                    each=each,
                )
    described = {"model": model, "texts": [str(path) for path in found]}
    if as_bilm_tf is not None:
        facts = {**described, "as_bilm_tf": as_bilm_tf, **_facts_of_theirs(theirs)}
        lines = _lines_of_theirs(theirs, as_bilm_tf)
    else:
        facts = {**described, "state": state or "warm", **_facts(ours)}
        lines = _lines(ours)
    text = json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(lines)
    click.echo(text, err=str(per_token) == STDIN)


def _facts(result: Perplexity) -> dict[str, Any]:
    return {
        "n_sentences": result.n_sentences,
        "n_tokens": result.n_tokens,
        "n_predictions": result.n_predictions,
        "n_characters": result.n_characters,
        "unknown_share": result.unknown_share,
        "mean_nats": _named(result.mean_nats),
        "perplexity": {
            **_named(result.per_direction),
            "geometric_mean": result.mean,
            "arithmetic_mean": result.arithmetic_mean,
        },
        "bits_per_character": _named(result.bits_per_character),
        "bits_per_character_unspelled": _named(result.bits_per_character_unspelled),
    }


def _lines(result: Perplexity) -> Iterator[str]:
    yield f"sentences           {result.n_sentences:,}"
    yield f"tokens              {result.n_tokens:,}, {result.unknown_share:.2%} of them unknown words"
    yield f"predictions         {result.n_predictions:,} each direction: every token and one sentence end"
    for name, value in _named(result.per_direction).items():
        yield f"{name:<19} {value:.4f}"
    if len(result.mean_nats) > 1:
        yield f"geometric mean      {result.mean:.4f}"
        yield f"arithmetic mean     {result.arithmetic_mean:.4f}"
    bits, bound = (
        " / ".join(f"{value:.4f}" for value in values)
        for values in (result.bits_per_character, result.bits_per_character_unspelled)
    )
    yield f"bits per character  {bits}" + (
        f", unknown words spelled out; at least {bound}" if result.unknown_share else ""
    )


def _facts_of_theirs(result: BilmTfPerplexity) -> dict[str, Any]:
    return {
        "n_predictions": result.n_predictions,
        "n_lost": result.n_lost,
        "perplexity": {**_named(result.per_direction), "as_bilm_tf": result.mean},
    }


def _lines_of_theirs(result: BilmTfPerplexity, n_rows: int) -> Iterator[str]:
    yield f"as bilm-tf says with batch size {n_rows}: {result.mean:.5f}"
    for name, value in _named(result.per_direction).items():
        yield f"{name:<19} {value:.5f}"
    n_all = result.n_predictions + result.n_lost
    lost = f"; it loses the other {result.n_lost:,}" if result.n_lost else ""
    yield f"predictions         {result.n_predictions:,} of {n_all:,} each direction{lost}"


def _named(values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(DIRECTIONS, values, strict=False))


def _told(sentences: Iterator[list[str]], progress: ProgressBar) -> Iterator[list[str]]:
    for sentence in sentences:
        progress.update(len(sentence) + 1)
        yield sentence


@contextlib.contextmanager
def _table(path: Path | None, overwrite: bool) -> Iterator[Callable[[Surprisal], None]]:
    """What takes each sentence's surprisal: a table, whole or not at all, or nothing."""
    if path is None:
        yield lambda sentence: None
    elif str(path) == STDIN:
        yield _rows_to(partial(click.echo, nl=False))
    else:
        with atomic_write(path, overwrite) as beside, beside.open("w", encoding="utf-8", newline="\n") as file:
            yield _rows_to(file.write)


def _rows_to(write: Callable[[str], object]) -> Callable[[Surprisal], None]:
    """One line a token, boundaries included; an empty field where a direction predicts nothing."""
    numbers = count(1)
    write("sentence\ttoken\tforward_nats\tbackward_nats\n")

    def rows(sentence: Surprisal) -> None:
        number = next(numbers)
        columns = [["" if math.isnan(nats) else f"{nats:.6f}" for nats in row] for row in sentence.nats.tolist()]
        columns += [[""] * len(sentence.tokens)] * (len(DIRECTIONS) - len(columns))
        cells = zip(sentence.tokens, *columns, strict=True)
        write("".join(f"{number}\t{token}\t{forward}\t{backward}\n" for token, forward, backward in cells))

    return rows

"""``elmokit evaluate perplexity``: compute the perplexity and surprisal of a text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import (
    device_option,
    echo_json,
    json_option,
    language_option,
    model_option,
    options_option,
    overwrite_option,
    precision_option,
    raw_language,
    raw_option,
)
from elmokit.cli.options import GroupedCommand, OutputPath
from elmokit.errors import ConfigError
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.progress import ProgressBar
from elmokit.storage.text_files import STDIN

if TYPE_CHECKING:
    from elmokit.lm.bilm_tf import BilmTfPerplexity
    from elmokit.lm.perplexity import Perplexity
    from elmokit.lm.surprisal import Surprisal


@click.command(cls=GroupedCommand, short_help="Compute the perplexity of a text, and each token's surprisal.")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@model_option
@options_option
@raw_option
@language_option
@click.option("--vocabulary", help="File with the words of the softmax, if it is not next to the weights.")
@click.option(
    "--state",
    type=click.Choice(["warm", "zero", "stateful"]),
    help="State from which each sentence is read: the model's fixed initial state, zero, or the state after the "
    "sentence before (slow).  [default: warm]",
)
@click.option("--batch-tokens", default=2048, show_default=True, help="Positions per batch; does not change results.")
@device_option
@precision_option
@click.option(
    "--per-token",
    type=OutputPath(allow_dash=True),
    metavar="FILE",
    help="Write a table (TSV; - for standard output) of sentence index, from 0, token, forward and backward nats.",
)
@click.option("--as-bilm-tf", type=int, metavar="B", help="Print what bilm-tf's run_test prints for batch size B.")
@json_option
@overwrite_option
def perplexity(
    texts: tuple[Path, ...],
    model: str | None,
    options: str | None,
    raw: bool,
    language: str | None,
    vocabulary: str | None,
    state: Any,
    batch_tokens: int,
    device: str | None,
    precision: Any,
    per_token: Path | None,
    as_bilm_tf: int | None,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Compute the perplexity of a model on TEXT.

    The full softmax is used, and every token and sentence end counts once, for each direction.

    TEXT is one or more files (.txt, .gz, .xz, .zst), directories or quoted patterns of text with one tokenized sentence
    per line, or - for standard input. Several are scored as one text. For other text, pass --raw.

    \b
    Examples:
      elmokit evaluate perplexity held-out.txt --model my-run
      elmokit evaluate perplexity essay.txt --raw --per-token surprisal.tsv
    """
    from elmokit.formats.folder import DEFAULT_MODEL
    from elmokit.lm.language_model import LanguageModel
    from elmokit.lm.perplexity import unknown_words_warning
    from elmokit.storage.text_files import find_text_files

    if batch_tokens < 1:
        raise ConfigError(f"--batch-tokens is {batch_tokens}; it must be at least 1.")
    if as_bilm_tf is not None and (per_token is not None or state is not None):
        raise ConfigError("--as-bilm-tf fixes the state and prints one number: leave out --per-token and --state.")
    if str(per_token) == STDIN and as_json:
        raise ConfigError("--per-token - and --json both write to standard output. Write the table to a file.")
    if as_bilm_tf is not None and raw:
        raise ConfigError("--as-bilm-tf reads text as bilm-tf does, which splits lines at spaces: leave out --raw.")
    language = raw_language(raw, language)
    if per_token is not None:
        check_output_path(per_token, overwrite)
    found = find_text_files(texts)
    language_model = LanguageModel.from_pretrained(
        model, options=options, vocabulary=vocabulary, device=device, precision=precision
    )
    facts: dict[str, Any] = {"model": model or DEFAULT_MODEL, "texts": [str(path) for path in found]}
    result: Perplexity | BilmTfPerplexity
    with ProgressBar("tokens") as progress:
        if as_bilm_tf is not None:
            result = language_model.bilm_tf_perplexity(found, as_bilm_tf, progress=progress)
        else:
            facts["state"] = state or "warm"
            with _table(per_token, overwrite) as write:
                result = language_model.perplexity(
                    found,
                    start=state,
                    batch_tokens=batch_tokens,
                    on_sentence=write,
                    progress=progress,
                    raw_language=language,
                )
    if as_json:
        echo_json(facts | result.to_dict())
    else:
        click.echo(result.to_text(), err=str(per_token) == STDIN)
    if warning := unknown_words_warning(result.unknown_ratio):
        click.echo(warning, err=True)


@contextlib.contextmanager
def _table(path: Path | None, overwrite: bool) -> Iterator[Callable[[Surprisal], object] | None]:
    """Yield a function that writes the surprisal of the next sentence, or None if there is nowhere to write it."""
    if path is None:
        yield None
    elif str(path) == STDIN:
        yield _rows_to(partial(click.echo, nl=False))
    else:
        with atomic_write(path, overwrite) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield _rows_to(file.write)


def _rows_to(write: Callable[[str], object]) -> Callable[[Surprisal], object]:
    from elmokit.lm.surprisal import TSV_HEADER

    numbers = count()  # from 0, as the rows of `elmokit embed`
    write(TSV_HEADER)
    return lambda sentence: write(sentence.to_tsv(next(numbers)))

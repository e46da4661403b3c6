"""``elmokit evaluate perplexity`` and ``elmokit surprisal``: how well a model predicts a text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import (
    Device,
    Json,
    Language,
    Model,
    ModelOptions,
    ModelPrecision,
    OutputPath,
    Overwrite,
    Raw,
    Start,
)
from elmokit.cli.running import check_apart, echo_json, print_note, raw_language
from elmokit.config import check_at_least
from elmokit.engine.precision import Precision
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.progress import ProgressBar
from elmokit.storage.text_files import STDIN, check_not_input

if TYPE_CHECKING:
    from elmokit.lm.bilm_tf_perplexity import BilmTfPerplexity
    from elmokit.lm.perplexity import Perplexity
    from elmokit.lm.surprisal import Surprisal

Vocabulary = Annotated[str | None, Flag("File with the words of the softmax, if it is not next to the weights.")]
SentenceStart = Annotated[
    Start | None,
    Flag(
        "State from which each sentence is read: the model's start state, zero, or the state after the "
        "sentence before (slow).  [default: warm]"
    ),
]


def surprisal(
    texts: tuple[Path, ...],
    *,
    model: Model = None,
    options: ModelOptions = None,
    raw: Raw = False,
    language: Language = None,
    vocabulary: Vocabulary = None,
    start: SentenceStart = None,
    out: Annotated[Path, OutputPath(allow_dash=True)] = Path(STDIN),
    device: Device = None,
    precision: Precision = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Compute how surprising each token of TEXTS is to a model.

    The table (TSV) has a row per token, sentence boundaries included: the index of the sentence, from 0; the token; its
    surprisal in nats given the tokens before it (forward) and after it (backward); unknown; spelling_nats; and the line
    of the file, from 1.

    A word that is not in the model's vocabulary (unknown: 1) gets the surprisal of <UNK>, which is low because <UNK>
    stands for all such words. Add spelling_nats, the price of its letters, to compare it with other words.

    TEXTS are files (.txt, .conllu, .gz, .xz, .zst), directories or quoted patterns of text with one tokenized sentence
    per line, or - for standard input. For other text, pass --raw.

    Args:
        out (FILE): Write the table here; - for standard output.
        precision: Lowest precision of the LSTM weights. Lower precision is faster, but less accurate for single words.

    Examples:
        elmokit surprisal held-out.txt --out surprisal.tsv
        echo "The cat sat on the mat." | elmokit surprisal - --raw
    """
    from elmokit.lm.language_model import LanguageModel
    from elmokit.storage.text_files import find_text_files

    language = raw_language(raw, language)
    paths = find_text_files(texts)
    _check_table_path(out, overwrite, paths)
    language_model = LanguageModel.from_pretrained(
        model, options=options, vocabulary=vocabulary, device=device, precision=precision
    )
    with ProgressBar("tokens") as progress, _table(out, overwrite) as write:
        result = language_model.perplexity(
            paths, start=start, on_sentence=write, progress=progress, raw_language=language
        )
    if result.n_unknown:
        click.echo(
            f"Unknown words, which are not in the model's vocabulary: {result.n_unknown:,} of {result.n_tokens:,}. "
            "Their surprisal is that of <UNK>; add spelling_nats to compare it with other words.",
            err=True,
        )


def perplexity(
    texts: tuple[Path, ...],
    *,
    model: Model = None,
    options: ModelOptions = None,
    raw: Raw = False,
    language: Language = None,
    vocabulary: Vocabulary = None,
    start: SentenceStart = None,
    batch_tokens: int = 2048,
    device: Device = None,
    precision: ModelPrecision = None,
    per_token: Annotated[Path | None, OutputPath(allow_dash=True)] = None,
    as_bilm_tf: int | None = None,
    json: Json = False,
    overwrite: Overwrite = False,
) -> None:
    """Compute the perplexity of a model on TEXTS.

    The full softmax is used, and every token and sentence end counts once, for each direction.

    TEXTS are files (.txt, .conllu, .gz, .xz, .zst), directories or quoted patterns of text with one tokenized sentence
    per line, or - for standard input. Several are scored as one text, each once. For other text, pass --raw.

    Args:
        batch_tokens: Positions per batch; does not change results.
        per_token (FILE): Write the table of elmokit surprisal (TSV; - for standard output).
        as_bilm_tf (B): Print what bilm-tf's run_test prints for batch size B.

    Examples:
        elmokit evaluate perplexity held-out.txt --model my-run
        elmokit evaluate perplexity essay.txt --raw --per-token surprisal.tsv
    """
    from elmokit.formats.folder import DEFAULT_MODEL
    from elmokit.lm.language_model import LanguageModel
    from elmokit.lm.perplexity import unknown_words_warning
    from elmokit.storage.text_files import find_text_files

    check_at_least("batch_tokens", batch_tokens, 1)
    check_at_least("as_bilm_tf", as_bilm_tf, 1, optional=True)
    # bilm-tf splits lines at spaces, carries its state, and prints one number.
    check_apart("--as-bilm-tf", as_bilm_tf, {"--per-token": per_token, "--start": start, "--raw": raw})
    check_apart("--per-token -", str(per_token) == STDIN, {"--json": json})  # both write to standard output
    language = raw_language(raw, language)
    paths = find_text_files(texts)
    _check_table_path(per_token, overwrite, paths)
    language_model = LanguageModel.from_pretrained(
        model, options=options, vocabulary=vocabulary, device=device, precision=precision
    )
    facts: dict[str, Any] = {"model": model or DEFAULT_MODEL, "texts": [str(path) for path in paths]}
    result: Perplexity | BilmTfPerplexity
    with ProgressBar("tokens") as progress:
        if as_bilm_tf is not None:
            result = language_model.bilm_tf_perplexity(paths, as_bilm_tf, progress=progress)
        else:
            facts["state"] = start or "warm"
            with _table(per_token, overwrite) as write:
                result = language_model.perplexity(
                    paths,
                    start=start,
                    batch_tokens=batch_tokens,
                    on_sentence=write,
                    progress=progress,
                    raw_language=language,
                )
    if json:
        echo_json(facts | result.to_dict())
    else:
        click.echo(result.to_text(), err=str(per_token) == STDIN)
    if warning := unknown_words_warning(result.unknown_ratio):
        click.echo(warning, err=True)


def _check_table_path(path: Path | None, overwrite: bool, texts: Sequence[Path]) -> None:
    if path is not None and str(path) != STDIN:
        check_output_path(path, overwrite)
        check_not_input(path, texts)


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
        print_note(f"wrote {path}")


def _rows_to(write: Callable[[str], object]) -> Callable[[Surprisal], object]:
    from elmokit.lm.surprisal import TSV_HEADER

    numbers = count()  # from 0, as the rows of `elmokit embed`

    def write_rows(sentence: Surprisal) -> None:
        number = next(numbers)
        if not number:  # not before it is known that there is a sentence
            write(TSV_HEADER)
        write(sentence.to_tsv(number))

    return write_rows

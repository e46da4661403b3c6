"""``elmokit vocab``: build or repair a vocabulary."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.common import overwrite_option
from elmokit.cli.options import GroupedCommand, OutputPath
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar


@click.command(cls=GroupedCommand)
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.argument("output", metavar="OUT", type=OutputPath())
@click.option("--max-words", type=int, help="Number of words, including <S>, </S> and <UNK>: the most frequent ones.")
@click.option("--min-count", type=int, default=1, show_default=True, help="Leave out words that occur less often.")
@click.option("--repair", is_flag=True, help="TEXT is a vocabulary file: repair it and list the changes.")
@overwrite_option
def vocab(
    texts: tuple[str, ...], output: Path, max_words: int | None, min_count: int, repair: bool, overwrite: bool
) -> None:
    """Build a vocabulary from tokenized text.

    TEXT is tokenized text, one sentence per line: files (.txt, .gz, .xz, .zst), directories, quoted patterns, or - for
    standard input. OUT gets one word per line: <S>, </S>, <UNK>, then words by descending frequency. Counts are
    written to OUT.counts.tsv (without the .txt of OUT).

    \b
    Examples:
      elmokit vocab corpus/ vocab.txt --max-words 30000
      elmokit vocab old-vocab.txt vocab.txt --repair
    """
    from elmokit.text.vocabulary_files import build_vocabulary, counts_path, repair_vocabulary

    if repair:
        if len(texts) != 1 or max_words is not None or min_count != 1:
            raise ConfigError("--repair takes one vocabulary file, an output and no limits: --repair OLD OUT")
        changes = repair_vocabulary(texts[0], output, overwrite)
        for line in changes or ("nothing to repair",):
            click.echo(line)
        if changes:
            click.echo(f"wrote {output}. Use it for a new model: the rows of a model trained with {texts[0]} differ.")
        return
    with ProgressBar("B") as progress:
        report = build_vocabulary(texts, output, max_words, min_count, overwrite, progress)
    if report.n_boundaries_in_text:
        click.echo(
            f"The text contains <S> or </S> {report.n_boundaries_in_text:,} times. Remove them: sentence boundaries "
            "are added when the text is read.",
            err=True,
        )
    click.echo(
        f"{report.n_sentences:,} sentences, {report.n_tokens:,} tokens, {report.n_types:,} types; "
        f"{report.unknown_ratio:.2%} of the tokens are outside the vocabulary of {report.n_words:,}"
    )
    click.echo(f"wrote {output} and {counts_path(output)}", err=True)

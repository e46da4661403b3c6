"""``elmokit vocab``: tokenised text to a vocabulary."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.common import n_bytes, overwrite_option
from elmokit.errors import ConfigError
from elmokit.io.progress import ProgressBar


@click.command(short_help="Tokenised text to a vocabulary.")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--max-words", type=int, help="Words in all, <S>, </S> and <UNK> included: the most frequent.")
@click.option("--min-count", type=int, default=1, show_default=True, help="Leave out rarer words.")
@click.option("--repair", is_flag=True, help="TEXT is a vocabulary file: make it sound, and say what was mended.")
@overwrite_option
def vocab(
    texts: tuple[Path, ...], output: Path, max_words: int | None, min_count: int, repair: bool, overwrite: bool
) -> None:
    """Count the words of TEXT and write them to OUT, one a line, with their counts beside (OUT.txt: OUT.counts.tsv).

    TEXT is tokenised, one sentence per line: files (.txt, .gz, .xz, .zst), folders, quoted patterns, or - for standard
    input. The words are <S>, </S>, <UNK>, then the others, the most frequent first.
    """
    from elmokit.io.text_files import find_text_files
    from elmokit.text.vocabulary_files import build_vocabulary, counts_path, repair_vocabulary

    if repair:
        if len(texts) != 1 or max_words is not None or min_count != 1:
            raise ConfigError("--repair takes one vocabulary file and an output, and no limits: --repair OLD OUT")
        mended = repair_vocabulary(texts[0], output, overwrite)
        for line in mended or ("nothing to mend",):
            click.echo(line)
        if mended:
            click.echo(f"wrote {output}. It is for a new model: the rows of one trained with {texts[0]} are the old.")
        return
    found = find_text_files(texts)
    if output.resolve() in {path.resolve() for path in found}:
        raise ConfigError(f"{output} is to be written and is among the texts to be counted. Write it elsewhere.")
    with ProgressBar("B", n_bytes(found)) as progress:
        report = build_vocabulary(found, output, max_words, min_count, overwrite, progress.update)
    if report.n_boundaries_in_text:
        click.echo(
            f"The text holds <S> or </S> {report.n_boundaries_in_text:,} times. Sentence boundaries are added when it "
            "is read: take them out of the text.",
            err=True,
        )
    click.echo(
        f"{report.n_sentences:,} sentences, {report.n_tokens:,} tokens, {report.n_types:,} types; "
        f"{report.unknown_share:.2%} of the tokens are outside the vocabulary of {report.n_words:,}"
    )
    click.echo(f"wrote {output} and {counts_path(output)}", err=True)

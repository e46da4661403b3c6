"""``elmokit vocab``: build or repair a vocabulary."""

from __future__ import annotations

import click

from elmokit.cli.parameters import Output, Overwrite
from elmokit.cli.running import check_needed, print_note
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar, count_of


def vocab(
    texts: tuple[str, ...],
    out: Output,
    *,
    max_words: int | None = None,
    min_count: int = 1,
    repair: bool = False,
    text: tuple[str, ...] = (),
    overwrite: Overwrite = False,
) -> None:
    """Build a vocabulary from tokenized text.

    TEXTS are tokenized, one sentence per line: files (.txt, .gz, .xz, .zst), directories, quoted patterns, or - for
    standard input. OUT gets one word per line: <S>, </S>, <UNK>, then words by descending frequency. Counts are
    written to OUT.counts.tsv (without the .txt of OUT).

    Args:
        max_words: Number of words, including <S>, </S> and <UNK>: the most frequent ones.
        min_count: Leave out words that occur less often.
        repair: TEXTS is a vocabulary file: repair it and list the changes.
        text: With --repair: tokenized text, as TEXTS; sort the words by their frequency in it. Repeatable.

    Examples:
        elmokit vocab corpus/ vocab.txt --max-words 30000
        elmokit vocab old-vocab.txt vocab.txt --repair
        elmokit vocab old-vocab.txt vocab.txt --repair --text corpus/
    """
    from elmokit.text.vocabulary_files import build_vocabulary, counts_path, repair_vocabulary

    if repair:
        if len(texts) != 1 or max_words is not None or min_count != 1:
            raise ConfigError("--repair takes one vocabulary file and an output, without --max-words and --min-count.")
        with ProgressBar("B") as progress:
            changes = repair_vocabulary(texts[0], out, overwrite, text, progress)
        for line in changes or ("nothing to repair",):
            click.echo(line)
        if not changes:
            print_note(f"wrote {out}, with the same words")
        else:
            click.echo(f"wrote {out}. Use it for a new model: the rows of a model trained with {texts[0]} differ.")
        if not text:
            print_note("The order of the words was not checked. To sort them by their frequency in a text: --text TEXT")
        return
    check_needed("--text", text, "--repair", repair)
    with ProgressBar("B") as progress:
        report = build_vocabulary(texts, out, max_words, min_count, overwrite, progress)
    if report.n_boundaries_in_text:
        click.echo(
            f"The text contains <S> or </S> {count_of(report.n_boundaries_in_text, 'time')}. Remove them: "
            "sentence boundaries "
            "are added when the text is read.",
            err=True,
        )
    if words := report.unwritable:
        click.echo(
            f"Left out {count_of(len(words), 'word')} with white space at the beginning or end, such as {words[0]!r}, "
            "which a vocabulary file cannot hold.",
            err=True,
        )
    click.echo(
        f"{count_of(report.n_sentences, 'sentence')}, {count_of(report.n_tokens, 'token')}, "
        f"{count_of(report.n_types, 'type')}; "
        f"{report.unknown_ratio:.2%} of the tokens are outside the vocabulary of {report.n_words:,}"
    )
    print_note(f"wrote {out} and {counts_path(out)}")

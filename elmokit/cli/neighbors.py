"""``elmokit neighbors``: find the most similar word occurrences in a corpus."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.common import (
    device_option,
    echo_json,
    json_option,
    language_option,
    model_option,
    options_option,
    raw_language,
    raw_option,
    resumable_command,
    this_command,
)
from elmokit.cli.options import CommandGroup, GroupedOption, OutputPath, layer_numbers
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar


@click.group(cls=CommandGroup)
def neighbors() -> None:
    """Find the most similar word occurrences in a corpus.

    Run `elmokit neighbors index` once per corpus, then `elmokit neighbors find`.

    \b
    Examples:
      elmokit neighbors index corpus/ my-index
      elmokit neighbors find my-index bank "The bank raised its rate ."
    """


@neighbors.command()
@click.argument("corpus", metavar="CORPUS...", nargs=-1, required=True)
@click.argument("index", metavar="INDEX", type=OutputPath())
@model_option
@options_option
@raw_option
@language_option
@device_option
def index(
    corpus: tuple[str, ...],
    index: Path,
    model: str | None,
    options: str | None,
    raw: bool,
    language: str | None,
    device: str | None,
) -> None:
    """Index a corpus.

    The vectors of every word of CORPUS are written to the directory INDEX in float16: 2 bytes per word, dimension and
    layer above 0. If the command is interrupted, run it again to resume.

    CORPUS is text with one sentence per line, tokens separated by spaces: files, directories of .txt files, or glob
    patterns. Files named .conllu and .data.xml are read too, and all can be compressed (.gz, .xz, .zst).

    \b
    Examples:
      elmokit neighbors index corpus/ my-index
      elmokit neighbors index reviews.txt.gz my-index --raw --model original
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.occurrences import build_index
    from elmokit.evaluation.probe_corpus import read_corpus_files
    from elmokit.storage.text_files import find_text_files
    from elmokit.text.tokenize import text_splitter

    paths = find_text_files(corpus, reread=True)
    language = raw_language(raw, language)
    split = None if language is None else text_splitter(language)
    elmo = Elmo.from_pretrained(model, options=options, device=device)
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # the index can be searched from another directory
    with resumable_command(this_command), ProgressBar("words") as progress:
        built = build_index(elmo, lambda: read_corpus_files(paths, split=split), index, model, progress)
    click.echo(
        f"{index}: {built.n_sentences:,} sentences, {built.n_tokens:,} tokens, {len(built.types):,} distinct words",
        err=True,
    )


@neighbors.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("word")
@click.argument("sentence")
@click.option(
    "--model",
    cls=GroupedOption,
    group="Model",
    help="The model that the index was built with.  [default: its name when the index was built]",
)
@options_option
@click.option(
    "--occurrence", default=1, show_default=True, help="Which occurrence of WORD in SENTENCE to use, counted from 1."
)
@click.option("--layers", metavar="N[,N...]", help="Layers, from 1.  [default: all]")
@click.option("--number", "-n", default=5, show_default=True, help="Number of neighbors per layer.")
@click.option(
    "--among",
    type=click.Choice(["any", "same", "other"]),
    default="any",
    show_default=True,
    help="Search occurrences of any word, of WORD only, or of other words only.",
)
@click.option("--min-count", default=1, show_default=True, help="Minimum corpus count of the context-free neighbors.")
@click.option("--tokenize", is_flag=True, help="SENTENCE is raw text: split it into Penn Treebank tokens.")
@json_option
@device_option
def find(
    index: Path,
    word: str,
    sentence: str,
    model: str | None,
    options: str | None,
    occurrence: int,
    layers: str | None,
    number: int,
    among: str,
    min_count: int,
    tokenize: bool,
    as_json: bool,
    device: str | None,
) -> None:
    """Find the occurrences in INDEX that are most similar to WORD in SENTENCE, by each layer.

    The words that are most similar without context are shown too, as in table 4 of Peters et al. 2018.

    \b
    Examples:
      elmokit neighbors find my-index bank "The bank raised its rate ."
      elmokit neighbors find my-index play "A play in three acts ." --layers 2 --among same -n 10
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.occurrences import OccurrenceIndex
    from elmokit.storage.text_files import split_tokens
    from elmokit.text.tokenize import treebank_tokenizer

    chosen = layer_numbers(layers)
    words = treebank_tokenizer()(sentence) if tokenize else split_tokens(sentence)
    tokens = [index for index, token in enumerate(words) if token == word]
    if not 1 <= occurrence <= len(tokens):
        raise ConfigError(
            f"{word!r} occurs {len(tokens)} times in {sentence!r} (tokens: {' | '.join(words)}), but --occurrence asks "
            f"for number {occurrence}. Give a token of the sentence."
        )
    opened = OccurrenceIndex(index)
    elmo = Elmo.from_pretrained(model or opened.settings["model_name"], options=options, device=device)
    found = opened.neighbors(elmo, words, tokens[occurrence - 1], chosen, number, among, min_count)  # type: ignore[arg-type]
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(found.to_text())

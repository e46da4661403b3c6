"""``elmokit neighbours``: which occurrences of a corpus a word in its sentence is like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import model_option, options_option
from elmokit.cli.probe import device_option, json_option, layer_numbers
from elmokit.errors import ConfigError
from elmokit.io.progress import ProgressBar

if TYPE_CHECKING:
    from elmokit.probes.occurrences import Neighbours


@click.group(short_help="Which occurrences of a corpus a word in its sentence is like.")
def neighbours() -> None:
    """Which occurrences of a corpus a word in its sentence is like.

    First `elmokit neighbours index`, once for a corpus; then `elmokit neighbours find`.
    """


@neighbours.command(short_help="Index a corpus, once.")
@click.argument("corpus", metavar="CORPUS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("index", metavar="INDEX", type=click.Path(path_type=Path))
@model_option
@options_option
@click.option(
    "--tokenize", is_flag=True, help="CORPUS is raw text: split each line in the manner of the Penn Treebank."
)
@device_option
def index(
    corpus: tuple[Path, ...],
    index: Path,
    model: str | None,
    options: str | None,
    tokenize: bool,
    device: str | None,
) -> None:
    """Write the vectors of every word of CORPUS to the folder INDEX, in float16.

    CORPUS is text, one sentence per line with tokens split at blanks: files, folders of .txt files, glob patterns;
    .conllu and .data.xml files are read too; .gz, .xz and .zst as they are. Takes 2 bytes for each layer above 0, word
    and dimension. A call that was killed goes on where it was when it is made again.
    """
    from elmokit.embedder import Elmo
    from elmokit.io.text_files import find_text_files, split_tokens
    from elmokit.probes.occurrences import build_index, read_sentences
    from elmokit.text.tokenize import treebank_tokenizer

    paths = find_text_files(corpus, reread=True)
    tokenizer = treebank_tokenizer() if tokenize else split_tokens
    elmo = Elmo.from_pretrained(model, options=options, device=device)
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # the index may be asked from another folder
    with ProgressBar("") as progress:
        built = build_index(elmo, lambda: read_sentences(paths, tokenizer), index, model, progress)
    click.echo(
        f"{index}: {built.n_sentences:,} sentences, {built.n_tokens:,} tokens, {len(built.types):,} distinct words",
        err=True,
    )


@neighbours.command(short_help="Ask an index about a word in a sentence.")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("word")
@click.argument("sentence")
@click.option("--model", help="The model that the index was made with.  [default: as it was named then]")
@options_option
@click.option("--occurrence", default=1, show_default=True, help="Which one, if WORD stands several times in SENTENCE.")
@click.option("--layers", metavar="N[,N...]", help="Which layers, from 1.  [default: all]")
@click.option("--number", "-n", default=5, show_default=True, help="How many neighbours.")
@click.option(
    "--among",
    type=click.Choice(["any", "same", "other"]),
    default="any",
    show_default=True,
    help="Look at occurrences of any word, of WORD only, or of other words only.",
)
@click.option("--min-count", default=1, show_default=True, help="Context-free neighbours stand so often in the corpus.")
@click.option("--tokenize", is_flag=True, help="SENTENCE is raw text: split it in the manner of the Penn Treebank.")
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
    """The occurrences in INDEX that are most like WORD in SENTENCE, by each layer.

    The words most like it without context stand beside them, as in table 4 of Peters et al. 2018.
    """
    from elmokit.embedder import Elmo
    from elmokit.io.text_files import split_tokens
    from elmokit.probes.occurrences import OccurrenceIndex
    from elmokit.text.tokenize import treebank_tokenizer

    chosen = layer_numbers(layers)
    words = treebank_tokenizer()(sentence) if tokenize else split_tokens(sentence)
    places = [place for place, token in enumerate(words) if token == word]
    if not 1 <= occurrence <= len(places):
        raise ConfigError(
            f"{word!r} stands {len(places)} times in {sentence!r} (tokens: {' | '.join(words)}); asked for number "
            f"{occurrence}. Give a token of the sentence."
        )
    opened = OccurrenceIndex(index)
    elmo = Elmo.from_pretrained(model or opened.about["model_name"], options=options, device=device)
    found = opened.neighbours(elmo, words, places[occurrence - 1], chosen, number, among, min_count)  # type: ignore[arg-type]
    click.echo(json.dumps(_facts(found), indent=2, ensure_ascii=False) if as_json else _table(found))


def _facts(found: Neighbours) -> dict[str, Any]:
    layers = {
        str(layer): [
            {"similarity": one.similarity, "sentence": one.sentence, "token": one.token, "words": one.words}
            for one in occurrences
        ]
        for layer, occurrences in found.layers.items()
    }
    similar = [{"similarity": one.similarity, "word": one.word, "count": one.count} for one in found.context_free]
    return {"words": found.words, "token": found.token, "context_free": similar, "layers": layers}


def _table(found: Neighbours) -> str:
    from elmokit.probes.neighbours import in_context

    shown = ", ".join(f"{one.word} {one.similarity:.2f}" for one in found.context_free) or "none"
    lines = [f"             {in_context(found.words, found.token)}", f"without context: {shown}"]
    for layer, occurrences in found.layers.items():
        lines += [
            f"layer {layer}  {one.similarity:.2f}  {in_context(one.words, one.token)}" for one in occurrences
        ] or [f"layer {layer}  none"]
    return "\n".join(lines)

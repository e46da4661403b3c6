"""Find the most similar word occurrences in a corpus.

Run `elmokit neighbors index` once per corpus, then `elmokit neighbors find`.

Examples:
    elmokit neighbors index corpus/ my-index
    elmokit neighbors find my-index bank "The bank raised its rate ."
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from elmokit.cli.command import MORE, Flag
from elmokit.cli.parameters import Device, Json, Model, ModelOptions, Output, TextOptions
from elmokit.cli.running import echo_json, print_note, resumable_command
from elmokit.config import did_you_mean
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressBar, count_of

COMMANDS = ("index", "find")


@dataclass(frozen=True)
class IndexModel:
    """The model that computes an index."""

    model: Model = None
    options: ModelOptions = None
    device: Device = None


def index(
    corpus: tuple[str, ...],
    index: Output,
    *,
    opening: IndexModel,
    reading: TextOptions,
    overwrite: Annotated[bool, Flag("Start over: replace an existing or partial index.")] = False,
) -> None:
    """Index a corpus.

    The vectors of all words in CORPUS are written to the directory INDEX as float16: 2 bytes per word, dimension and
    layer above 0. If the command is interrupted, run it again to resume.

    CORPUS is text with one sentence per line and spaces between tokens: files, directories or glob patterns. Files
    named .conllu, .conllup and .data.xml are read, too. All can be compressed (.gz, .xz, .zst).

    Examples:
        elmokit neighbors index corpus/ my-index
        elmokit neighbors index reviews.txt.gz my-index --raw --model original
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.occurrences import build_index
    from elmokit.evaluation.probe_corpus import find_corpus_files
    from elmokit.storage.atomic import check_has_name

    check_has_name(index)  # before a model is downloaded
    text = reading.text(find_corpus_files(corpus))
    elmo = Elmo.from_pretrained(opening.model, options=opening.options, device=opening.device)
    model = opening.model
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # so the index can be searched from another directory
    with resumable_command(), ProgressBar("words") as progress:
        occurrences = build_index(elmo, text, index, model, progress, overwrite=overwrite)
    print_note(
        f"{index}: {count_of(occurrences.n_sentences, 'sentence')}, {count_of(occurrences.n_tokens, 'token')}, "
        f"{count_of(len(occurrences.types), 'distinct word')}"
    )


@dataclass(frozen=True)
class Search:
    """How to search an index: arguments of ``OccurrenceIndex.neighbors``."""

    layers: tuple[int, ...] | None = None
    n_neighbors: Annotated[int, Flag(names=("-n",))] = 5
    among: Literal["any", "same", "other"] = "any"
    min_count: Annotated[int, Flag("Minimum corpus count of the context-free neighbors.", MORE)] = 1


def find(
    index: Path,
    word: str,
    sentence: str,
    *,
    opening: IndexModel,
    occurrence: int = 1,
    search: Search,
    tokenize: bool = False,
    json: Json = False,
) -> None:
    """Find the occurrences in INDEX that are most similar to WORD in SENTENCE, in each layer.

    The most similar words without context are also shown, as in table 4 of Peters et al. 2018.

    Args:
        model: The model that the index was built with.  [default: recorded in the index]
        occurrence: Which occurrence of WORD in SENTENCE to use, counted from 1.
        among: Search occurrences of any word, of the same word only, or of other words only.
        layers: Layers, from 1.  [default: all]
        n_neighbors: Number of neighbors per layer.
        tokenize: SENTENCE is raw text: split it into Penn Treebank tokens.

    Examples:
        elmokit neighbors find my-index bank "The bank raised its rate ."
        elmokit neighbors find my-index play "A play in three acts ." --layers 2 --among same -n 10
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.occurrences import OccurrenceIndex
    from elmokit.text.tokenize import get_tokenizer

    opened = OccurrenceIndex(index)
    words = get_tokenizer("treebank" if tokenize else "spaces")(sentence)
    tokens = [index for index, token in enumerate(words) if token == word]
    if not tokens:
        nearest = did_you_mean(word, words)
        raise ConfigError(f"{word!r} is not a token of the sentence, whose tokens are {' | '.join(words)}.{nearest}")
    if not 1 <= occurrence <= len(tokens):
        raise ConfigError(
            f"--occurrence is {occurrence}, but {word!r} occurs {count_of(len(tokens), 'time')} in {sentence!r}."
        )
    model = opening.model or opened.settings["model_name"]
    elmo = Elmo.from_pretrained(model, options=opening.options, device=opening.device)
    neighbors = opened.neighbors(elmo, words, tokens[occurrence - 1], **vars(search))
    if json:
        echo_json(neighbors.to_dict())
    else:
        click.echo(neighbors.to_text())

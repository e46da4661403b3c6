"""An index of every word occurrence of a corpus on disk, asked for the occurrences most like one in a new sentence.

Peters et al. 2018, table 4. The folder, written by ``build_index`` in bounded memory and read memory-mapped:

====================  =====================================================================================
``record.json``       the model, the text and its numbers, lengths of the files (``growing``)
``layer-K.f16``       K = 1, 2, ...: one vector a token, of length 1, ``(tokens, dim)``
``types.f16``         layer 0, which has no context: one vector a distinct word, of length 1, ``(types, dim)``
``types.jsonl``       the distinct words
``tokens.i32``        for each token its distinct word
``starts.i64``        for each sentence its first token
====================  =====================================================================================

A search looks at every vector, so it is exact to the precision of float16 (cosines to about 0.001).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, OutputError, TextError
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.probes.growing import (
    GrowingFolder,
    Progress,
    chunks,
    mapped,
    model_digest,
    no_progress,
    read_record,
    text_digest,
)
from elmokit.probes.sense_files import DATA, read_sense_xml
from elmokit.probes.tagged import read_conllu, unpacked_name

WHAT = "elmokit index of occurrences, version 1"
FLOAT16, INT32, INT64 = "<f2", "<i4", "<i8"
BLOCK_ROWS, COUNT_ROWS = 1 << 15, 1 << 22

Among = Literal["any", "same", "other"]
"""Which occurrences may be found: of any word, of the query's own word only, or of other words only."""


@dataclass(frozen=True)
class Occurrence:
    """A token in its sentence, and how like the query it is."""

    similarity: float
    """Cosine, from -1 to 1."""
    sentence: int
    token: int
    words: list[str]

    @property
    def word(self) -> str:
        """The token itself."""
        return self.words[self.token]


@dataclass(frozen=True)
class SimilarWord:
    """A distinct word of the corpus, by its vector without context."""

    similarity: float
    word: str
    count: int
    """How often it stands in the corpus."""


@dataclass(frozen=True)
class Neighbours:
    """What was found for one word in its sentence."""

    words: list[str]
    token: int
    context_free: list[SimilarWord]
    """Most like its layer 0, where a word has one vector whatever the sentence (the paper's GloVe column)."""
    layers: dict[int, list[Occurrence]]


def read_sentences(paths: Sequence[Path], tokenize: Callable[[str], list[str]] = split_tokens) -> Iterator[list[str]]:
    """Sentences that have words: of text, one a line; of ``.conllu`` and of ``.data.xml`` files.

    Raises:
        TextError: a file cannot be read.
    """
    for path in paths:
        name = unpacked_name(path)
        if name.endswith(".conllu"):
            yield from (sentence.words for sentence in read_conllu(path))
        elif name.endswith(DATA):
            yield from (sentence.words for sentence in read_sense_xml(path) if sentence.words)
        else:
            yield from filter(None, map(tokenize, read_lines(path)))


def build_index(
    elmo: Elmo,
    sentences: Callable[[], Iterator[list[str]]],
    path: str | Path,
    model_name: str | None = None,
    progress: Progress = no_progress,
) -> OccurrenceIndex:
    """Index a corpus: read twice, first to count it, in memory that grows with its distinct words only.

    A run that was killed goes on where it was, with the same result; a finished index is opened.

    Args:
        sentences: gives the corpus from its beginning, each time it is called.
        model_name: what to open the model by when the index is asked; None for the model inside the package.

    Raises:
        TextError: the corpus cannot be read, or has no words.
        OutputError: ``path`` holds something else, or cannot be written.
    """
    n_sentences = n_tokens = 0

    def counted() -> Iterator[list[str]]:
        nonlocal n_sentences, n_tokens
        for sentence in sentences():
            n_sentences, n_tokens = n_sentences + 1, n_tokens + len(sentence)
            yield sentence

    text = text_digest(counted())
    if not n_tokens:
        raise TextError("There is nothing to index: the corpus has no words.")
    about = {
        "what": WHAT,
        "model": model_digest(elmo),
        "model_name": model_name,
        "text": text,
        "n_sentences": n_sentences,
        "n_tokens": n_tokens,
        "n_layers": elmo.n_layers,
        "dim": elmo.output_dim,
    }
    with GrowingFolder(path, about) as folder:
        if not folder.finished:
            _fill(elmo, islice(sentences(), folder.done, None), folder, progress)
    return OccurrenceIndex(path)


def _fill(elmo: Elmo, sentences: Iterator[list[str]], folder: GrowingFolder, progress: Progress) -> None:
    types = {word: number for number, word in enumerate(_read_types(folder.path, folder.sizes))}
    n_tokens = folder.sizes.get("tokens.i32", 0) // np.dtype(INT32).itemsize
    n_done = folder.done
    progress("words indexed", n_tokens, folder.about["n_tokens"])
    for chunk in chunks(sentences, len):
        new: list[str] = []
        for words, array in zip(chunk, elmo.embed(chunk), strict=True):
            unit = _unit(array).astype(FLOAT16)
            for layer in range(1, elmo.n_layers):
                folder.append(f"layer-{layer}.f16", unit[layer])
            folder.append("starts.i64", np.array([n_tokens], dtype=INT64))
            for place, word in enumerate(words):
                if word not in types:
                    types[word] = len(types)
                    new.append(word)
                    folder.append("types.f16", unit[0, place])
            folder.append("tokens.i32", np.array([types[word] for word in words], dtype=INT32))
            n_tokens += len(words)
        lines = "".join(json.dumps(word) + "\n" for word in new)
        folder.append("types.jsonl", lines.encode("ascii"))
        n_done += len(chunk)
        folder.commit(n_done, finished=n_done == folder.about["n_sentences"])
        progress("words indexed", n_tokens, folder.about["n_tokens"])
    if not folder.finished:
        raise TextError("The corpus changed while it was read: it has fewer sentences now. Index it again.")


class OccurrenceIndex:
    """A finished index, memory-mapped.

    Raises:
        OutputError: there is none, it is unfinished, or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        record = read_record(self.path)
        self.about: dict[str, Any] = record["about"]
        if self.about.get("what") != WHAT:
            raise OutputError(f"{path} is no index that this elmokit reads. Make one with: elmokit neighbours index")
        if not record["finished"]:
            raise OutputError(f"{path} is unfinished. The same call that began it goes on.")
        sizes, dim = record["sizes"], self.about["dim"]
        self.layers = {
            layer: mapped(self.path, f"layer-{layer}.f16", FLOAT16, sizes, dim)
            for layer in range(1, self.about["n_layers"])
        }
        self.type_vectors = mapped(self.path, "types.f16", FLOAT16, sizes, dim)
        self.tokens = mapped(self.path, "tokens.i32", INT32, sizes)
        self.starts = mapped(self.path, "starts.i64", INT64, sizes)
        self.types = _read_types(self.path, sizes)
        if len(self.types) != len(self.type_vectors):
            raise OutputError(f"{path} is damaged: its parts do not fit each other. Delete it and make it again.")
        self.n_sentences, self.n_tokens = len(self.starts), len(self.tokens)

    def sentence(self, number: int) -> list[str]:
        """The words of a sentence."""
        stop = self.starts[number + 1] if number + 1 < self.n_sentences else self.n_tokens
        return [self.types[kind] for kind in self.tokens[self.starts[number] : stop]]

    def neighbours(
        self,
        elmo: Elmo,
        words: Sequence[str],
        token: int,
        layers: Sequence[int] | None = None,
        n_neighbours: int = 5,
        among: Among = "any",
        min_count: int = 1,
    ) -> Neighbours:
        """The occurrences most like one word of a sentence, by each layer; and the words most like it without context.

        Occurrences in the very sentence that is asked with are left out, and of equal sentences one is shown.

        Args:
            elmo: the model that the index was made with.
            token: the word's place in ``words``, from 0.
            layers: from 1; None for all.
            min_count: context-free neighbours stand at least so often in the corpus.

        Raises:
            ConfigError: there is no such layer, or the index was made with another model.
        """
        if model_digest(elmo) != self.about["model"]:
            raise ConfigError(
                f"{self.path} was made with another model: {self.about['model_name'] or 'the one inside the package'}. "
                "Ask with that, or make an index with this one."
            )
        chosen = list(self.layers) if layers is None else list(layers)
        for layer in chosen:
            if layer not in self.layers:
                raise ConfigError(
                    f"The index has no layer {layer!r}: it has 1 to {len(self.layers)}. Layer 0 knows no context; its "
                    "neighbours are shown as context-free."
                )
        if n_neighbours < 1:
            raise ConfigError(f"{n_neighbours} neighbours were asked for; ask for at least 1.")
        (array,) = elmo.embed([words])
        query = _unit(array[:, token])
        return Neighbours(
            list(words),
            token,
            self.similar_words(query[0], words[token], n_neighbours, min_count),
            {layer: self._nearest(query[layer], layer, list(words), token, n_neighbours, among) for layer in chosen},
        )

    def similar_words(
        self, vector: NDArray[np.float32], word: str, n_neighbours: int = 5, min_count: int = 1
    ) -> list[SimilarWord]:
        """Other words of the corpus whose context-free vectors are most like a vector of length 1."""
        counts = np.zeros(len(self.types), dtype=np.int64)
        for start in range(0, self.n_tokens, COUNT_ROWS):
            counts += np.bincount(self.tokens[start : start + COUNT_ROWS], minlength=len(self.types))
        cosines = np.concatenate([rows @ vector for _, rows in _blocks(self.type_vectors)])
        order = np.argsort(-cosines, kind="stable")
        found = (kind for kind in order if self.types[kind] != word and counts[kind] >= min_count)
        return [SimilarWord(float(cosines[k]), self.types[k], int(counts[k])) for k in islice(found, n_neighbours)]

    def _nearest(
        self, vector: NDArray[np.float32], layer: int, words: list[str], token: int, n_neighbours: int, among: Among
    ) -> list[Occurrence]:
        own = self.types.index(words[token]) if words[token] in self.types else -1
        best: list[Occurrence] = []
        for start, rows in _blocks(self.layers[layer]):
            cosines = rows @ vector
            if among != "any":
                is_own = self.tokens[start : start + len(rows)] == own
                cosines = np.where(is_own == (among == "same"), cosines, -np.inf)
            floor = best[-1].similarity if len(best) == n_neighbours else -np.inf
            here = np.flatnonzero(cosines > floor)
            here = here[np.argsort(-cosines[here], kind="stable")]
            best = self._merged(best, ((float(cosines[row]), start + int(row)) for row in here), words, n_neighbours)
        return best

    def _merged(
        self, best: list[Occurrence], more: Iterator[tuple[float, int]], words: list[str], n_neighbours: int
    ) -> list[Occurrence]:
        """The best of both, falling; of one place in equal sentences the first."""
        seen = {(tuple(one.words), one.token) for one in best}
        added = 0
        for similarity, place in more:
            number = int(np.searchsorted(self.starts, place, side="right")) - 1
            sentence = self.sentence(number)
            key = (tuple(sentence), place - int(self.starts[number]))
            if sentence == words or key in seen:
                continue
            seen.add(key)
            best = [*best, Occurrence(similarity, number, key[1], sentence)]
            added += 1
            if added == n_neighbours:
                break
        return sorted(best, key=lambda one: -one.similarity)[:n_neighbours]


def _read_types(path: Path, sizes: dict[str, int]) -> list[str]:
    size = sizes.get("types.jsonl", 0)
    if not size:
        return []
    try:
        with (path / "types.jsonl").open("rb") as file:
            return [json.loads(line) for line in file.read(size).splitlines()]
    except (OSError, ValueError) as error:
        raise OutputError(
            f"{path / 'types.jsonl'} cannot be read ({error}). Delete the index and make it again."
        ) from None


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms: NDArray[np.float32] = np.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    norms[norms == 0] = 1
    return vectors / norms


def _blocks(rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Where each block begins, and the block in float32."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield start, np.asarray(rows[start : start + BLOCK_ROWS], dtype=np.float32)

"""An index on disk of every word occurrence of a corpus, for finding the occurrences most similar to a given one.

This reproduces table 4 of Peters et al. 2018 for corpora of any size. The index is a workspace. It is written in
bounded memory and memory-mapped for searching:

====================  =====================================================================================
``journal.json``      the model, the text and its size, and the lengths of the files (see ``storage.workspace``)
``layer-K.f16``       K = 1, 2, ...: the normalized vector of each token, ``(tokens, dim)``
``types.f16``         layer 0, which is context-free: the normalized vector of each distinct word, ``(types, dim)``
``types.jsonl``       the distinct words
``tokens.i32``        for each token the number of its distinct word
``starts.i64``        for each sentence its first token
====================  =====================================================================================

A search compares all vectors, so it is exact to the precision of float16 (cosines to about 0.001).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least, check_choice, token_index
from elmokit.embedding.elmo import Elmo, check_elmo
from elmokit.engine.layer_selection import plain_layers
from elmokit.engine.state import unit_vectors
from elmokit.errors import ConfigError, OutputError, TextError
from elmokit.evaluation.neighbors import Neighbors, Occurrence, SimilarWord
from elmokit.evaluation.probe_corpus import model_digest, model_settings, read_chunks, read_corpus_files
from elmokit.storage.atomic import check_has_name
from elmokit.storage.checksums import sentences_digest
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.workspace import Committed, Workspace, check_folder, read_workspace
from elmokit.text.batching import check_sentence
from elmokit.text.marks import PLAIN
from elmokit.text.text import Text
from elmokit.version import __version__

KIND = "elmokit index of occurrences, version 1"
FLOAT16, INT32, INT64 = "<f2", "<i4", "<i8"
BLOCK_ROWS, COUNT_ROWS = 1 << 15, 1 << 22

Among = Literal["any", "same", "other"]
"""Which occurrences to search: of any word, of the query word only, or of other words only."""


def build_index(
    elmo: Elmo,
    corpus: Text | Callable[[], Iterator[list[str]]],
    path: str | Path,
    model_name: str | None = None,
    progress: ProgressCallback | None = None,
    *,
    overwrite: bool = False,
) -> OccurrenceIndex:
    """Index a corpus.

    The corpus is read twice, the first time to count it. Memory grows only with the number of distinct words. If the
    process is killed, call it again with the same arguments to resume; the result is the same. A finished index is
    opened.

    Args:
        elmo: The model.
        corpus: A text; or a function that returns an iterator over the sentences each time it is called.
        path: Directory of the index.
        model_name: How to open the model when the index is searched; None for the included model.
        progress: Called with the number of words indexed.
        overwrite: Start over: replace an existing or partial index.

    Raises:
        ConfigError: ``elmo`` is not an :class:`Elmo`.
        TextError: The corpus cannot be read or has no words.
        OutputError: ``path`` has no name, contains something else or cannot be written.

    Example:
        >>> index = build_index(elmo, Text("corpus.txt"), "index")
        >>> print(index.neighbors(elmo, ["a", "river", "bank"], token=2).to_text())
    """
    check_elmo(elmo)
    check_has_name(path)
    check_folder(Path(path), overwrite=overwrite)
    read = partial(read_corpus_files, corpus) if isinstance(corpus, Text) else corpus
    counted = _Counted(read())
    digest = sentences_digest(counted)
    if not counted.n_tokens:
        raise TextError("The corpus has no words to index.")
    settings = {
        "what": KIND,
        **model_settings(elmo),
        "elmokit": __version__,
        "model_name": model_name,
        "text": digest,
        "n_sentences": counted.n_sentences,
        "n_tokens": counted.n_tokens,
        "n_layers": elmo.n_layers,
        "dim": elmo.output_dim,
    }
    with Workspace(path, settings, overwrite=overwrite) as workspace:
        if workspace.progress.get("n_done") != counted.n_sentences:
            _fill(elmo, read(), workspace, progress)
    return OccurrenceIndex(path)


class _Counted:
    """Counts sentences while they are read."""

    def __init__(self, sentences: Iterator[list[str]]) -> None:
        self._sentences = sentences
        self.n_sentences = self.n_tokens = 0

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self._sentences:
            self.n_sentences += 1
            self.n_tokens += len(sentence)
            yield sentence


def _fill(elmo: Elmo, sentences: Iterator[list[str]], store: Workspace, progress: ProgressCallback | None) -> None:
    settings = store.committed.settings
    types = {word: number for number, word in enumerate(_read_types(store.committed))}
    n_tokens = store.committed.sizes.get("tokens.i32", 0) // np.dtype(INT32).itemsize
    n_done = store.progress.get("n_done", 0)
    count = StageCounter(progress, "index", settings["n_tokens"], done=n_tokens)
    count(0)
    for chunk in read_chunks(islice(sentences, n_done, None)):
        n_types = len(types)
        for words, vectors in zip(chunk, elmo.embed(chunk, layers="all"), strict=True):
            unit = unit_vectors(vectors).astype(FLOAT16)
            for layer in range(1, elmo.n_layers):
                store.append(f"layer-{layer}.f16", unit[layer])
            store.append("starts.i64", np.array([n_tokens], dtype=INT64))
            for token, word in enumerate(words):
                if word not in types:
                    types[word] = len(types)
                    store.append("types.f16", unit[0, token])
            store.append("tokens.i32", np.array([types[word] for word in words], dtype=INT32))
            n_tokens += len(words)
        new = "".join(f"{json.dumps(word)}\n" for word in islice(types, n_types, None))
        store.append("types.jsonl", new.encode("ascii"))
        n_done += len(chunk)
        store.commit({"n_done": n_done})
        count(n_tokens - count.done)
    if n_done != settings["n_sentences"]:
        raise TextError("The corpus has fewer sentences than before: it changed while it was read.")


class OccurrenceIndex:
    """A finished index, memory-mapped.

    Raises:
        OutputError: There is no index at the path, or it is incomplete.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        rebuild = f"elmokit neighbors index CORPUS {path}"
        store = read_workspace(self.path, f"rebuild it with {rebuild} --overwrite")
        if store is None or store.settings.get("what") != KIND:
            raise OutputError(f"There is no index of this version in {path}. Build one with: {rebuild}")
        self.settings = store.settings
        """What the index was built from, with the model's name as ``model_name``."""
        if store.progress.get("n_done") != self.settings["n_sentences"]:
            raise OutputError(f"The index {path} is incomplete. Repeat the command that started it to resume.")
        dim, n_layers = self.settings["dim"], self.settings["n_layers"]
        self.layers = {layer: store.memory_map(f"layer-{layer}.f16", FLOAT16, dim) for layer in range(1, n_layers)}
        self.type_vectors = store.memory_map("types.f16", FLOAT16, dim)
        self.tokens = store.memory_map("tokens.i32", INT32)
        self.starts = store.memory_map("starts.i64", INT64)
        self.types = _read_types(store)
        self.n_sentences, self.n_tokens = len(self.starts), len(self.tokens)

    def sentence(self, number: int) -> list[str]:
        """Return the words of a sentence."""
        start, stop = self.starts[number], self.n_tokens
        if number + 1 < self.n_sentences:
            stop = self.starts[number + 1]
        return [self.types[kind] for kind in self.tokens[start:stop]]

    def neighbors(
        self,
        elmo: Elmo,
        words: Sequence[str],
        token: int,
        layers: Sequence[int] | None = None,
        n_neighbors: int = 5,
        among: Among = "any",
        min_count: int = 1,
    ) -> Neighbors:
        """Find the occurrences most similar to a word in a sentence by each layer, and the most similar words by layer
        0.

        Occurrences in the query sentence itself are excluded, and only one of several equal sentences is shown.

        Args:
            elmo: The model that the index was built with.
            words: The sentence.
            token: Index of the word in ``words``; -1 is the last one.
            layers: Layers, from 1; None for all.
            n_neighbors: Number of neighbors per layer.
            among: Search occurrences of any word, of the same word only, or of other words only.
            min_count: Minimum corpus count of the context-free neighbors.

        Raises:
            ConfigError: The layer or token does not exist, or the index was built with another model.
            TextError: The sentence is not a list of strings.
        """
        self.check_model(elmo)
        token = token_index("token", token, len(check_sentence(words)))
        (vectors,) = elmo.embed([words], layers="all")
        searches = self.searches(vectors, words, token, layers, n_neighbors, among, min_count)
        return Neighbors.from_layers(words, token, {layer: search() for layer, search in searches.items()})

    def check_model(self, elmo: Elmo) -> None:
        """Check that the index was built with a model.

        Raises:
            ConfigError: It was built with another one.
        """
        if model_digest(elmo) != self.settings["model"]:
            raise ConfigError(
                f"{self.path} was built with another model: {self.settings['model_name'] or 'the included one'}."
            )

    def searches(
        self,
        vectors: NDArray[np.float32],
        words: Sequence[str],
        token: int,
        layers: Sequence[int] | None = None,
        n_neighbors: int = 5,
        among: Among = "any",
        min_count: int = 1,
    ) -> dict[int, Callable[[], list[Any]]]:
        """Return the searches of :meth:`neighbors` by layer, for programs that may need to stop in between.

        Args:
            vectors: All layers of the sentence, ``(layers, tokens, dim)``, from the model of the index.
            words, token, layers, n_neighbors, among, min_count: As in :meth:`neighbors`.

        Returns:
            A function for layer 0, which finds the context-free neighbors, and one for each of ``layers``.
            :meth:`Neighbors.from_layers` combines their results.

        Raises:
            ConfigError: The layer does not exist, or another argument is invalid.
        """
        chosen: list[Any] = list(self.layers)
        if layers is not None:
            given: Any = plain_layers(layers)
            chosen = given if isinstance(given, list) else [given]
        for layer in chosen:
            if isinstance(layer, bool) or layer not in self.layers:
                raise ConfigError(
                    f"The index has no layer {layer!r}: it has 1 to {len(self.layers)}, and always shows the neighbors "
                    "of layer 0."
                )
        check_at_least("n_neighbors", n_neighbors, 1)
        check_at_least("min_count", min_count, 0)
        check_choice("among", among, get_args(Among))
        query = unit_vectors(vectors[:, token])
        searches: dict[int, Callable[[], list[Any]]] = {
            0: partial(self._similar_words, query[0], words[token], n_neighbors, min_count)
        }
        for layer in chosen:
            searches[layer] = partial(self._nearest, query[layer], layer, list(words), token, n_neighbors, among)
        return searches

    def _similar_words(
        self, vector: NDArray[np.float32], word: str, n_neighbors: int, min_count: int
    ) -> list[SimilarWord]:
        """Find other words of the corpus whose context-free vectors are most similar to a normalized vector."""
        counts = np.zeros(len(self.types), dtype=np.int64)
        for start in range(0, self.n_tokens, COUNT_ROWS):
            counts += np.bincount(self.tokens[start : start + COUNT_ROWS], minlength=len(self.types))
        cosines = np.concatenate([self._cosines(rows, vector) for _, rows in _blocks(self.type_vectors)])
        is_shown = ~self._is_spelling_of(word) & (counts >= min_count)
        order = np.argsort(-cosines, kind="stable")
        best = order[is_shown[order]][:n_neighbors]
        words = []
        for kind in best.tolist():
            words.append(SimilarWord(float(cosines[kind]), self.types[kind], int(counts[kind])))
        return words

    def _cosines(self, rows: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosines of normalized rows with a normalized vector."""
        with np.errstate(invalid="ignore"):
            cosines: NDArray[np.float32] = rows @ vector
        if not np.isfinite(cosines).all():
            raise OutputError(f"The index {self.path} is damaged: it has non-finite vectors. Build it again.")
        return cosines

    def _is_spelling_of(self, word: str) -> NDArray[np.bool_]:
        """Mark the distinct words that only differ from a word in marks or character codes: ``(types,)``."""
        plain = PLAIN(word)
        return np.array([PLAIN(kind) == plain for kind in self.types], np.bool_)

    def _nearest(
        self, vector: NDArray[np.float32], layer: int, words: list[str], token: int, n_neighbors: int, among: Among
    ) -> list[Occurrence]:
        is_spelling = self._is_spelling_of(words[token])
        best: list[Occurrence] = []
        for start, rows in _blocks(self.layers[layer]):
            cosines = self._cosines(rows, vector)
            if among != "any":
                is_own = is_spelling[self.tokens[start : start + len(rows)]]
                is_searched = is_own if among == "same" else ~is_own
                cosines = np.where(is_searched, cosines, -np.inf)
            floor = best[-1].similarity if len(best) == n_neighbors else -np.inf
            here = np.flatnonzero(cosines > floor)
            here = here[np.argsort(-cosines[here], kind="stable")]
            more = ((float(cosines[row]), start + int(row)) for row in here)
            best = self._merged(best, more, words, n_neighbors)
        return best

    def _merged(
        self, best: list[Occurrence], more: Iterator[tuple[float, int]], words: list[str], n_neighbors: int
    ) -> list[Occurrence]:
        """Merge the best of both, sorted. Of equal tokens in equal sentences, only the first is kept."""
        seen = {(tuple(occurrence.words), occurrence.token) for occurrence in best}
        added = 0
        for similarity, position in more:
            number = int(np.searchsorted(self.starts, position, side="right")) - 1
            sentence = self.sentence(number)
            key = (tuple(sentence), position - int(self.starts[number]))
            if sentence == words or key in seen:
                continue
            seen.add(key)
            best = [*best, Occurrence(similarity, number, key[1], sentence)]
            added += 1
            if added == n_neighbors:
                break
        return sorted(best, key=lambda occurrence: -occurrence.similarity)[:n_neighbors]


def _read_types(store: Committed) -> list[str]:
    return [json.loads(line) for line in store.read_bytes("types.jsonl").splitlines()]


def _blocks(rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the first row of each block, and the block in float32."""
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        yield start, np.asarray(block, dtype=np.float32)

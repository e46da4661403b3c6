"""Learn to map the vectors of one model into the space of another, from a dictionary: :func:`align`.

This follows Schuster et al. (2019). Each word is represented by its anchor, the mean of its vectors over a text. For
each layer, the rotation is found that brings the anchors of translations closest to each other. The quality is measured
by word retrieval (``evaluation/word_retrieval.py``), on pairs of the dictionary that were not learned from.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.config import MAX_SEED, check_at_least, check_fraction
from elmokit.embedding.elmo import Elmo
from elmokit.engine.layer_alignment import LayerAlignment
from elmokit.errors import ConfigError, TextError
from elmokit.evaluation.tables import Table
from elmokit.evaluation.word_retrieval import LayerRetrieval, Pair, measure_retrieval, word_anchors
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import as_model
from elmokit.storage.progress import ProgressCallback, count_of
from elmokit.storage.text_files import TextPaths, find_text_files, read_lines, read_sentences
from elmokit.text.columns import split_columns

if TYPE_CHECKING:
    import torch

SENTENCES_PER_REPORT = 256


@dataclass(frozen=True)
class AlignmentResult:
    """What :func:`align` returns."""

    model: PretrainedBiLM
    """The source model with its alignment. ``save_model`` stores both."""
    retrieval: tuple[LayerRetrieval, ...]
    """Per layer, on the pairs that were not learned from; empty if ``test_ratio`` is 0."""
    n_learned: int
    """Pairs that the alignment was learned from."""
    n_test: int
    """Source words that retrieval was tested on."""
    n_candidates: int
    """Target words among which the translation was searched."""
    n_missing: int
    """Pairs of the dictionary of which a word occurs too rarely in its text."""
    left_out: tuple[str, ...] = ()
    """Maps that were fitted to the vectors before, which the model no longer has."""

    @property
    def notes(self) -> list[str]:
        """Sentences about the dictionary."""
        notes = [f"Learned from {count_of(self.n_learned, 'pair')} of the dictionary."]
        if self.n_missing:
            were = "was" if self.n_missing == 1 else "were"
            notes.append(f"{count_of(self.n_missing, 'pair')} {were} left out, because a word is too rare in its text.")
        if self.n_learned < (dim := self.model.config.output_dim):
            notes.append(f"That is fewer than the {dim} dimensions of a vector: more pairs give a better alignment.")
        if self.left_out:
            names = " and ".join(self.left_out)
            notes.append(f"Left out, because fitted to the vectors before: the model's {names}. Fit them again.")
        if self.retrieval:
            notes.append(
                f"Precision at 1 for {self.n_test:,} other words among {self.n_candidates:,} candidates, in percent:"
            )
        return notes

    def table(self) -> Table:
        """Return the retrieval by layer, in percent."""
        head = ["layer", "cosine, before", "after", "CSLS, before", "after"]
        rows = [
            [str(one.layer), *(f"{100 * value:.1f}" for value in dataclasses.astuple(one)[1:])]
            for one in self.retrieval
        ]
        return Table(head, rows)

    def to_text(self) -> str:
        """Return the notes and the table for people."""
        return "\n".join([" ".join(self.notes), *([self.table().to_text()] if self.retrieval else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model as plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}
        return values | {"retrieval": [dataclasses.asdict(one) for one in self.retrieval]}


def align(
    source: str | Path | PretrainedBiLM | None,
    target: str | Path | PretrainedBiLM | None,
    source_texts: TextPaths,
    target_texts: TextPaths,
    dictionary: str | Path | Iterable[Pair] | Mapping[str, str],
    *,
    centered: bool = False,
    min_count: int = 1,
    test_ratio: float = 0.1,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: ProgressCallback = lambda stage, done, total: None,
) -> AlignmentResult:
    """Learn an alignment: maps that bring the vectors of one model into the space of another.

    Use it to compare or to share what is built on the vectors: a tagger that was trained on the vectors of ``target``
    can then read those of ``source``. Texts are read once, in bounded memory: only sums for the words of the dictionary
    are kept.

    Args:
        source: The model whose vectors are mapped: a model, or its path or name. An alignment that it stores is
            replaced.
        target: The model whose space they are mapped to. If it has an alignment itself, its aligned space.
        source_texts: Tokenized text in the language of ``source``, one sentence per line: files, directories or glob
            patterns.
        target_texts: The same for ``target``. The texts need not be translations of each other.
        dictionary: Pairs of a source word and a target word, as they are written in the texts; a mapping from one to
            the other; or a file of pairs.
        centered: Align the means of the two spaces, too. Helps if they are far apart.
        min_count: Leave out pairs with a word that occurs less often in its text. The mean vector of a rare word
            depends on a few sentences.
        test_ratio: Fraction of the source words of the dictionary to test on instead of learning from them.
        seed: Chooses these words.
        device: Where to compute, such as "cuda", which needs PyTorch.
        progress: Called with the number of sentences read.

    Raises:
        ModelError: A model cannot be opened.
        ConfigError: The models differ in the number of layers or the size of their vectors, or an argument is not
            valid.
        TextError: A text or the dictionary cannot be read, or no pair of the dictionary can be used.

    Example:
        >>> result = elmokit.align("my-german-elmo", "en-mini", "de.txt", "en.txt", "de-en.txt")
        >>> print(result.to_text())
        >>> elmokit.save_model(result.model, "german-in-english-space")
    """
    check_at_least("min_count", min_count, 1)
    check_fraction("test_ratio", test_ratio)
    check_at_least("seed", seed, 0, MAX_SEED)
    if isinstance(dictionary, str | Path):
        pairs = read_dictionary(dictionary)
    else:
        given = dictionary.items() if isinstance(dictionary, Mapping) else dictionary
        pairs = list(dict.fromkeys((source_word, target_word) for source_word, target_word in given))
    files = [find_text_files(texts) for texts in (source_texts, target_texts)]
    models = [as_model(one) for one in (source, target)]
    models[0] = models[0].replace(alignment=None)
    _check_sizes(*models)
    if device is not None:
        for model in models:
            model.to(device)
    anchors = []
    for name, side, model, paths in zip(("source", "target"), (0, 1), models, files, strict=True):
        sentences = _counted(itertools.chain.from_iterable(map(read_sentences, paths)), f"{name} text", progress)
        anchors.append(word_anchors(Elmo(model), sentences, (pair[side] for pair in pairs), min_count))
    known = [set(one.words) for one in anchors]
    usable = [pair for pair in pairs if pair[0] in known[0] and pair[1] in known[1]]
    test_words = _test_words(usable, test_ratio, seed)
    learned = [pair for pair in usable if pair[0] not in test_words]
    if not learned:
        raise TextError(
            f"No pair of the dictionary is left to learn from: of {count_of(len(pairs), 'pair')}, {len(usable):,} have "
            f"two words that occur at least {min_count} times in their texts, and test_ratio keeps "
            f"{count_of(len(test_words), 'word')} for the test."
        )
    of_source, of_target = (
        one.vectors[:, one.rows(pair[side] for pair in learned)] for side, one in enumerate(anchors)
    )
    alignment = LayerAlignment.fit(of_source, of_target, centered)
    tested = [pair for pair in usable if pair[0] in test_words]
    retrieval = tuple(measure_retrieval(anchors[0], anchors[1], tested, alignment)) if tested else ()
    model = models[0].without_fitted_maps().replace(alignment=alignment)
    result = AlignmentResult(
        model,
        retrieval,
        len(learned),
        len(test_words),
        len(anchors[1].words),
        len(pairs) - len(usable),
        tuple(models[0].fitted_maps),
    )
    model.card["alignment"] = {"target": models[1].source_name, "centered": centered, **result.to_dict()}
    return result


def read_dictionary(path: str | Path) -> list[Pair]:
    """Read a bilingual dictionary: a word and its translation per line, separated by a tab or spaces.

    A word with several translations has several lines. Blank lines are skipped, and repeated ones.

    Raises:
        TextError: The file cannot be read, or a line has another number of columns.
    """
    pairs: dict[Pair, None] = {}
    for number, line in enumerate(read_lines(path), start=1):
        columns = split_columns(line) if line.strip() else []
        if columns and (len(columns) != 2 or not all(columns)):
            raise TextError(
                f"{path}, line {number}: expected a word and its translation, separated by a tab or spaces, but found "
                f"{line.strip()!r}."
            )
        if columns:
            pairs[columns[0], columns[1]] = None
    return list(pairs)


def _counted(sentences: Iterable[list[str]], stage: str, progress: ProgressCallback) -> Iterator[list[str]]:
    """Pass sentences on and report how many there were."""
    for number, sentence in enumerate(sentences):
        if number % SENTENCES_PER_REPORT == 0:
            progress(stage, number, None)
        yield sentence


def _test_words(pairs: Sequence[Pair], test_ratio: float, seed: int) -> set[str]:
    """Choose the source words to test on. All translations of a word are on the same side."""
    words = list(dict.fromkeys(word for word, _ in pairs))
    order = np.random.default_rng(seed).permutation(len(words))
    return {words[index] for index in order[: round(test_ratio * len(words))]}


def _check_sizes(source: PretrainedBiLM, target: PretrainedBiLM) -> None:
    sizes = [(model.config.n_layers + 1, model.config.output_dim) for model in (source, target)]
    if sizes[0] != sizes[1]:
        (layers, dim), (target_layers, target_dim) = sizes
        raise ConfigError(
            f"The source model has {layers} layers with {dim} dimensions, and the target model has {target_layers} "
            f"with {target_dim}; they must be equal."
        )

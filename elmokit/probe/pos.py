"""What the layers know of parts of speech: a linear classifier on each layer's frozen vectors.

Peters et al. 2018, section 5.3 and table 6. Data in CoNLL-U.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.embedder import Elmo
from elmokit.errors import MissingExtraError, TextError
from elmokit.files import read_lines

WORD_COLUMN, UPOS_COLUMN, N_COLUMNS = 1, 3, 10


@dataclass(frozen=True)
class TaggedSentence:
    """Words and their universal parts of speech."""

    words: list[str]
    tags: list[str]


def read_conllu(path: str | Path) -> Iterator[TaggedSentence]:
    """Sentences of a CoNLL-U file; multiword tokens (``1-2``) and empty nodes (``8.1``) are passed over.

    Raises:
        TextError: the file cannot be read, or a line has another number of columns.
    """
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            if words:
                yield TaggedSentence(words, tags)
            words, tags = [], []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) != N_COLUMNS:
                raise TextError(
                    f"{path}, line {number}: {len(columns)} columns, expected {N_COLUMNS} with tabs between."
                )
            if columns[0].isdigit():
                words.append(columns[WORD_COLUMN])
                tags.append(columns[UPOS_COLUMN])
    if words:
        yield TaggedSentence(words, tags)


def probe_pos(elmo: Elmo, train: list[TaggedSentence], test: list[TaggedSentence]) -> list[float]:
    """Accuracy on the test sentences of a linear probe trained on each layer, layer 0 first.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        TextError: there is nothing to train or to test on.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise MissingExtraError("The probe for parts of speech", "probe") from None
    if not train or not test:
        raise TextError("The probe needs sentences to train on and sentences to test on; one of the two is empty.")
    accuracies: list[float] = []
    answers, questions = ([tag for sentence in part for tag in sentence.tags] for part in (train, test))
    for layer in range(elmo.n_layers):
        seen, unseen = (
            np.concatenate(elmo.embed([sentence.words for sentence in part], layers=layer)) for part in (train, test)
        )
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-3, C=0.1))
        classifier.fit(seen, answers)
        accuracies.append(float(classifier.score(unseen, questions)))
    return accuracies

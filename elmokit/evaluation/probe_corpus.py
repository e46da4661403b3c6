"""What the probes share: reading text in chunks, and digests that say what stored vectors were computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from elmokit.config import check_choice
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import fingerprint, vector_settings
from elmokit.evaluation.sense_files import DATA, GOLD, read_sense_xml
from elmokit.storage.text_files import TextPaths, find_text_files, or_packed, unpacked_name
from elmokit.text.batching import read_ahead
from elmokit.text.text import CONLLU_SUFFIXES, Text

Item = TypeVar("Item")
CHUNK_TOKENS = 16_384
"""Tokens that are embedded between two commits. The chunks decide which sentences share a batch, so that an
interrupted run must use the same value as the run that resumes it."""


def read_chunks(sentences: Iterable[Item], length: Callable[[Any], int] = len) -> Iterator[list[Item]]:
    """Yield sentences in lists of about ``CHUNK_TOKENS`` tokens."""
    return read_ahead(sentences, max_tokens=CHUNK_TOKENS, length=length)


def find_corpus_files(names: TextPaths) -> list[Path]:
    """Find what :func:`read_corpus_files` reads, in directories too, but no files of gold keys."""
    files = find_text_files(names, reread=True, suffixes=or_packed(".txt", *CONLLU_SUFFIXES, DATA))
    return [path for path in files if not unpacked_name(path).endswith(GOLD)]


def read_corpus_files(text: Text) -> Iterator[list[str]]:
    """Yield the sentences of a text and of ``.data.xml`` files, without empty ones."""
    for path in text.files:
        if unpacked_name(path).endswith(DATA):
            yield from (sentence.words for sentence in read_sense_xml(path) if sentence.words)
        else:
            for line in text.lines_of(path):
                yield from filter(None, line.sentences)


def model_settings(elmo: Elmo) -> dict[str, Any]:
    """List everything but the text that stored vectors depend on: the model, and what computes it."""
    return vector_settings(elmo.computer, elmo.start) | {"model": model_digest(elmo)}


def model_digest(elmo: Elmo) -> str:
    """Identify a model: equal for models that give the same vectors, up to rounding. Stateful ones are refused."""
    check_choice("start", elmo.start, ("warm", "zero"))  # then vectors do not depend on the previous sentences
    return fingerprint(elmo.model, elmo.start)[:16]

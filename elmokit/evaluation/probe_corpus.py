"""Shared by the probes: reading text in chunks, and digests that identify the source of stored vectors."""

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
"""Number of tokens embedded between two commits. The chunks determine which sentences share a batch, so a resumed run
must use the same value."""


def read_chunks(sentences: Iterable[Item], length: Callable[[Any], int] = len) -> Iterator[list[Item]]:
    """Yield sentences in lists of about ``CHUNK_TOKENS`` tokens."""
    return read_ahead(sentences, max_tokens=CHUNK_TOKENS, length=length)


def find_corpus_files(names: TextPaths) -> list[Path]:
    """Find the files that :func:`read_corpus_files` reads, also in directories, except gold keys."""
    files = find_text_files(names, reread=True, suffixes=or_packed(".txt", *CONLLU_SUFFIXES, DATA))
    return [path for path in files if not unpacked_name(path).endswith(GOLD)]


def read_corpus_files(text: Text) -> Iterator[list[str]]:
    """Yield the non-empty sentences of a text and of ``.data.xml`` files."""
    for path in text.files:
        if unpacked_name(path).endswith(DATA):
            yield from (sentence.words for sentence in read_sense_xml(path) if sentence.words)
        else:
            for line in text.lines_of(path):
                yield from filter(None, line.sentences)


def model_settings(elmo: Elmo) -> dict[str, Any]:
    """List everything except the text that affects stored vectors: the model, and how it is computed."""
    return vector_settings(elmo.computer, elmo.start) | {"model": model_digest(elmo)}


def model_digest(elmo: Elmo) -> str:
    """Return an identifier that is equal for models with the same vectors, up to rounding. Refuses stateful ones."""
    check_choice("start", elmo.start, ("warm", "zero"))  # then vectors do not depend on the previous sentences
    return fingerprint(elmo.model, elmo.start)[:16]

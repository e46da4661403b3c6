"""The rows of a text in an output of vectors, and their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from elmokit.text.text import Text


@dataclass(frozen=True)
class SentenceCounts:
    """The size of a corpus."""

    n_sentences: int = 0
    n_tokens: int = 0
    n_blank: int = 0
    n_text_bytes: int = 0
    """UTF-8 bytes of the lines, or of protein identifiers."""
    digest: str = ""
    """A hash of everything in the text that affects vectors."""


class CorpusSentence(NamedTuple):
    """One line of a text, one sentence of CoNLL-U, or one protein."""

    name: str
    """The line; for raw text, the tokens with spaces between them; for a protein, the identifier."""
    tokens: list[str]
    text: str
    """Everything that affects the vectors, for the hash of the text."""


def corpus_rows(text: Text) -> Iterator[CorpusSentence]:
    """Yield the rows of an output: the lines of a text, including blank ones, or the sentences of raw text.

    For raw text with documents, the blank lines that end them also have rows.
    """
    for line in text.lines():
        if text.kind == "raw":
            sentences = line.sentences
            if text.documents and not sentences:
                sentences = [[]]
            for tokens in sentences:
                name = " ".join(tokens)
                yield CorpusSentence(name, tokens, name)
            continue
        (tokens,) = line.sentences
        if text.kind == "fasta":
            yield CorpusSentence(line.text, tokens, f"{line.text} {''.join(tokens)}")
        else:
            # Other white space is part of a token here; other tokenizers, such as AllenNLP's, split at it.
            name = line.text.strip(" \t" if text.kind == "tokens" else None)
            yield CorpusSentence(name, tokens, line.text)

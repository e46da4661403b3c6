"""Split raw text into tokens with NLTK's Penn Treebank tokenizer."""

from __future__ import annotations

from collections.abc import Callable

from elmokit.errors import MissingExtraError


def treebank_tokenizer() -> Callable[[str], list[str]]:
    """Return a function that splits a raw sentence into tokens, each an unchanged part of the sentence.

    Raises:
        MissingExtraError: NLTK is not installed.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError:
        raise MissingExtraError("Tokenizing raw text", "tokenize") from None
    tokenizer = NLTKWordTokenizer()

    def tokenize(sentence: str) -> list[str]:
        return [sentence[start:stop] for start, stop in tokenizer.span_tokenize(sentence)]

    return tokenize

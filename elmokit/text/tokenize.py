"""Split raw English text into tokens with NLTK's Penn Treebank tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elmokit.errors import MissingExtraError


def treebank_span_tokenizer() -> Callable[[str], Iterable[tuple[int, int]]]:
    """Return a function that maps a raw sentence to the character offsets ``(start, stop)`` of its tokens.

    Raises:
        MissingExtraError: NLTK is not installed.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError:
        raise MissingExtraError("Tokenizing raw text", "tokenize") from None
    spans: Callable[[str], Iterable[tuple[int, int]]] = NLTKWordTokenizer().span_tokenize
    return spans


def treebank_tokenizer() -> Callable[[str], list[str]]:
    """Return a function that maps a raw sentence to its tokens.

    Each token is a slice of the sentence: unlike NLTK's ``tokenize``, quotes are not rewritten as `` and ''.

    Raises:
        MissingExtraError: NLTK is not installed.
    """
    spans = treebank_span_tokenizer()
    return lambda sentence: [sentence[start:stop] for start, stop in spans(sentence)]

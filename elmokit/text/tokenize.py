"""Raw text to tokens, in the manner of the Penn Treebank, by NLTK."""

from __future__ import annotations

from collections.abc import Callable

from elmokit.errors import MissingExtraError


def treebank_tokenizer() -> Callable[[str], list[str]]:
    """A function from a raw sentence to its tokens, each a slice of the sentence as it stands.

    Raises:
        MissingExtraError: NLTK is not installed.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError:
        raise MissingExtraError("Tokenising raw text", "tokenize") from None
    tokenizer = NLTKWordTokenizer()

    def tokenize(sentence: str) -> list[str]:
        return [sentence[start:stop] for start, stop in tokenizer.span_tokenize(sentence)]

    return tokenize

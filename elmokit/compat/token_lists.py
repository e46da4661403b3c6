"""Read sentences as the original programs do: by iterating over the argument, whatever its type."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Set

from elmokit.text.batching import check_sentence, check_sentences


def token_list(sentence: Iterable[str]) -> list[str]:
    """Return the tokens of a sentence, which may also be an array, a Series, a dictionary view or a generator.

    Raises:
        TextError: The sentence is a string, has no order of tokens, or a token is not a string.
    """
    has_no_order = isinstance(sentence, Mapping) or (isinstance(sentence, Set) and not isinstance(sentence, KeysView))
    if isinstance(sentence, Iterable) and not isinstance(sentence, str | bytes) and not has_no_order:
        sentence = list(sentence)
    return list(check_sentence(sentence))  # type: ignore[arg-type]  # reports what is wrong with anything else


def token_lists(sentences: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the tokens of each sentence of a batch, which may be any iterable.

    Raises:
        TextError: The batch is a string or not iterable; or as in ``token_list``.
    """
    check_sentences(sentences)  # type: ignore[arg-type]  # does not read any sentence yet
    return [token_list(sentence) for sentence in sentences]

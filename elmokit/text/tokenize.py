"""Split raw text into sentences and tokens: English as in the Penn Treebank, other languages with or without spaCy.

The English models were trained on text in the style of the Penn Treebank (``elmokit.text.english``). For other
languages, spaCy has rules, or calls a library if words are not separated by spaces. "any" needs no library
(``elmokit.text.any_language``). Nothing is downloaded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args, overload

from elmokit.config import check_choice
from elmokit.errors import ConfigError, TextError, missing_advice, needs_extra
from elmokit.text.any_language import split_any
from elmokit.text.english import sentence_spans, token_spans
from elmokit.text.first_lines import Wrapped, check_split, join_wrapped
from elmokit.text.foreign import warn_of_entities
from elmokit.text.marks import INVISIBLE

ENGLISH = "en"
ANY = "any"
"""The language code of the rules for any language."""
_NO_TOKEN = re.compile(rf"[\s{INVISIBLE}]*")
"""What can stand between two tokens."""
Spans = Callable[[str], Iterable[tuple[int, int]]]
"""Maps a text to the character offsets ``(start, stop)`` of its tokens or sentences."""
Tokenization = Literal["treebank", "spaces"]
"""How text is split: "treebank", as in the training text of the English models; or "spaces" for tokenized text, with
spaces between the tokens."""
TextSplitter = Callable[[str], list[list[str]]]
"""Maps a line of raw text to its tokenized sentences."""


class Token(NamedTuple):
    """A token of a text, with its position."""

    text: str
    start: int
    """Its first character in the text, counted from 0."""
    stop: int
    """The character after its last one: ``text[start:stop]`` is the token."""


class Word(NamedTuple):
    """A word as written, between white space and with attached punctuation."""

    text: str
    start: int
    stop: int
    """As in :class:`Token`."""
    tokens: list[tuple[int, int]]
    """The tokens that it was split into: the sentence, and the position in that sentence, both counted from 0."""


@overload
def tokenize(
    text: str, language: str = ENGLISH, *, offsets: Literal[False] = False, wrapped: Wrapped = "auto"
) -> list[list[str]]: ...


@overload
def tokenize(
    text: str, language: str = ENGLISH, *, offsets: Literal[True], wrapped: Wrapped = "auto"
) -> list[list[Token]]: ...


def tokenize(
    text: str, language: str = ENGLISH, *, offsets: bool = False, wrapped: Wrapped = "auto"
) -> list[list[str]] | list[list[Token]]:
    """Split raw text into sentences and tokens, in the form that :meth:`elmokit.Elmo.embed` expects.

    Sentences also end at the end of a line or, if lines are wrapped, at a blank line.

    Args:
        text: The text.
        language: A language code of spaCy, such as "de" or "ja"; English is split as in the Penn Treebank. "any" splits
            at letters, digits and marks by Unicode character classes, without spaCy.
        offsets: Return each token as a :class:`Token`, with its position in the text.
        wrapped: Whether the lines are wrapped, as in e-mail and books. "auto" joins them, with a warning, if most end
            inside a sentence.

    Returns:
        A list of tokens for each sentence.

    Raises:
        MissingExtraError: The language needs spaCy (extra ``spacy``), which is not installed.
        ConfigError: spaCy does not know the language, or needs another library for it.
        TextError: ``text`` is not a string; or, with ``offsets``, spaCy changed the text.

    Example:
        >>> elmokit.tokenize("It's raining. We left at 5 p.m. on foot.")
        [['It', "'s", 'raining', '.'], ['We', 'left', 'at', '5', 'p.m.', 'on', 'foot', '.']]
    """
    if not isinstance(text, str):
        raise TextError(f"Expected raw text as one string, but got {type(text).__name__}.{missing_advice(text)}")
    check_choice("wrapped", wrapped, get_args(Wrapped))
    sentences = split_lines(text, text_splitter(language), wrapped)
    check_split("the text", sentences)
    return locate_tokens(text, sentences) if offsets else sentences


def locate_tokens(text: str, sentences: Iterable[Sequence[str]]) -> list[list[Token]]:
    """Locate the tokens of each sentence, in order, in the text that they come from."""
    located: list[list[Token]] = []
    stop = 0
    for sentence in sentences:
        located.append([])
        for token in sentence:
            start = text.find(token, stop)
            if start < 0 or not _NO_TOKEN.fullmatch(text, stop, start):
                raise TextError(
                    f"The token {token!r} was not found in the rest of the text, {text[stop : stop + 40]!r}."
                )
            stop = start + len(token)
            located[-1].append(Token(token, start, stop))
    return located


def group_words(text: str, sentences: Iterable[Sequence[Token]]) -> list[Word]:
    """Group the tokens of a text into words between white space.

    A token with white space inside, as in some languages, joins the words that it is part of. If sentences are not
    separated by white space, a word can belong to two of them.
    """
    places: deque[tuple[Token, tuple[int, int]]] = deque()
    for number, sentence in enumerate(sentences):
        for position, token in enumerate(sentence):
            places.append((token, (number, position)))
    words: list[Word] = []
    own: list[tuple[int, int]] = []
    start = stop = 0
    for match in re.finditer(r"\S+", text):
        if not own:
            start = match.start()
        while places and places[0][0].start < match.end():
            token, place = places.popleft()
            own.append(place)
            stop = token.stop
        if own and stop <= match.end():
            words.append(Word(text[start : match.end()], start, match.end(), own))
            own = []
    return words


def split_lines(text: str, split: TextSplitter, wrapped: Wrapped = "auto") -> list[list[str]]:
    """Return the sentences in all lines of a text, or in its paragraphs if the lines are wrapped."""
    # Lines as in text files: splitlines() would also split at form feeds, U+2028 and others.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    sentences = []
    for _, line in join_wrapped("the text", enumerate(lines), wrapped):
        sentences += split(line)
    return sentences


@cache  # a language's tables take up to a second to build
def text_splitter(language: str = ENGLISH) -> TextSplitter:
    """Return the function that splits a line of raw text into tokenized sentences; none for a blank line."""
    if language == ENGLISH:
        return partial(_split_raw, _split_english)
    if language == ANY:
        return partial(_split_raw, split_any)
    return partial(_split_raw, partial(_split_with_spacy, _spacy_pipeline(language)))


def _split_raw(split: TextSplitter, line: str) -> list[list[str]]:
    warn_of_entities(line)
    return split(line)


def _split_english(line: str) -> list[list[str]]:
    sentences = [treebank_tokens(line[start:stop]) for start, stop in sentence_spans(line)]
    return [tokens for tokens in sentences if tokens]


def _split_with_spacy(pipeline: Any, line: str) -> list[list[str]]:
    sentences = []
    for sentence in pipeline(line).sents:
        tokens = [token.text for token in sentence if not token.is_space]
        if tokens:
            sentences.append(tokens)
    return sentences


def _spacy_pipeline(language: str) -> Any:
    """Return spaCy's tokenizer for a language, with its rules for sentence ends."""
    with needs_extra(f"Splitting raw text in the language {language!r}", "spacy"):
        import spacy
    try:
        pipeline = spacy.blank(language)
    except ImportError as error:  # an unknown language, or one that needs another library, which spaCy names
        what = " ".join(str(error).split())
        raise ConfigError(f"spaCy cannot split {language!r}, but {ANY!r} splits any language: {what}") from None
    pipeline.add_pipe("sentencizer")
    # The limit is for parsers, and these rules do not parse.
    pipeline.max_length = 1 << 30
    return pipeline


def treebank_tokens(sentence: str) -> list[str]:
    """Split a raw English sentence into tokens, which are slices of it: quotes are not rewritten as `` and ''."""
    return [sentence[start:stop] for start, stop in token_spans(sentence)]


def get_tokenizer(tokenization: Tokenization) -> Callable[[str], list[str]]:
    """Return the function that splits a text into tokens; with "treebank", the same tokens as ``tokenize``."""
    check_choice("tokenization", tokenization, get_args(Tokenization))
    return split_tokens if tokenization == "spaces" else _split_sentences


def _split_sentences(text: str) -> list[str]:
    """Return the tokens of all sentences in an English text."""
    return list(chain.from_iterable(split_lines(text, text_splitter())))


def get_span_tokenizer(tokenization: Tokenization) -> Spans:
    """Return the function that maps a text to the character offsets of its tokens."""
    split = get_tokenizer(tokenization)

    def spans_of(text: str) -> list[tuple[int, int]]:
        (tokens,) = locate_tokens(text, [split(text)])
        return [(token.start, token.stop) for token in tokens]

    return spans_of


def split_tokens(line: str) -> list[str]:
    """Split a tokenized line at spaces and tabs. Other Unicode spaces are part of their token."""
    return [part for part in line.replace("\t", " ").split(" ") if part]

"""Split raw text into sentences and tokens: English as in the Penn Treebank, other languages with spaCy.

The English models were trained on text in the style of the Penn Treebank (``elmokit.text.english``). For other
languages spaCy has rules, or calls a library for words that are not separated by spaces. Nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, Literal, get_args

from elmokit.config import check_choice
from elmokit.errors import ConfigError, TextError, needs_extra
from elmokit.storage.text_files import split_tokens
from elmokit.storage.text_formats import HEAD_LINES, are_wrapped, check_tokens
from elmokit.text.english import sentence_spans, token_spans

ENGLISH = "en"
Spans = Callable[[str], Iterable[tuple[int, int]]]
"""Maps a text to the character offsets ``(start, stop)`` of its tokens or sentences."""
Tokenization = Literal["treebank", "spaces"]
"""How a text is split: "treebank", as the English models were trained; or "spaces" for text that is tokenized already,
with spaces between the tokens."""
TextSplitter = Callable[[str], list[list[str]]]
"""Maps a line of raw text to its tokenized sentences."""


def tokenize(text: str, language: str = ENGLISH) -> list[list[str]]:
    """Split raw text into sentences and tokens, as :meth:`elmokit.Elmo.embed` takes them.

    The end of a line also ends a sentence, unless the lines are wrapped (most end inside a sentence, at about the same
    length): then a blank line ends a paragraph, with a warning.

    Args:
        text: The text.
        language: A language code of spaCy, such as "de" or "ja". English is split as in the Penn Treebank.

    Returns:
        A list of tokens for each sentence.

    Raises:
        MissingExtraError: The language needs spaCy (extra ``spacy``), which is not installed.
        ConfigError: spaCy does not know the language, or needs another library for it.
        TextError: ``text`` is not a string.

    Example:
        >>> elmokit.tokenize("It's raining. We left at 5 p.m. on foot.")
        [['It', "'s", 'raining', '.'], ['We', 'left', 'at', '5', 'p.m.', 'on', 'foot', '.']]
    """
    if not isinstance(text, str):
        raise TextError(f"Expected raw text as one string, but got {type(text).__name__}.")
    sentences = split_lines(text, text_splitter(language))
    check_tokens("the text", sentences, is_split=True)
    return sentences


def split_lines(text: str, split: TextSplitter) -> list[list[str]]:
    """Return the sentences of all lines of a text."""
    return [sentence for line in _unwrapped(text).split("\n") for sentence in split(line)]


def _unwrapped(text: str) -> str:
    """Return a text of the same length whose lines end with ``\\n``: a paragraph is one line, if lines are wrapped."""
    # The lines of a text file: splitlines() would also split at form feeds, U+2028 and others.
    text = text.replace("\r\n", " \n").replace("\r", "\n")
    if are_wrapped("the text", text.split("\n", HEAD_LINES)[:HEAD_LINES]):
        text = re.sub(r"(\S[^\S\n]*)\n(?=[^\S\n]*\S)", r"\1 ", text)
    return text


@cache  # the tables of a language take up to a second to build
def text_splitter(language: str = ENGLISH) -> TextSplitter:
    """Return a function that splits a line of raw text into tokenized sentences; a blank line has none."""
    if language == ENGLISH:
        return _split_english
    return partial(_split_with_spacy, _spacy_pipeline(language))


def _split_english(line: str) -> list[list[str]]:
    split = (treebank_tokens(line[start:stop]) for start, stop in sentence_spans(line))
    return [tokens for tokens in split if tokens]


def _split_with_spacy(pipeline: Any, line: str) -> list[list[str]]:
    split = ([token.text for token in sentence if not token.is_space] for sentence in pipeline(line).sents)
    return [tokens for tokens in split if tokens]


def _spacy_pipeline(language: str) -> Any:
    """Return spaCy's tokenizer of a language, with its rules for the ends of sentences."""
    with needs_extra(f"Splitting raw text in the language {language!r}", "spacy"):
        import spacy
    try:
        pipeline = spacy.blank(language)
    except ImportError as error:  # an unknown language, or one that needs a further library, which spaCy names
        raise ConfigError(f"spaCy cannot split the language {language!r}: {' '.join(str(error).split())}") from None
    pipeline.add_pipe("sentencizer")
    # The limit protects parsers, which these rules are not.
    pipeline.max_length = 1 << 30
    return pipeline


def treebank_tokens(sentence: str) -> list[str]:
    """Split one raw English sentence into tokens, which are slices of it: quotes are not rewritten as `` and ''."""
    return [sentence[start:stop] for start, stop in token_spans(sentence)]


def get_tokenizer(tokenization: Tokenization) -> Callable[[str], list[str]]:
    """Return the function that splits a text into tokens; with "treebank", those of the sentences of ``tokenize``."""
    spans = get_span_tokenizer(tokenization)
    return split_tokens if tokenization == "spaces" else lambda text: [text[start:stop] for start, stop in spans(text)]


def get_span_tokenizer(tokenization: Tokenization) -> Spans:
    """Return the function that maps a text to the character offsets of its tokens."""
    check_choice("tokenization", tokenization, get_args(Tokenization))
    return _text_spans if tokenization == "treebank" else _space_spans


def _text_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the tokens that ``tokenize`` returns: a period at the end of any sentence is one."""
    for line in re.finditer(r"[^\n]+", _unwrapped(text)):
        for start, stop in sentence_spans(line[0]):
            first = line.start() + start
            yield from ((first + begin, first + end) for begin, end in token_spans(line[0][start:stop]))


def _space_spans(sentence: str) -> list[tuple[int, int]]:
    """Return the offsets of the tokens that ``split_tokens`` returns."""
    return [match.span() for match in re.finditer(r"[^ \t]+", sentence)]

"""``LanguageModel``: surprisal, perplexity and substitutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np

from elmokit.config import check_choice, token_index
from elmokit.embedding.computer import Computer
from elmokit.embedding.documents import by_document
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.precision import Precision
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.formats.open import open_model
from elmokit.lm.bilm_tf_perplexity import BilmTfPerplexity, bilm_tf_perplexity
from elmokit.lm.perplexity import Perplexity, add_spelling, perplexity
from elmokit.lm.spelling import Spelling, SpellingName, spelling_of
from elmokit.lm.substitutes import Direction, Substitute, Wanted, expected_words
from elmokit.lm.surprisal import (
    BATCH_TOKENS,
    MinimalPairScores,
    RegionSurprisal,
    Surprisal,
    WordSurprisal,
    find_region,
    score_minimal_pairs,
    softmax_vocabulary,
    sum_by_word,
    sum_region,
    surprisals,
)
from elmokit.lm.word_cache import CacheSettings, DocumentCache, cache_settings, cached_surprisals
from elmokit.pretrained.model import PretrainedBiLM, check_device, check_model
from elmokit.storage.progress import ProgressCallback, Stage, StageCounter
from elmokit.storage.text_files import TextPaths
from elmokit.text.batching import check_sentence, check_texts
from elmokit.text.first_lines import Wrapped
from elmokit.text.text import Text
from elmokit.text.tokenize import ENGLISH, text_splitter, tokenize

if TYPE_CHECKING:
    import torch

Sentence = Sequence[str]
Texts = Text | TextPaths | Iterable[Sentence]
"""A text, or files of tokenized sentences, or the sentences themselves."""


class LanguageModel:
    """A biLM as a language model, for surprisal, perplexity and substitutes.

    Args:
        model: A model with its softmax and vocabulary, from ``open_model``.
        start: Start state of each sentence: "warm", the model's own; "zero", which makes the perplexity of some models
            many times too high; or a state of one batch row.

        device: Where to compute, such as "cuda" (needs PyTorch); None for the CPU.
        spelling: How ``spelling_nats`` of unknown words are computed: "model", by the model's letter model, or from the
            words in its vocabulary if it has none; "vocabulary", always from these words, as in version 0.3.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary. Most exported models dropped them; a TensorFlow
            checkpoint of bilm-tf and an elmokit training run have them.
        ConfigError: ``model`` is not an opened model, or the device is not available.
        MissingExtraError: The device needs PyTorch, which is not installed.

    Example:
        >>> lm = LanguageModel.from_pretrained()
        >>> (sentence,) = lm.surprisal([["The", "cat", "sat", "."]])
        >>> dict(zip(sentence.tokens[1:], sentence.nats[0, 1:].round(2)))
        >>> lm.perplexity("held-out.txt").per_direction
        >>> [word for word, *_ in lm.substitutes(["The", "cat", "sat", "."], 1, n=3)]
    """

    def __init__(
        self,
        model: PretrainedBiLM,
        *,
        start: StartName | State = "warm",
        device: str | torch.device | None = None,
        spelling: SpellingName = "model",
    ) -> None:
        check_model(model, "LanguageModel.from_pretrained")
        softmax_vocabulary(model)
        self.computer = Computer(model, device)
        """What computes :attr:`model`: the engine, or PyTorch after :meth:`to`."""
        start_state(self.computer, start)
        self.start = start
        check_choice("spelling", spelling, get_args(SpellingName))
        self.spelling = spelling

    @property
    def model(self) -> PretrainedBiLM:
        """The model: the contents of its files."""
        return self.computer.model

    def _repr_html_(self) -> str:
        return self.model._repr_html_()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        *,
        options: str | Path | None = None,
        vocabulary: str | Path | None = None,
        start: StartName = "warm",
        device: str | torch.device | None = None,
        precision: Precision | None = None,
        exact_marks: bool = False,
        spelling: SpellingName = "model",
    ) -> LanguageModel:
        """Open a model as a language model.

        Args:
            source, options, device, exact_marks: As in :meth:`elmokit.Elmo.from_pretrained`.
            vocabulary: File with the words of the softmax, if it is not next to the weights.
            start, spelling: As in the class.
            precision: Lowest precision of the LSTM weights. Lower precision is faster but less accurate. None for the
                model's own, which is int8 for en-mini. Its surprisals then differ from the exact values by 0.05 nats on
                average, and at most 0.5 (2.1 if a token is repeated dozens of times). Pass "float32" to rely on single
                words (docs/how-to/surprisal.md).

        Raises:
            ModelError: The model was not found, cannot be opened, or has no softmax or vocabulary.
            ConfigError: The device is not available, or the precision is unknown.
            MissingExtraError: The device needs PyTorch, which is not installed.
        """
        check_device(device)  # before anything is read
        model = open_model(source, options=options, vocabulary=vocabulary, precision=precision, exact_marks=exact_marks)
        return cls(model, start=start, device=device, spelling=spelling)

    def to(self, device: str | torch.device) -> LanguageModel:
        """Move the model to a device and return this object; errors as in :meth:`from_pretrained`."""
        self.computer.to(device)
        return self

    def surprisal(self, sentences: Iterable[Sentence], *, batch_tokens: int = BATCH_TOKENS) -> list[Surprisal]:
        """Compute the surprisal of each token of each sentence.

        For texts that do not fit in memory, use ``elmokit.lm.surprisal.surprisals``, which yields the same results one
        by one, also for documents.

        Args:
            sentences: Tokenized sentences, without boundaries.
            batch_tokens: Positions per batch. The results do not depend on it.

        Returns:
            For each sentence, its tokens with boundaries, the nats of each direction, and which tokens are unknown.
            Unknown tokens have the nats of ``<UNK>``; their letters add ``spelling_nats``.

        Raises:
            TextError: A sentence is a string instead of a list of tokens.
        """
        return list(map(self._priced, surprisals(self.computer, sentences, self.start, batch_tokens)))

    def surprisal_documents(
        self,
        documents: Iterable[Sequence[Sentence]],
        *,
        cache: bool | CacheSettings = False,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[list[Surprisal]]:
        """Compute the surprisal of each token in documents, reading each sentence after the previous ones.

        Args:
            documents: The tokenized sentences of each document.
            cache: Raise the probability of words that have occurred in the document, including unknown ones: True, or
                the settings (``elmokit.lm.word_cache``). An unknown word that occurs again has its own nats, and 0
                ``spelling_nats``.
            batch_tokens: Positions per batch. The results do not depend on it.

        Returns:
            For each document, the results of its sentences, as from :meth:`surprisal`. Both directions of a sentence
            start from the state after the previous sentence; a document starts from the model's start state.

        Raises:
            TextError: A sentence is a string instead of a list of tokens.
        """
        return list(self._by_text(documents, cache_settings(cache, True), True, batch_tokens))

    @overload
    def word_surprisal(
        self,
        texts: Sequence[str],
        *,
        documents: bool = ...,
        cache: bool | CacheSettings = ...,
        language: str = ...,
        wrapped: Wrapped = ...,
        batch_tokens: int = ...,
    ) -> list[WordSurprisal]: ...

    @overload
    def word_surprisal(
        self,
        texts: Iterator[str],
        *,
        documents: bool = ...,
        cache: bool | CacheSettings = ...,
        language: str = ...,
        wrapped: Wrapped = ...,
        batch_tokens: int = ...,
    ) -> Iterator[WordSurprisal]: ...

    def word_surprisal(
        self,
        texts: Iterable[str],
        *,
        documents: bool = False,
        cache: bool | CacheSettings = False,
        language: str = ENGLISH,
        wrapped: Wrapped = "auto",
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[WordSurprisal] | Iterator[WordSurprisal]:
        """Compute the surprisal of each word in raw texts as written, including attached punctuation.

        Args:
            texts: Raw texts of any number of sentences. Given an iterator, the method returns an iterator of rows, so a
                corpus of any size can be processed.
            documents: Read each sentence of a text in the context of the previous ones.
            cache: With ``documents``, as in :meth:`surprisal_documents`.
            language, wrapped: As in :func:`elmokit.tokenize`.
            batch_tokens: As in :meth:`surprisal`.

        Returns:
            One row per word; ``pandas.DataFrame(rows)`` turns the rows into a table.

        Raises:
            TextError: ``texts`` is a string, or one of them is not.
            ConfigError: ``cache`` without ``documents``; or as in :func:`elmokit.tokenize`.
            MissingExtraError: As in :func:`elmokit.tokenize`.

        Example:
            >>> for row in lm.word_surprisal(["The horse raced past the barn fell."]):
            ...     print(row.word, row.forward_nats)
        """
        check_texts(texts)
        text_splitter(language)  # reports an unknown language now
        split = partial(tokenize, language=language, wrapped=wrapped)
        settings = cache_settings(cache, documents)
        read = partial(self._by_text, cache=settings, documents=documents, batch_tokens=batch_tokens)
        rows = self._word_rows(texts, split, read)
        return rows if isinstance(texts, Iterator) else list(rows)

    def _word_rows(
        self,
        texts: Iterable[str],
        split: Callable[[str], list[list[str]]],
        read: Callable[[Iterator[list[list[str]]]], Iterator[list[Surprisal]]],
    ) -> Iterator[WordSurprisal]:
        texts, again = tee(texts)
        scored = read(map(split, again))
        for number, (text, sentences) in enumerate(zip(texts, scored, strict=True)):
            yield from sum_by_word(text, sentences, number)

    def region_surprisal(
        self,
        texts: Iterable[str],
        regions: Iterable[str | tuple[int, int]],
        *,
        documents: bool = False,
        cache: bool | CacheSettings = False,
        language: str = ENGLISH,
        wrapped: Wrapped = "auto",
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[RegionSurprisal]:
        """Compute the surprisal of a region of each raw text, such as the critical words of a stimulus.

        It is the sum over all tokens that the region touches: minus the log probability of the region, given everything
        before it (forward) or after it (backward).

        Args:
            texts: Raw texts of any number of sentences.
            regions: The region of each text: a part of it that occurs once, or the offsets of its first character and
                of the one after its last.
            documents, cache, language, wrapped, batch_tokens: As in :meth:`word_surprisal`.

        Returns:
            A row for each text; ``pandas.DataFrame(rows)`` turns the rows into a table.

        Raises:
            TextError: A region is not in its text or occurs several times; there are more texts than regions, or fewer;
                or as in :meth:`word_surprisal`.
            ConfigError, MissingExtraError: As in :func:`elmokit.tokenize`.

        Example:
            >>> (row,) = lm.region_surprisal(["The horse raced past the barn fell."], ["barn fell"])
            >>> print(row.words, row.forward_nats)
        """
        check_texts(texts)
        texts, regions = list(texts), list(regions)
        if len(texts) != len(regions):
            raise TextError(f"There are {len(texts):,} texts but {len(regions):,} regions; expected one per text.")
        offsets = []
        for number, (text, region) in enumerate(zip(texts, regions, strict=True)):
            try:
                offsets.append(find_region(text, region))
            except TextError as error:
                raise TextError(f"Text {number}: {error}") from None
        settings = cache_settings(cache, documents)
        tokenized = (tokenize(text, language, wrapped=wrapped) for text in texts)
        scored = self._by_text(tokenized, settings, documents, batch_tokens)
        return [
            sum_region(text, sentences, place, number)
            for number, (text, sentences, place) in enumerate(zip(texts, scored, offsets, strict=True))
        ]

    def _by_text(
        self,
        texts: Iterable[Sequence[Sentence]],
        cache: CacheSettings | None,
        documents: bool,
        batch_tokens: int,
    ) -> Iterator[list[Surprisal]]:
        """Yield the surprisal of each text's sentences, which form a document or are read separately."""

        def read(texts: Iterator[Sequence[Sentence]]) -> Iterator[Surprisal]:
            if cache is not None:
                words = self._document_cache(cache)
                return cached_surprisals(self.computer, texts, words, self.start, batch_tokens)
            read = texts if documents else chain.from_iterable(texts)
            return map(self._priced, surprisals(self.computer, read, self.start, batch_tokens, documents=documents))

        return by_document(texts, read)

    def perplexity(
        self,
        texts: Texts | Iterable[Sequence[Sentence]],
        *,
        documents: bool = False,
        cache: bool | CacheSettings = False,
        start: StartName | State | None = None,
        batch_tokens: int = BATCH_TOKENS,
        on_sentence: Callable[[Surprisal], object] | None = None,
        progress: ProgressCallback | None = None,
    ) -> Perplexity:
        """Compute the perplexity of a text.

        Args:
            texts: Tokenized sentences, or with ``documents`` the sentences of each document; or a
                :class:`~elmokit.Text`, which says how its files are read; or paths to files, directories or glob
                patterns of text with one tokenized sentence per line. Several files are scored as one text.
            documents: Read each sentence in the context of the previous ones, up to a blank line or the end of the
                file. A ``Text`` can also set this.
            cache: With ``documents``, as in :meth:`surprisal_documents`.
            start: The start state of each sentence or document; None for that of this object.
            batch_tokens: Positions per batch. The result does not depend on it.
            on_sentence: Called with the surprisal of each sentence, in order.
            progress: Called with the number of predictions so far.

        Raises:
            TextError: There are no sentences, or a file cannot be read or has no documents (CoNLL-U).
            ConfigError: ``start`` is unknown; or ``cache`` without ``documents``.
        """
        read = _text_or_sentences(texts)
        if isinstance(read, Text) and read.documents:
            documents = True
        settings = cache_settings(cache, documents)
        total = None
        if isinstance(read, Text):
            if progress is not None:
                total = read.n_predictions()
            read = read.document_sentences() if documents else read.sentences()
        counter = StageCounter(progress, Stage("perplexity", "predictions"), total)

        def after(sentence: Surprisal) -> None:
            if on_sentence is not None:
                on_sentence(sentence)
            counter(len(sentence.tokens) - 1)

        return perplexity(
            self.model,
            read,
            self.start if start is None else start,
            documents=documents,
            batch_tokens=batch_tokens,
            spelling=self._spelling,
            on_sentence=after,
            cache=None if settings is None else self._document_cache(settings),
        )

    def bilm_tf_perplexity(
        self, texts: Texts, batch_size: int, *, progress: ProgressCallback | None = None
    ) -> BilmTfPerplexity:
        """Compute the perplexity that bilm-tf's ``run_test`` prints.

        Args:
            texts: As in :meth:`perplexity`; files are read like in bilm-tf, the last one first.
            batch_size: The batch size of ``run_test``, which affects the result.
            progress: As in :meth:`perplexity`.
        """
        read = _text_or_sentences(texts)
        total = None
        if isinstance(read, Text):
            text = Text(read.files[::-1], kind="bilm-tf")
            if progress is not None:
                total = text.n_predictions()
            read = text.token_lists()
        counter = StageCounter(progress, Stage("perplexity", "predictions"), total)
        return bilm_tf_perplexity(self.computer, read, batch_size, counter)

    @overload
    def substitutes(
        self,
        sentence: Sentence,
        position: int,
        direction: Direction = "both",
        n: int = 10,
        *,
        special_words: bool = False,
        before: Sequence[Sentence] = (),
        cache: bool | CacheSettings = False,
    ) -> list[Substitute]: ...

    @overload
    def substitutes(
        self,
        sentence: Sentence,
        position: None = None,
        direction: Direction = "both",
        n: int = 10,
        *,
        special_words: bool = False,
        before: Sequence[Sentence] = (),
        cache: bool | CacheSettings = False,
    ) -> list[list[Substitute]]: ...

    def substitutes(
        self,
        sentence: Sentence,
        position: int | None = None,
        direction: Direction = "both",
        n: int = 10,
        *,
        special_words: bool = False,
        before: Sequence[Sentence] = (),
        cache: bool | CacheSettings = False,
    ) -> list[Substitute] | list[list[Substitute]]:
        """Find the words that the model expects at a position, most probable first. The model does not
        see the token at that position.

        Args:
            sentence: Tokens, without boundaries.
            position: Index of a token, from 0; negative indices count from the end. Without it, the result is a list
                with the words for each token.
            direction: What the model sees: the tokens before (forward), those after (backward), or both. "both" is the
                product of the two probabilities, divided by the word's frequency (by Zipf's law, to the power 0.75),
                normalized.
            n: Number of words.
            special_words: Include <S>, </S> and <UNK>. Otherwise, probabilities are normalized over the
                other words.
            before: The preceding sentences in the document.
            cache: As in :meth:`surprisal_documents`, also expect words from the preceding sentences and from the part
                of this sentence that the model sees. The result can then include unknown words.

        Raises:
            ConfigError: The position is outside the sentence, or the model does not read in this direction.
        """
        n_tokens = len(check_sentence(sentence))
        positions = range(n_tokens) if position is None else [token_index("position", position, n_tokens)]
        document = [*((other, ()) for other in before), (sentence, positions)]
        settings = cache_settings(cache, documents=True)
        words_before = None if settings is None else DocumentCache(self.model, settings, self._spelling.nats)
        wanted = Wanted([direction], n, special_words)
        *_, found = expected_words(self.computer, [document], wanted, self.start, documents=True, cache=words_before)
        words = [one[direction] for one in found]
        return words if position is None else words[0]

    def minimal_pairs(self, pairs: Iterable[tuple[Sentence, Sentence]]) -> MinimalPairScores:
        """Score pairs of sentences, the acceptable one first, as in BLiMP.

        Returns:
            The surprisal of each sentence, and the fraction of pairs whose first sentence is more probable.

        Raises:
            TextError: There are no pairs, or one is not a pair of tokenized sentences.
        """
        return score_minimal_pairs(self.computer, pairs, self.start)

    @cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self.model, self.spelling)

    def _document_cache(self, settings: CacheSettings) -> DocumentCache:
        return DocumentCache(self.model, settings, self._spelling.nats)

    def _priced(self, sentence: Surprisal) -> Surprisal:
        """Add the nats of the letters of unknown words."""
        if not sentence.is_unknown.any():  # then no spelling model is needed
            return replace(sentence, spelling_nats=np.zeros(len(sentence.tokens)))
        return add_spelling(self.model, self._spelling, sentence)


def _text_or_sentences(texts: Texts | Iterable[Sequence[Sentence]]) -> Text | Iterable[Any]:
    """Return files as a ``Text``, or sentences unchanged."""
    if isinstance(texts, Text):
        return texts
    items: Iterator[Any] = iter([texts] if isinstance(texts, str | Path) else texts)
    head = list(islice(items, 1))
    items = chain(head, items)
    if not head or not isinstance(head[0], str | Path):
        return items
    text = Text(list(items))
    try:
        _ = text.files
    except TextError as error:
        if not isinstance(texts, str):
            raise
        raise TextError(f"{error} To pass a sentence instead of a file, write [{texts[:40]!r}.split()].") from None
    return text

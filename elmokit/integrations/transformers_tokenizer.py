"""The tokenizer of ``elmokit.integrations.transformers``: texts to words, their characters and their ids.

It is a fast tokenizer: the Rust library behind those of transformers splits at special tokens, adds boundaries, cuts,
pads and keeps track of character offsets. Only the rules that split a text into words are in Python.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from elmokit.config import check_choice, encode_json, from_dict, read_json, to_dict
from elmokit.errors import needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_to_export
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, MARKS, UNKNOWN, MarkReader, encode_tokens
from elmokit.text.lexicon import Lexicon
from elmokit.text.tokenize import Spans, Tokenization, get_span_tokenizer
from elmokit.text.vocabulary import SPECIALS, Vocabulary, read_words

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import PreTokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import BatchEncoding, PreTrainedTokenizerFast

Source = str | Path | PretrainedBiLM | None
"""A path, address or name, as in :func:`elmokit.open_model`, or an opened model. None: the small English model."""

PADDING, MASK = "<PAD>", "<MASK>"
"""Tokens that no softmax predicts. Their ids follow those of the words."""


class ElmoTokenizer(PreTrainedTokenizerFast):
    """Splits texts into tokens, and converts tokens to the char ids that ELMo reads and to the ids of words.

    Create it with :meth:`from_elmokit` or ``AutoTokenizer.from_pretrained``. It has the methods of a fast tokenizer of
    transformers, with character offsets, word ids and text pairs. A pair is read as two sentences of one text:
    ``<S> first </S> <S> second </S>``. ``<MASK>`` stands for a word that :class:`ElmoForMaskedLM` is to find.

    It pads on the right only. A word that is not in the vocabulary has the id of ``<UNK>``, and its own characters.

    Args:
        vocab_file: The words, one per line.
        lexicon_file: The lexicon of a model with word or character tables of its own.
        max_chars: Char ids per token, if there is no lexicon.
        word_table: For a model that also reads the words of the vocabulary, as the included one does. The first of a
            token's char ids is then that of its word.
        tokenization: How a text is split into tokens: "treebank", as the English models were trained; or "spaces" for
            text that is tokenized already, with spaces between the tokens.
        direction: None for models that read both directions: texts get both boundaries, ``<S>`` and ``</S>``. "forward"
            for an :class:`ElmoForCausalLM`: texts get the first boundary only, so that a continuation can follow.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> encoded = ElmoTokenizer.from_elmokit()("It's raining.", return_offsets_mapping=True)
        >>> encoded.tokens(), encoded["offset_mapping"]
        (['<S>', 'It', "'s", 'raining', '.', '</S>'], [(0, 0), (0, 2), (2, 4), (5, 12), (12, 13), (0, 0)])
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "lexicon_file": "lexicon.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "char_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str | Path,
        lexicon_file: str | Path | None = None,
        max_chars: int = 50,
        tokenization: Tokenization = "treebank",
        direction: Literal["forward"] | None = None,
        word_table: bool = False,
        **kwargs: Any,
    ) -> None:
        if direction is not None:
            check_choice("direction", direction, ("forward",))
        self.vocabulary = Vocabulary(read_words(vocab_file), strict=False)
        self.lexicon: Lexicon | None = None
        if lexicon_file is not None:
            self.lexicon = from_dict(Lexicon, read_json(Path(lexicon_file)), str(lexicon_file))
        self.max_chars, self.tokenization, self.direction = max_chars, tokenization, direction
        self.word_table = word_table
        ids = token_ids(self.vocabulary)
        # Words are never cut into pieces, because none starts with this prefix. But pipelines ask for the prefix:
        # without one, they guess from spaces that a period belongs to the word before it.
        pieces = {"continuing_subword_prefix": "\ue000", "max_input_chars_per_word": max(map(len, ids))}
        backend = Tokenizer(WordPiece(ids, unk_token=UNKNOWN, **pieces))
        bos, eos = BEGIN_SENTENCE, END_SENTENCE
        backend.post_processor = TemplateProcessing(
            single=f"{bos} $A" if direction else f"{bos} $A {eos}",
            pair=f"{bos}:0 $A:0 {eos}:0 {bos}:1 $B:1 {eos}:1",
            special_tokens=[(word, self.vocabulary.ids[word]) for word in (bos, eos)],
        )
        special = {"bos_token": bos, "eos_token": eos, "unk_token": UNKNOWN, "pad_token": PADDING}
        if direction is None:
            # As in BERT, for libraries that score text with masked language models.
            special |= {"cls_token": bos, "sep_token": eos, "mask_token": MASK}
        super().__init__(
            tokenizer_object=backend,
            max_chars=max_chars,
            tokenization=tokenization,
            direction=direction,
            word_table=word_table,
            **(special | kwargs),
        )
        self._add_splitter()

    @classmethod
    def from_elmokit(
        cls,
        model: Source = None,
        *,
        direction: Literal["forward"] | None = None,
        tokenization: Tokenization = "treebank",
    ) -> ElmoTokenizer:
        """Create the tokenizer of an elmokit model.

        Args:
            model: The model.
            direction, tokenization: As in the class.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The model reads word ids instead of characters, or an argument is not valid.
        """
        opened = open_to_export(model, "ElmoTokenizer", can_align=True)
        assert opened.config.char_cnn is not None
        # Words matter to the softmax only, so a model without one needs no other words than the special ones.
        words = Vocabulary(SPECIALS) if opened.vocabulary is None else opened.vocabulary
        with tempfile.TemporaryDirectory() as folder:
            return cls(
                *_write_words(Path(folder), words, opened.lexicon),
                max_chars=opened.config.char_cnn.max_chars,
                tokenization=tokenization,
                direction=direction,
                word_table=opened.config.word_features is not None and opened.lexicon is None,
            )

    @classmethod
    def convert_to_native_format(cls, **kwargs: Any) -> dict[str, Any]:
        """Leave the arguments as they are: a saved tokenizer is a list of words, and no file of the Rust library."""
        return kwargs

    @property
    def _read(self) -> MarkReader:
        return self.vocabulary.read if self.lexicon is None else self.lexicon.read

    @property
    def vocab_size(self) -> int:
        """Number of words, the padding token and the mask not included."""
        return len(self.vocabulary)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the words, and the lexicon if there is one, and return the paths."""
        files = _write_words(Path(save_directory), self.vocabulary, self.lexicon, filename_prefix)
        return tuple(str(file) for file in files if file is not None)

    def encode_chars(self, tokens: Sequence[str]) -> Any:
        """Return the char ids of tokens, ``(tokens, chars)``, as :meth:`elmokit.Elmo.ids` encodes them.

        The mask is read like an unknown word.
        """
        words = [UNKNOWN if token == MASK else self._read(token) for token in tokens]
        if self.lexicon is not None:
            return self.lexicon.encode(words)
        if self.word_table:
            return self.vocabulary.encode_with_chars(words, self.max_chars)
        return encode_tokens(words, self.max_chars)

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        is_split_into_words: bool = False,
        return_tensors: Any = None,
        split_special_tokens: bool | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Encode texts as the base class does, and add the char ids."""
        if text_pair is not None and self.direction is not None:
            raise ValueError("An ElmoTokenizer with a direction reads single texts. For pairs, create it without one.")
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        self._splitter.is_split, self._splitter.reads_specials = is_split_into_words, not split_special_tokens
        # The splitter finds special tokens itself. The Rust library would split the text there first, and the rules for
        # words need their neighbors: a period before a mask does not end a sentence.
        encoded = super()._encode_plus(
            text, text_pair, is_split_into_words=is_split_into_words, split_special_tokens=True, **kwargs
        )
        is_single = _is_one_text(text, is_split_into_words)
        texts, pairs = ([text], [text_pair]) if is_single else (text, text_pair or [None] * len(text))
        sides = [
            (side, pair) if _is_one_text(side, is_split_into_words) else side
            for side, pair in zip(texts, pairs, strict=True)
        ]
        samples = encoded.get("overflow_to_sample_mapping", range(len(sides)))
        char_ids = [
            self._char_ids(encoding, sides[sample], is_split_into_words).tolist()
            for sample, encoding in zip(samples, encoded.encodings, strict=True)
        ]
        has_one_row = is_single and "overflow_to_sample_mapping" not in encoded
        encoded["char_ids"] = char_ids[0] if has_one_row else char_ids
        return BatchEncoding(
            dict(encoded), encoded.encodings, tensor_type=return_tensors, prepend_batch_axis=has_one_row
        )

    def _char_ids(self, encoding: Any, sides: Sequence[Any], is_split: bool) -> Any:
        """Return the char ids of one encoded text or pair of texts, ``(tokens, chars)``."""
        tokens = []
        for token, side, word, (start, stop) in zip(
            encoding.tokens, encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True
        ):
            if side is None:  # a boundary or padding
                tokens.append(token)
            else:  # the text itself, since the encoding has only <UNK> for an unknown word
                tokens.append(sides[side][word] if is_split else sides[side][start:stop])
        ids = self.encode_chars(tokens)
        ids[[mask == 0 for mask in encoding.attention_mask]] = 0
        return ids

    def _pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        padded = super()._pad(encoded_inputs, *args, **kwargs)
        if "char_ids" in padded:
            rows = [list(row) for row in padded["char_ids"]]
            zeros = [[0] * self.encode_chars([UNKNOWN]).shape[1]] * (len(padded["input_ids"]) - len(rows))
            is_right = (kwargs.get("padding_side") or self.padding_side) == "right"
            padded["char_ids"] = rows + zeros if is_right else zeros + rows
        return padded

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Accept words that have an id, which the base class marks as special, and refuse others."""
        new = [token for token in map(str, new_tokens) if self._tokenizer.token_to_id(token) is None]
        if new and hasattr(self, "_splitter"):  # which is missing while the base class adds its special tokens
            raise ValueError(f"{new[0]!r} is not a word of this model, whose words are a closed list.")
        return int(super()._add_tokens(new_tokens, special_tokens))

    def _save_pretrained(
        self, save_directory: Any, file_names: tuple[str, ...], legacy_format: Any = None, filename_prefix: Any = None
    ) -> tuple[str, ...]:
        return (*file_names, *self.save_vocabulary(str(save_directory), filename_prefix))

    def _add_splitter(self) -> None:
        """Let the Rust library call the rules that split a text, which cannot be copied or stored with it."""
        self._splitter = _Splitter(get_span_tokenizer(self.tokenization), self._read)
        self._tokenizer.pre_tokenizer = PreTokenizer.custom(self._splitter)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_splitter"]
        self._tokenizer.pre_tokenizer = None
        state["_tokenizer"] = self._tokenizer.to_str()
        self._tokenizer.pre_tokenizer = PreTokenizer.custom(self._splitter)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _tokenizer=Tokenizer.from_str(state["_tokenizer"]))
        self._add_splitter()


class _Splitter:
    """Splits texts into words and special tokens, for the Rust library."""

    boundaries = re.compile("|".join((BEGIN_SENTENCE, END_SENTENCE, PADDING)))
    words = re.compile("|".join((UNKNOWN, MASK)))

    def __init__(self, spans: Spans, read: MarkReader) -> None:
        self._spans, self._read = spans, read
        self.is_split = False
        """Texts are words already."""
        self.reads_specials = True
        """``<S>``, ``<MASK>`` and so on in a text stand for special tokens."""

    def pre_tokenize(self, text: Any) -> None:
        """Split a text, as the interface of the Rust library wants it."""
        if self.is_split:
            text.split(lambda _, piece: [self._as_read(piece)])
        else:
            text.split(lambda _, piece: [self._as_read(piece[slice(*span)]) for span in self.spans(str(piece))])

    def _as_read(self, piece: Any) -> Any:
        """Return a token as it is looked up; its offsets stay those of the text."""
        token = str(piece)
        read = self._read(token)
        for mark in set(token) - set(read):
            piece.replace(mark, MARKS[ord(mark)])
        return piece

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of the tokens of a text."""
        result: list[tuple[int, int]] = []
        boundaries = [match.span() for match in self.boundaries.finditer(text)] if self.reads_specials else []
        end = 0
        for start, stop in [*boundaries, (len(text), len(text))]:
            result += [(end + first, end + last) for first, last in self._words(text[end:start])]
            result.append((start, stop))
            end = stop
        return [(start, stop) for start, stop in result if start < stop]

    def _words(self, text: str) -> list[tuple[int, int]]:
        """Return the offsets of words, with masks and ``<UNK>`` among them."""
        specials = list(self.words.finditer(text)) if self.reads_specials else []
        # They are split like the words that they stand for.
        spans = list(self._spans(self.words.sub(lambda match: "x" * len(match[0]), text) if specials else text))
        edges = {edge for match in specials for edge in match.span()}
        result = []
        for start, stop in spans:
            cuts = [start, *sorted(edge for edge in edges if start < edge < stop), stop]
            result += list(itertools.pairwise(cuts))
        return result


def token_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of words and special tokens. Those that the vocabulary lacks come after its words."""
    ids, n_words = dict(vocabulary.ids), len(vocabulary)
    for word in (PADDING, MASK, UNKNOWN):
        ids.setdefault(word, n_words + sum(i >= n_words for i in ids.values()))
    return ids


def _is_one_text(text: Any, is_split_into_words: bool) -> bool:
    """Check whether this is a text, or a list or tuple of its words, and not several texts or a pair."""
    return isinstance(text, str) or (is_split_into_words and all(isinstance(word, str) for word in text))


def _write_words(
    folder: Path, words: Vocabulary, lexicon: Lexicon | None, prefix: str | None = None
) -> tuple[Path, Path | None]:
    """Write the files of a tokenizer, as in an elmokit directory, and return their paths."""
    listed, table = (folder / f"{f'{prefix}-' if prefix else ''}{name}" for name in ("vocab.txt", "lexicon.json"))
    listed.write_text(words.to_text(), encoding="utf-8", newline="\n")
    if lexicon is None:
        return listed, None
    table.write_text(encode_json(to_dict(lexicon), indent=None), encoding="utf-8")
    return listed, table

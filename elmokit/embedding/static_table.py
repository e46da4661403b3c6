"""Export sentence vectors as a table of word vectors, in the layout of model2vec: :func:`export_static`.

Sentence vectors from layer 0 need no network: a word has the same vector everywhere, so all of them fit in a table. A
program that looks words up and averages them embeds several times as many words per second as elmokit, which computes
the vectors of new words from their characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.config import encode_json, read_json
from elmokit.embedding.sentence_vectors import SentenceEmbedder, words_only
from elmokit.errors import ConfigError, ModelError, OutputError, TextError
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.tensor_file import write_tensor_file
from elmokit.storage.text_files import expand_user
from elmokit.text.batching import check_texts
from elmokit.text.marks import MarkReader
from elmokit.text.vocabulary import SPECIALS

UNKNOWN = "[UNK]"
"""The token of words that are not in the table. model2vec leaves it out of a sentence's mean."""
ACRONYM = r"(?:\p{L}\.){2,}"
CLITICS = "n't|'(?:s|m|d|re|ve|ll)"
"""What the Penn Treebank splits off the end of a word."""
LETTER = r"[\p{L}\p{M}\p{N}]"
WORD = f"{LETTER}+(?:[-.]{LETTER}+)*"
PLAIN = re.compile(rf"[^\W_]+(?:[-.][^\W_]+)*|(?:[^\W\d_]\.){{2,}}|{CLITICS}|\S")
"""Words that the patterns above keep whole, in the syntax of Python's own module."""
MAX_TOKENS = 512
"""The number of tokens after which model2vec cuts a text by default."""
PARTS = ("model.safetensors", "tokenizer.json", "config.json", "modules.json")
"""The files of a table."""
MODEL_TYPE = "model2vec"
"""What ``config.json`` calls a table."""


def export_static(
    embedder: SentenceEmbedder,
    directory: str | Path,
    words: Iterable[str] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the sentence vectors of layer 0 as a static word table that ``model2vec`` loads.

    The mean of a sentence's rows points in the same direction as its vector from :meth:`SentenceEmbedder.embed`, up to
    the rounding of float16, if all of its words are in the table and it is split into the same tokens. Cosines are
    therefore the same; lengths are not. Words that are not in the table are left out, where elmokit spells them: give
    ``words`` if your text has other words than the model's vocabulary.

    Args:
        embedder: The model, with its pooling. Weights and whitening become part of the table.
        directory: The directory to write: ``model.safetensors``, ``tokenizer.json``, ``config.json`` and
            ``modules.json``.
        words: The words of the table. None: those of the model's vocabulary.
        overwrite: Replace an existing table.

    Returns:
        The directory.

    Raises:
        ConfigError: The pooling uses other layers than layer 0; or there is no vocabulary, and no words are given.
        TextError: There is no word, or one has a space.
        OutputError: The directory exists and may not be overwritten, is not such a table, or cannot be written.

    Example:
        >>> export_static(SentenceEmbedder.from_pretrained(), "en-mini-static")
        >>> from model2vec import StaticModel
        >>> StaticModel.from_pretrained("en-mini-static").encode(["A man plays the guitar."]).shape
        (1, 192)
    """
    directory = expand_user(directory)
    if not embedder.pooling.is_context_free:
        raise ConfigError(
            f"layers is {embedder.pooling.layers!r}, but a static table needs layer 0: the vectors of other layers "
            "depend on the sentence."
        )
    vocabulary = embedder.elmo.model.vocabulary
    if words is None:
        words = [] if vocabulary is None else vocabulary.words
    check_texts(words)
    # With "sif", tokens without a letter or digit have no weight.
    counts_all = embedder.pooling.weighting == "mean"
    listed = [
        word
        for word in dict.fromkeys(words)
        if word and word not in SPECIALS and (counts_all or words_only([word, "a"])[0])
    ]
    if spaced := next((word for word in listed if any(map(str.isspace, word))), None):
        raise TextError(
            f"The table has one row for each word, and {spaced!r} has a space. List the words of a text with: "
            "elmokit vocab TEXT WORDS"
        )
    if not listed:
        raise TextError("There is no word with a letter or digit to make a table of: give words (--words FILE).")
    check_table_path(directory, overwrite)
    table = np.concatenate([np.zeros((1, embedder.dim), np.float32), embedder.word_rows(listed)])
    # Cosines are independent of the scale; float16 is most exact where numbers are near 1.
    table /= np.abs(table).max() or 1
    config = {
        "model_type": MODEL_TYPE,
        "architectures": ["StaticModel"],
        "normalize": True,
        "max_length": MAX_TOKENS,
        "hidden_dim": embedder.dim,
        "embedding_dtype": "float16",
    }
    modules = [
        {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    with atomic_write(directory, overwrite, folder=True) as folder:
        write_tensor_file({"embeddings": table.astype(np.float16)}, folder / "model.safetensors")
        for name, content in (
            ("tokenizer.json", _tokenizer([UNKNOWN, *listed])),
            ("config.json", config),
            ("modules.json", modules),
        ):
            (folder / name).write_text(encode_json(content, indent=1), encoding="utf-8")
    return directory


def check_table_path(directory: Path, overwrite: bool) -> None:
    """Check before any work is done that a table can be written to a directory, which may hold another table."""
    check_output_path(directory, overwrite, folder=True, parts=PARTS)
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    # Models of other programs, and those of elmokit, have files of the same names.
    try:
        is_table = read_json(directory / "config.json").get("model_type") == MODEL_TYPE
    except ModelError:
        is_table = False
    if not is_table:
        raise OutputError(f"{directory} is not a table of model2vec, so it is not overwritten.")


def _tokenizer(words: list[str]) -> dict[str, Any]:
    """Describe a tokenizer of the ``tokenizers`` library that looks up whole words, split as in the Penn Treebank."""
    # The first of these that fits at a position is a token: "Mr." and "3,000", if they are listed; "U.S."; the "ca" of
    # "can't", and its "n't"; a word.
    pattern = f"{_listed(words)}{ACRONYM}|{WORD}?(?=n't)|{CLITICS}|{WORD}|[^\\s]"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Replace", "pattern": {"String": chr(mark)}, "content": plain}
                for mark, plain in MarkReader(chars=set().union(*words)).marks.items()
            ],
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Removed",
            "invert": True,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: row for row, word in enumerate(words)}, "unk_token": UNKNOWN},
    }


def _listed(words: Iterable[str]) -> str:
    """Return a pattern of the words that those for all words would split, longest first; or nothing."""
    split = sorted((word for word in words if word != UNKNOWN and not PLAIN.fullmatch(word)), key=len, reverse=True)
    # Within no longer word. A period at the end of a text is its own token.
    patterns = (re.escape(word) + (r"(?!\s*\z)" if word.endswith(".") else "") for word in split)
    return f"(?<!{LETTER})(?:{'|'.join(patterns)})(?!{LETTER})|" if split else ""

"""Write sentence vectors of layer 0 as a static word table, with model2vec.

    python recipes/static_table.py en-mini-static
    python recipes/static_table.py my-static --model my-elmo --words words.txt --pool trained

In layer 0, a word has the same vector everywhere, so sentence vectors fit in a table. model2vec looks words up and
averages them, several times as fast as elmokit spells them:

    StaticModel.from_pretrained("en-mini-static").encode(["A man plays the guitar."])

has the same cosines as ``SentenceEmbedder``, up to the rounding of float16, if all words of a text are in the table.
Words that are not in it are left out, so list those of your text (``--words``) if it has others than the model's
vocabulary. Texts are split as in the Penn Treebank. Measured in results/similarity.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from elmokit import Elmo, SentenceEmbedder
from elmokit.text.marks import MarkReader
from elmokit.text.vocabulary import SPECIALS

UNKNOWN = "[UNK]"  # model2vec leaves it out of a sentence's mean
ACRONYM = r"(?:\p{L}\.){2,}"
CLITICS = "n't|'(?:s|m|d|re|ve|ll)"  # what the Penn Treebank splits off the end of a word
LETTER = r"[\p{L}\p{M}\p{N}]"
WORD = f"{LETTER}+(?:[-.]{LETTER}+)*"
# Words that these patterns keep whole, in the syntax of Python's own module.
PLAIN = re.compile(rf"[^\W_]+(?:[-.][^\W_]+)*|(?:[^\W\d_]\.){{2,}}|{CLITICS}|\S")


def tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer that looks up whole words, split as in the Penn Treebank."""
    result = Tokenizer(WordLevel({word: row for row, word in enumerate(words)}, unk_token=UNKNOWN))
    marks = MarkReader(chars=set().union(*words)).marks
    # Wide letters and other forms stay: a step for each of them would double the time of a sentence.
    steps = [normalizers.Replace(chr(mark), plain) for mark, plain in marks.items()]
    result.normalizer = normalizers.Sequence([normalizers.NFC(), *steps])
    # The first of these that fits at a position is a token: "Mr." and "3,000", if they are listed; "U.S."; the "ca" of
    # "can't", and its "n't"; a word.
    pattern = f"{listed(words)}{ACRONYM}|{WORD}?(?=n't)|{CLITICS}|{WORD}|[^\\s]"
    result.pre_tokenizer = Split(Regex(pattern), "removed", invert=True)
    return result


def listed(words: Iterable[str]) -> str:
    """Return a pattern of the words that those for all words would split, longest first; or nothing."""
    split = sorted((word for word in words if word != UNKNOWN and not PLAIN.fullmatch(word)), key=len, reverse=True)
    # Within no longer word. A period at the end of a text is its own token.
    patterns = (re.escape(word) + (r"(?!\s*\z)" if word.endswith(".") else "") for word in split)
    return f"(?<!{LETTER})(?:{'|'.join(patterns)})(?!{LETTER})|" if split else ""


def static_model(embedder: SentenceEmbedder, words: Iterable[str]) -> StaticModel:
    """Return the table: a row for each word, and one of zeros for all others."""
    if not embedder.pooling.is_context_free:
        raise SystemExit("A static table needs layer 0: the vectors of other layers depend on the sentence.")
    counts_all = not embedder.pooling.needs_frequencies  # with "sif", tokens without a letter or digit have no weight
    kept = [
        word
        for word in dict.fromkeys(words)
        if word and word not in SPECIALS and (counts_all or any(map(str.isalnum, word)))
    ]
    table = np.concatenate([np.zeros((1, embedder.dim), np.float32), embedder.word_rows(kept)])
    table /= np.abs(table).max() or 1  # cosines do not depend on the scale; float16 is most exact near 1
    return StaticModel(table.astype(np.float16), tokenizer([UNKNOWN, *kept]), normalize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="directory for the table")
    parser.add_argument("--model", help="the model  [default: the one in the package]")
    parser.add_argument("--words", type=Path, help="the words, one on each line  [default: the model's vocabulary]")
    parser.add_argument("--pool", help="mean, sif, whitened or trained  [default: whitened if the model stores that]")
    given = parser.parse_args()
    elmo = Elmo.from_pretrained(given.model)
    embedder = SentenceEmbedder(elmo) if given.pool is None else SentenceEmbedder.by_name(elmo, given.pool)
    if given.words is not None:
        words = given.words.read_text(encoding="utf-8").splitlines()
    else:
        words = elmo.model.vocabulary.words if elmo.model.vocabulary is not None else []
    static_model(embedder, words).save_pretrained(given.out)


if __name__ == "__main__":
    main()

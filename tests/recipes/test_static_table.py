"""The recipe that writes a static word table: it has the cosines of the sentence vectors, and splits text alike."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import SentenceEmbedder

StaticModel = pytest.importorskip("model2vec").StaticModel

TEXT = "This text isn't the U.S. Senate's, but a well-known one: \u201cit\u2019s 3.5 km\u201d."
TOKENS = ["This", "text", "is", "n't", "the", "U.S.", "Senate", "'s", "but", "a", "well-known", "one", "it", "'s"]
TOKENS += ["3.5", "km"]


@pytest.mark.parametrize("pool", ["whitened", "trained", "mean"])
def test_a_table_of_some_words_has_the_cosines_of_the_sentence_vectors(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipes import static_table

    monkeypatch.chdir(tmp_path)
    marks = [",", ":", '"', "."] if pool == "mean" else []  # which count there
    Path("words.txt").write_text("\n".join(["", "<S>", *TOKENS, *marks]), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["static_table.py", "static", "--words", "words.txt", "--pool", pool])
    static_table.main()
    static = StaticModel.from_pretrained("static")
    (ids,) = static.tokenize([TEXT])
    tokens = [static.tokens[number] for number in ids]
    assert [token for token in tokens if token not in marks] == TOKENS
    elmo = SentenceEmbedder.from_pretrained().elmo
    vector = SentenceEmbedder.by_name(elmo, pool).embed([tokens])
    # 2^-11 is the rounding of float16, relative to the largest number of the table.
    np.testing.assert_allclose(static.encode([TEXT]), vector / np.linalg.norm(vector), atol=20 * 2**-11)


def test_every_word_of_the_vocabulary_is_found_in_a_text() -> None:
    from recipes import static_table

    embedder = SentenceEmbedder.from_pretrained()
    tokenizer = static_table.tokenizer([static_table.UNKNOWN, *embedder.elmo.model.vocabulary.words[3:]])
    words = [word for word in tokenizer.get_vocab() if any(map(str.isalnum, word)) and word != static_table.UNKNOWN]
    assert "Mr." in words
    assert [word for word in words if tokenizer.encode(f"a {word} b").tokens != ["a", word, "b"]] == []

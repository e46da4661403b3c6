"""What a language model refuses: the class of the error, and what its text must mention."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elmokit import Elmo, LanguageModel, save_model
from elmokit.engine.architecture import PRESETS
from elmokit.errors import ConfigError, ModelNotFoundError, TextError
from elmokit.lm.bilm_tf_perplexity import bilm_tf_perplexity
from elmokit.lm.perplexity import perplexity
from elmokit.lm.word_cache import CacheSettings
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from tests.conftest import random_model

TEXT = [["the", "cat", "sat"], ["dog"]]


def without_softmax() -> PretrainedBiLM:
    model = random_model()
    return model.replace(softmax=None)


def of_one_direction() -> LanguageModel:
    return LanguageModel(random_model(replace(PRESETS["tiny"], bidirectional=False)))


Call = Callable[[LanguageModel], Any]
ROWS: list[tuple[str, Call, type[Exception], str]] = [
    ("a name", lambda _: LanguageModel("en-mini"), ConfigError, "'en-mini'"),
    ("an Elmo", lambda lm: LanguageModel(Elmo(lm.model)), ConfigError, "Expected a model"),
    ("an unknown start", lambda lm: LanguageModel(lm.model, start="cold"), ConfigError, "start is 'cold'"),
    ("an unknown start of a call", lambda lm: lm.perplexity(TEXT, start="cold"), ConfigError, "start is 'cold'"),
    ("no softmax", lambda _: perplexity(without_softmax(), TEXT), ModelNotFoundError, "has no softmax"),
    ("a string", lambda lm: lm.surprisal("The cat sat"), TextError, "'The cat sat'"),
    ("a sentence that is a string", lambda lm: lm.surprisal(["the cat"]), TextError, "'the cat'"),
    ("no file", lambda lm: lm.perplexity("The cat sat"), TextError, "['The cat sat'.split()]"),
    ("no sentence", lambda lm: lm.perplexity([]), TextError, "No sentence"),
    ("no pair", lambda lm: lm.minimal_pairs([]), TextError, "no sentence pairs"),
    ("a pair of three", lambda lm: lm.minimal_pairs([(["a"], ["b"], ["c"])]), ValueError, "too many values"),
    ("a pair that is a string", lambda lm: lm.minimal_pairs(["ab"]), TextError, "'a'"),
    ("a cache without documents", lambda lm: lm.perplexity(TEXT, cache=True), ConfigError, "documents=True"),
    ("words without documents", lambda lm: lm.word_surprisal(["a"], cache=True), ConfigError, "documents=True"),
    ("a large theta", lambda _: CacheSettings(theta=41), ConfigError, "theta is 41"),
    ("no cache", lambda _: CacheSettings(size=0), ConfigError, "size is 0"),
    ("no batch", lambda lm: lm.surprisal(TEXT, batch_tokens=0), ConfigError, "batch_tokens is 0"),
    *(
        (f"position {position}", lambda lm, position=position: lm.substitutes(TEXT[0], position), ConfigError, name)
        for position, name in (
            (3, "position is 3"),
            (-4, "position is -4"),
            (1.0, "position is 1.0"),
            (True, "position is True"),
        )
    ),
    ("no position", lambda lm: lm.substitutes([], 0), ConfigError, "position is 0"),
    ("an unknown direction", lambda lm: lm.substitutes(TEXT[0], 0, "left"), ConfigError, "direction is 'left'"),
    ("no such direction", lambda _: of_one_direction().substitutes(TEXT[0], 0, "both"), ConfigError, "'forward'"),
    ("no substitute", lambda lm: lm.substitutes(TEXT[0], 0, n=0), ConfigError, "n is 0"),
    *(
        (f"rows {rows}", lambda lm, rows=rows: lm.bilm_tf_perplexity(TEXT, rows), ConfigError, f"batch_size is {rows}")
        for rows in (0, 1.0, True)
    ),
    ("too many rows", lambda lm: lm.bilm_tf_perplexity(TEXT, 3), TextError, "2 sentences do not fill a batch of 3"),
    *(
        (f"rows of {text}", lambda lm, text=text: bilm_tf_perplexity(lm.model, text, 1), TextError, "Expected")
        for text in ("the cat", ["the cat"], [["the", 1]])
    ),
    ("no spelling", lambda lm: perplexity(lm.model, TEXT).bits_per_character, ValueError, "spelling"),
]


@pytest.mark.parametrize(("call", "kind", "name"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_arguments_without_a_meaning_are_refused(
    call: Call, kind: type[Exception], name: str, model: PretrainedBiLM
) -> None:
    lm = LanguageModel(model)
    with pytest.raises(kind, match=re.escape(name)):
        call(lm)


def test_a_file_without_its_softmax_or_a_sentence_is_named(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    with pytest.raises(ModelNotFoundError, match="cannot predict words"):
        LanguageModel.from_pretrained(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(TextError, match=r"empty\.txt contains no sentence"):
        list(Text(tmp_path / "empty.txt", kind="bilm-tf").token_lists())

"""What the letters of unknown words cost."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from elmokit import LanguageModel, open_model, save_model
from elmokit.errors import ConfigError, FormatError
from elmokit.lm.spelling import LetterSpelling, NgramSpelling, Spelling, spelling_of
from elmokit.pretrained.letter_model import EDGE, N_SYMBOLS, LetterModel
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import Vocabulary


def random_letters() -> LetterModel:
    rng = np.random.default_rng(1)
    shapes = [(N_SYMBOLS, 4), (8, 12), (8,), (4, 8), (N_SYMBOLS,)]
    return LetterModel(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


@pytest.fixture
def with_letters(model: PretrainedBiLM) -> PretrainedBiLM:
    return model.replace(letters=random_letters())


@pytest.mark.parametrize("spelling", [LetterSpelling(random_letters()), NgramSpelling(["the", "cat", "naïve"])])
@pytest.mark.parametrize("word", ["", "c", "ca", "naï", "zzzzzzzzzzzz"])
def test_the_probability_of_a_beginning_is_that_of_all_strings_that_begin_so(spelling: Spelling, word: str) -> None:
    symbols = tuple(word.encode())
    longer = [2.0 ** -spelling.symbol_bits((*symbols, symbol)) for symbol in range(N_SYMBOLS)]
    bits = spelling.symbol_bits(symbols) if symbols else 0.0
    assert sum(longer) == pytest.approx(2.0**-bits, rel=1e-5)
    assert longer[EDGE] == pytest.approx(2.0 ** -spelling.bits(word), rel=1e-5)


def test_a_word_costs_the_sum_of_its_letters() -> None:
    letters = random_letters()
    context, nats = [EDGE, EDGE, EDGE], 0.0
    for symbol in [*b"na", EDGE]:
        nats -= letters.log_probabilities(np.array([context[-3:]]))[0, symbol]
        context.append(symbol)
    spelling = LetterSpelling(letters)
    assert spelling.nats("na") == pytest.approx(nats, rel=1e-5)
    assert spelling.bits("<unk>") == 0
    assert pickle.loads(pickle.dumps(spelling)).bits("na") == spelling.bits("na")


def test_a_model_spells_with_its_letters_or_else_with_its_vocabulary(
    model: PretrainedBiLM, with_letters: PretrainedBiLM
) -> None:
    def spelled(model: PretrainedBiLM, **how: str) -> float:
        lm = LanguageModel(model, **how)
        (sentence,) = lm.surprisal([["the", "zebra"]])
        result = lm.perplexity([["the", "zebra"]])
        assert result.spelling_bits == pytest.approx(sentence.spelling_nats[2] / math.log(2))
        assert str(result.spelled_by) in result.to_text()
        return float(sentence.spelling_nats[2])

    by_letters, by_words = (spelled(with_letters, spelling=name) for name in ("model", "vocabulary"))
    assert by_letters == spelling_of(with_letters).nats("zebra")
    assert by_letters == spelled(with_letters)
    assert by_words == spelled(model)
    assert by_words != by_letters
    with pytest.raises(ConfigError, match="spelling"):
        LanguageModel(model, spelling="letters")


def test_letters_are_saved_and_belong_to_their_vocabulary(with_letters: PretrainedBiLM, tmp_path: Path) -> None:
    for storage, tolerance in (("float32", 0.0), ("float16", 1e-2), ("int8", 0.1)):
        save_model(with_letters, tmp_path / storage, storage=storage)
        found = spelling_of(open_model(tmp_path / storage)).nats("zebra")
        assert found == pytest.approx(spelling_of(with_letters).nats("zebra"), rel=tolerance)
    other = Vocabulary([*with_letters.vocabulary.words])
    assert with_letters.replace(vocabulary=other).letters is None
    assert with_letters.replace(card={}).letters is not None


def test_letters_that_overflow_are_an_error() -> None:
    letters = random_letters()
    with pytest.raises(FormatError, match="letter model"):
        LetterSpelling(dataclasses.replace(letters, output_weight=letters.output_weight * np.float32(1e38))).bits("na")


def test_letters_of_unknown_words_cost_less_in_the_included_model() -> None:
    model = open_model()
    names = ["Zbigniew", "Wyalusing", "1,234.5", "chimney-piece", "leukocytes"]
    by_letters, by_words = (sum(map(spelling_of(model, name).bits, names)) for name in ("model", "vocabulary"))
    assert by_letters < by_words

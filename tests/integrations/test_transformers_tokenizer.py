"""The tokenizer for transformers: offsets, pairs, masks and what pipelines ask of a fast tokenizer."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import Elmo, PretrainedBiLM
from elmokit.text.characters import encode_tokens
from elmokit.text.tokenize import Tokenization, get_tokenizer
from tests.conftest import random_model
from tests.helpers.hosts import need_host

need_host("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from elmokit.integrations.transformers import ElmoTokenizer  # noqa: E402

TOKENIZERS = {name: ElmoTokenizer.from_elmokit(random_model(), tokenization=name) for name in ("treebank", "spaces")}  # type: ignore[arg-type]


@given(
    st.text(st.sampled_from("ab .,'\"!?()-\t\u00a0é😀`:%$/&n't"), max_size=40), st.sampled_from(["treebank", "spaces"])
)
def test_words_are_those_of_the_rules_for_tokens(text: str, tokenization: Tokenization) -> None:
    tokenizer = TOKENIZERS[tokenization]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert tokenizer.is_fast
    words = [text[start:stop] for start, stop in encoded["offset_mapping"]]
    assert words == get_tokenizer(tokenization)(text)
    np.testing.assert_array_equal(np.reshape(encoded["char_ids"], (-1, 50)), encode_tokens(words, 50))


def test_tokenizer_pads_char_ids_on_the_side_of_the_words(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    tokenizer.padding_side = "left"
    padded = tokenizer.pad([tokenizer("the cat"), tokenizer("cat")], return_tensors="np")
    np.testing.assert_array_equal((padded["char_ids"] > 0).any(axis=-1), padded["attention_mask"] > 0)


def test_tokenizer_returns_the_char_ids_of_elmo(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    sentences = [["the", "cat", "sat", "on", "the", "mat", "."], ["the", "zebra", "ran", "."], [], ["a", "cat"]]
    texts = tokenizer([" ".join(words) for words in sentences], return_tensors="np", padding=True)
    lists = tokenizer(sentences, return_tensors="np", padding=True, is_split_into_words=True)
    for name in ("input_ids", "char_ids", "attention_mask"):
        np.testing.assert_array_equal(texts[name], lists[name])
    np.testing.assert_array_equal(texts["char_ids"], Elmo(model).ids(sentences))
    assert tokenizer.convert_ids_to_tokens(texts["input_ids"][1]) == (
        ["<S>", "the", "<UNK>", "ran", ".", "</S>"] + ["<PAD>"] * 3
    )
    assert tokenizer.decode(texts["input_ids"][3], skip_special_tokens=True) == "cat"


def test_padding_is_no_text_of_another_program(model: PretrainedBiLM) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ElmoTokenizer.from_elmokit(model)(["the cat sat", "cat"], padding=True)


def test_tokenizer_cuts_texts_and_marks_boundaries(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    cut = tokenizer("the cat sat on the mat .", truncation=True, max_length=4, return_special_tokens_mask=True)
    assert tokenizer.convert_ids_to_tokens(cut["input_ids"]) == ["<S>", "the", "cat", "</S>"]
    assert cut["special_tokens_mask"] == [1, 0, 0, 1]
    assert len(cut["char_ids"]) == 4
    assert tokenizer("the cat", add_special_tokens=False)["input_ids"] == [3, 5]
    left = ElmoTokenizer.from_elmokit(model)
    left.truncation_side = "left"
    cut = left("the cat sat on the mat .", truncation=True, max_length=4)
    assert left.convert_ids_to_tokens(cut["input_ids"]) == ["<S>", "mat", ".", "</S>"]
    np.testing.assert_array_equal(cut["char_ids"], Elmo(model).ids([["mat", "."]])[0])


def test_a_pair_is_two_sentences_of_one_text(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    pair = tokenizer("the cat", "on zebra ran")
    assert pair.tokens() == ["<S>", "the", "cat", "</S>", "<S>", "on", "<UNK>", "ran", "</S>"]
    assert pair.sequence_ids() == [None, 0, 0, None, None, 1, 1, 1, None]
    first, second = (Elmo(model).ids([words])[0] for words in (["the", "cat"], ["on", "zebra", "ran"]))
    np.testing.assert_array_equal(pair["char_ids"], np.concatenate([first, second]))
    batch = tokenizer(["the cat", "the"], ["on zebra ran", "a"], padding=True, return_tensors="np")
    np.testing.assert_array_equal(batch["char_ids"][0], pair["char_ids"])
    np.testing.assert_array_equal(batch["attention_mask"][1], [1, 1, 1, 1, 1, 1, 0, 0, 0])
    assert not batch["char_ids"][1][6:].any()
    tuples = tokenizer([("the cat", "on zebra ran")])
    np.testing.assert_array_equal(tuples["char_ids"][0], pair["char_ids"])


def test_a_mask_is_split_off_like_a_word() -> None:
    tokenizer = TOKENIZERS["treebank"]
    encoded = tokenizer("Mr. <MASK> ate. It's the <MASK>'s mat, <MASK>.", return_offsets_mapping=True)
    text = tokenizer("Mr. zebraa ate. It's the zebraa's mat, zebraa.", return_offsets_mapping=True)
    assert encoded["offset_mapping"] == text["offset_mapping"]
    assert encoded["input_ids"].count(tokenizer.mask_token_id) == 3
    # What is read at a mask is an unknown word.
    np.testing.assert_array_equal(encoded["char_ids"][2], encode_tokens(["<UNK>"], 50)[0])
    assert tokenizer("un<MASK>able<UNK>", add_special_tokens=False).tokens() == ["<UNK>", "<MASK>", "<UNK>", "<UNK>"]
    assert tokenizer.decode(tokenizer("the <MASK> ran")["input_ids"]) == "<S> the <MASK> ran </S>"


def test_boundaries_in_a_text_end_its_sentences() -> None:
    tokenizer = TOKENIZERS["treebank"]
    assert tokenizer("the cat.</S><S>on cat.", add_special_tokens=False).tokens() == (
        ["the", "cat", ".", "</S>", "<S>", "on", "cat", "."]
    )
    as_text = tokenizer(
        "the </S> cat", add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    assert as_text["offset_mapping"] == [(0, 3), (4, 5), (5, 7), (7, 8), (9, 12)]


def test_words_that_are_given_stay_whole(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    words = ["New York", "can't", ".", "etc."]
    encoded = tokenizer(words, is_split_into_words=True)
    assert encoded.word_ids() == [None, 0, 1, 2, 3, None]
    np.testing.assert_array_equal(encoded["char_ids"], Elmo(model).ids([words])[0])
    pair = tokenizer([words], [["the", "zebra"]], is_split_into_words=True)
    np.testing.assert_array_equal(pair["char_ids"][0][8], encode_tokens(["zebra"], 50)[0])


def test_what_overflows_comes_in_more_rows(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    rows = tokenizer(
        ["the cat", "a zebra sat on the mat"],
        max_length=5,
        stride=1,
        truncation=True,
        padding=True,
        return_overflowing_tokens=True,
        return_tensors="np",
    )
    assert rows["overflow_to_sample_mapping"].tolist() == [0, 1, 1, 1]
    expected = [["the", "cat"], ["a", "zebra", "sat"], ["sat", "on", "the"], ["the", "mat"]]
    np.testing.assert_array_equal(rows["char_ids"], Elmo(model).ids(expected))
    single = tokenizer("a zebra sat on", max_length=4, truncation=True, return_overflowing_tokens=True)
    np.testing.assert_array_equal(single["char_ids"], Elmo(model).ids([["a", "zebra"], ["sat", "on"]]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))])
def test_tokenizers_can_be_copied_and_sent_to_other_processes(copied: object) -> None:
    tokenizer = TOKENIZERS["treebank"]
    again = copied(tokenizer)  # type: ignore[operator]
    text = 'He said "zebras aren\'t here".'
    assert again(text).tokens() == tokenizer(text).tokens()
    assert again(text)["char_ids"] == tokenizer(text)["char_ids"]
    assert again.mask_token_id == tokenizer.mask_token_id


SPELLINGS = {
    "I don\u2019t know\u2014it\u2019s \u201cso\u201d\u2026": "I don't know--it's \"so\"...",
    "The cafe\u0301s of \uff21nna \ufb01t.": "The caf\u00e9s of Anna fit.",
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_both_spellings_of_a_text_have_the_same_ids(text: str) -> None:
    tokenizer = ElmoTokenizer.from_elmokit()
    other, plain = tokenizer(text, return_offsets_mapping=True), tokenizer(SPELLINGS[text])
    assert (other["input_ids"], other["char_ids"]) == (plain["input_ids"], plain["char_ids"])
    words = [text[start:stop] for start, stop in other["offset_mapping"][1:-1]]
    assert words == get_tokenizer("treebank")(text)
    one = tokenizer(words, is_split_into_words=True)
    assert one["input_ids"] == plain["input_ids"]

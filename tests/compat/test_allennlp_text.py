"""Words to AllenNLP's character ids."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from elmokit.compat.allennlp import (
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    batch_to_ids,
    create_elmo_embeddings_from_vocab,
)
from elmokit.text.characters import encode_tokens
from tests.helpers.allennlp_files import write_files


def padded(*ids: int) -> list[int]:
    return [*ids, *[261] * (50 - len(ids))]


def test_words_become_the_published_ids() -> None:
    ids = ELMoCharacterMapper().convert_word_to_char_ids
    assert ids("<S>") == padded(259, 257, 260)
    assert ids("</S>") == padded(259, 258, 260)
    assert ids("First") == padded(259, 71, 106, 115, 116, 117, 260)
    assert ids(chr(256) + "t") == padded(259, 197, 129, 117, 260)
    assert ids("") == padded(259, 260)
    assert ids("x" * 48)[-2:] == [121, 260]
    assert ids("x" * 60) == ids("x" * 48)
    assert ids("é" * 30)[1:-1] == [196, 170] * 24


def test_added_tokens_have_an_id_of_their_own_and_mappers_compare_by_them() -> None:
    mapper = ELMoCharacterMapper({"<first>": 1})
    assert mapper.convert_word_to_char_ids("<first>") == padded(259, 2, 260)
    assert mapper == ELMoCharacterMapper({"<first>": 1})
    assert mapper != ELMoCharacterMapper()
    assert mapper.beginning_of_sentence_characters == [258, 256, 259, *[260] * 47]
    assert mapper.end_of_sentence_characters == [258, 257, 259, *[260] * 47]
    assert (mapper.max_word_length, mapper.padding_character) == (50, 260)
    # The method can also be called on the class.
    assert ELMoCharacterMapper.convert_word_to_char_ids("a") == padded(259, 98, 260)


def test_indexer_has_the_methods_of_2_10_and_0_9() -> None:
    indexer = ELMoTokenCharactersIndexer()
    tokens = [SimpleNamespace(text="Second"), SimpleNamespace(text=".")]
    expected = [padded(259, 84, 102, 100, 112, 111, 101, 260), padded(259, 47, 260)]
    new = indexer.tokens_to_indices(tokens, None)
    assert new == {"elmo_tokens": expected}
    assert indexer.tokens_to_indices(["Second", "."], None, "elmo") == {"elmo": expected}
    tensor = indexer.as_padded_tensor_dict(new, {"elmo_tokens": 3})["elmo_tokens"]
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == [*expected, [0] * 50]
    assert indexer.as_padded_tensor({"elmo": expected}, {"elmo": 3}, {})["elmo"].tolist() == tensor.tolist()
    assert indexer.get_padding_lengths(new) == {"elmo_tokens": 2}
    assert ELMoTokenCharactersIndexer(token_min_padding_length=4).get_padding_lengths(new) == {"elmo_tokens": 4}


def test_indexer_has_the_methods_of_0_4() -> None:
    indexer = ELMoTokenCharactersIndexer()
    ids = indexer.token_to_indices(SimpleNamespace(text="."), None)
    assert ids == padded(259, 47, 260)
    assert indexer.get_padding_lengths(ids) == {}
    assert indexer.get_padding_token() == []
    assert indexer.pad_token_sequence([ids], 2, {}) == [ids, [0] * 50]
    assert indexer.pad_token_sequence([ids, ids], 1, {}) == [ids]


def test_batch_to_ids_pads_with_zero_rows() -> None:
    ids = batch_to_ids([["First", "."], ["<S>"], []])
    assert ids.dtype == torch.int64
    assert ids.shape == (3, 2, 50)
    assert ids[0, 0].tolist() == padded(259, 71, 106, 115, 116, 117, 260)
    assert ids[1].tolist() == [padded(259, 257, 260), [0] * 50]
    assert not ids[2].any()
    assert batch_to_ids([["a", "b"]], max_word_length=20).shape == (1, 2, 20)


def test_vocabulary_script_writes_vectors_and_the_longer_vocabulary(tmp_path: Path) -> None:
    files = write_files(tmp_path / "model")
    vocabulary = tmp_path / "words.txt"
    words = ["@@UNKNOWN@@", *(f"w{k}" for k in range(120)), "é"]
    vocabulary.write_text("\n".join(words) + "\n", encoding="utf-8")
    create_elmo_embeddings_from_vocab(vocabulary, files.options, files.weights, tmp_path / "out", batch_size=1)
    longer = ["@@UNKNOWN@@", "<S>", "</S>", *words[1:]]
    assert (tmp_path / "out" / "words.txt").read_text(encoding="utf-8").splitlines() == longer
    with gzip.open(tmp_path / "out" / "elmo_embeddings.txt.gz", "rt", encoding="utf-8") as file:
        rows = [line.split(" ") for line in file.read().splitlines()]
    assert [row[0] for row in rows] == longer
    expected = files.bilm.token_layer(torch.from_numpy(encode_tokens(longer, 50))).detach().numpy()
    np.testing.assert_allclose(np.array([row[1:] for row in rows], dtype=np.float32), expected, atol=1e-6)

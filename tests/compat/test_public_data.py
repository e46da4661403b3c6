"""The classes of the old programs have the data of the originals, attribute by attribute, not only their methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elmokit.compat import allennlp, bilm, tfhub
from elmokit.compat.many_langs import Embedder
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.folder import save_folder
from tests.conftest import WORDS, random_model
from tests.helpers import many_langs_files

NAMES: dict[str, str] = {
    "simple_elmo.ElmoModel": "batch_size max_chars vector_size n_layers vocab batcher session model logger "
    "sentence_character_ids elmo_sentence_input sentence_embeddings_op init_state_tensors final_state_tensors "
    "init_state_values load warmup get_elmo_vectors get_elmo_vector_average get_elmo_substitutes",
    "elmoformanylangs.Embedder": "model_dir batch_size config use_cuda model word_lexicon char_lexicon get_model "
    "sents2elmo",
    "bilm.BidirectionalLanguageModel": "_options _weight_file _embedding_weight_file _use_character_inputs "
    "_max_batch_size",
    "bilm.Batcher": "_lm_vocab _max_token_length batch_sentences",
    "bilm.TokenBatcher": "_lm_vocab batch_sentences",
    "bilm.UnicodeCharsVocabulary": "bos eos unk size word_to_id id_to_word decode encode bos_char eos_char bow_char "
    "eow_char pad_char bos_chars eos_chars max_word_length word_char_ids word_to_char_ids encode_chars _id_to_word "
    "_word_to_id",
    "bilm.LMDataset": "vocab max_word_length get_sentence iter_batches",
    "bilm.BidirectionalLMDataset": "iter_batches",
    "allennlp.Elmo": "_elmo_lstm _dropout _scalar_mixes scalar_mix_0 scalar_mix_1 _has_cached_vocab "
    "_keep_sentence_boundaries get_output_dim from_params",
    "allennlp._ElmoBiLm": "num_layers _token_embedder _elmo_lstm _requires_grad get_output_dim "
    "create_cached_cnn_embeddings _word_embedding _bos_embedding _eos_embedding",
    "allennlp._ElmoCharacterEncoder": "_options _weight_file requires_grad output_dim _char_embedding_weights "
    "_highways _convolutions _projection _beginning_of_sentence_characters _end_of_sentence_characters char_conv_0",
    "allennlp.ElmoLstm": "input_size hidden_size cell_size num_layers requires_grad stateful _states forward_layers "
    "backward_layers forward_layer_0 reset_states load_weights",
    "allennlp.LstmCellWithProjection": "input_size hidden_size cell_size go_forward input_linearity state_linearity "
    "state_projection memory_cell_clip_value state_projection_clip_value recurrent_dropout_probability "
    "reset_parameters",
    "allennlp.ScalarMix": "mixture_size do_layer_norm scalar_parameters gamma",
    "allennlp.ElmoTokenEmbedder": "_elmo _projection output_dim get_output_dim",
    "allennlp.ElmoEmbedder": "indexer elmo_bilm cuda_device batch_to_embeddings embed_sentence embed_batch "
    "embed_sentences embed_file",
    "allennlp.ELMoTokenCharactersIndexer": "_namespace _mapper count_vocab_items tokens_to_indices get_padding_lengths "
    "get_token_min_padding_length get_keys as_padded_tensor as_padded_tensor_dict get_empty_token_list",
    "allennlp.ELMoCharacterMapper": "max_word_length beginning_of_sentence_character end_of_sentence_character "
    "beginning_of_word_character end_of_word_character padding_character beginning_of_sentence_characters "
    "end_of_sentence_characters bos_token eos_token tokens_to_add convert_word_to_char_ids",
    "allennlp.Token": "text idx idx_end lemma_ pos_ tag_ dep_ ent_type_ text_id type_id ensure_text",
    "hub.Module": "get_signature_names get_input_info_dict get_output_info_dict variable_map variables "
    "trainable_variables signatures",
}
"""What the released classes have, as their programs' users read it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_hdf5(random_model(), folder / "options.json", folder / "model.hdf5")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def objects(folder: Path) -> dict[str, Callable[[], Any]]:
    files = folder / "options.json", folder / "model.hdf5"
    vocabulary = bilm.UnicodeCharsVocabulary(folder / "vocab.txt", 50)
    text = str(folder / "vocab.txt")
    return {
        "simple_elmo.ElmoModel": ElmoModel,
        "elmoformanylangs.Embedder": lambda: Embedder(folder),
        "bilm.BidirectionalLanguageModel": lambda: bilm.BidirectionalLanguageModel(*files),
        "bilm.Batcher": lambda: bilm.Batcher(text, 50),
        "bilm.TokenBatcher": lambda: bilm.TokenBatcher(text),
        "bilm.UnicodeCharsVocabulary": lambda: vocabulary,
        "bilm.LMDataset": lambda: bilm.LMDataset(text, vocabulary),
        "bilm.BidirectionalLMDataset": lambda: bilm.BidirectionalLMDataset(text, vocabulary),
        "allennlp.Elmo": lambda: allennlp.Elmo(*files, 2),
        "allennlp._ElmoBiLm": lambda: allennlp._ElmoBiLm(*files, vocab_to_cache=["@@PADDING@@", "the"]),
        "allennlp._ElmoCharacterEncoder": lambda: allennlp._ElmoCharacterEncoder(*files),
        "allennlp.ElmoLstm": lambda: allennlp.ElmoLstm(3, 5, 7, 2),
        "allennlp.LstmCellWithProjection": lambda: allennlp.LstmCellWithProjection(3, 5, 7),
        "allennlp.ScalarMix": lambda: allennlp.ScalarMix(3),
        "allennlp.ElmoTokenEmbedder": lambda: allennlp.ElmoTokenEmbedder(*files),
        "allennlp.ElmoEmbedder": lambda: allennlp.ElmoEmbedder(*files),
        "allennlp.ELMoTokenCharactersIndexer": allennlp.ELMoTokenCharactersIndexer,
        "allennlp.ELMoCharacterMapper": allennlp.ELMoCharacterMapper,
        "allennlp.Token": allennlp.Token,
        "hub.Module": lambda: tfhub.Module(folder),
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_object_has_every_name_of_the_original(objects: dict[str, Callable[[], Any]], name: str) -> None:
    made = objects[name]()
    assert [attribute for attribute in NAMES[name].split() if not hasattr(made, attribute)] == []


def test_a_simple_elmo_model_with_its_softmax_has_the_words(tmp_path: Path) -> None:
    save_folder(random_model(), tmp_path / "full")
    elmo = ElmoModel()
    elmo.load(tmp_path / "full", full=True)
    assert [elmo.vocab.id_to_word(index) for index in range(elmo.vocab.size)] == WORDS
    assert elmo.model.can_predict


def test_a_simple_elmo_model_loaded_with_top_gives_the_last_layer(folder: Path) -> None:
    elmo, expected = ElmoModel(), ElmoModel()
    expected.load(folder)
    for load in (lambda: elmo.load(folder, top=True), lambda: elmo.load(folder, True, 96)):  # type: ignore[arg-type]
        load()
        for method in ("get_elmo_vectors", "get_elmo_vector_average"):
            found, top, average = (
                getattr(model, method)([["the", "cat"]], **layers)
                for model, layers in ((elmo, {}), (expected, {"layers": "top"}), (elmo, {"layers": "average"}))
            )
            assert (found == top).all()
            assert (average == getattr(expected, method)([["the", "cat"]])).all()


def test_an_embedder_of_many_languages_has_the_configuration_and_the_lexicons(tmp_path: Path) -> None:
    embedder = Embedder(many_langs_files.toy_model().write(tmp_path / "toy"), 7)
    settings = many_langs_files.SETTINGS
    assert embedder.config == {name: settings[name] for name in ("encoder", "token_embedder", "dropout")}
    assert embedder.word_lexicon == {word: row for row, word in enumerate(many_langs_files.WORDS)}
    assert embedder.char_lexicon == {char: row for row, char in enumerate(many_langs_files.CHARS)}
    assert (embedder.use_cuda, embedder.batch_size) == (False, 7)
    before = embedder.sents2elmo([["das", "Haus"]])[0]
    assert isinstance(embedder.get_model()[0], torch.nn.Module)
    assert abs(before - embedder.sents2elmo([["das", "Haus"]])[0]).max() < 1e-5


def test_a_hub_module_describes_its_signatures(folder: Path) -> None:
    module = tfhub.Module(folder, trainable=True)
    assert module.get_input_info_dict() == {"strings": ("string", (None,), False)}
    assert set(module.get_input_info_dict("tokens")) == {"tokens", "sequence_len"}
    outputs: Any = module(["the cat"], as_dict=True)
    infos = module.get_output_info_dict("default")
    assert list(infos) == list(outputs)
    for name, output in outputs.items():
        assert infos[name].dtype == str(output.dtype).removeprefix("torch.")
        assert len(infos[name].get_shape()) == output.dim()
        assert infos[name].shape[-1] in (None, output.shape[-1])
    assert module.variable_map["aggregation/scaling"] is module.mix.gamma
    assert len(module.variables) == len(module.trainable_variables) == 2


def test_calls_of_allennlp_0_9_may_name_their_arguments(folder: Path) -> None:
    table = {"options_file": str(folder / "options.json"), "weight_file": str(folder / "model.hdf5"), "dropout": 0.0}
    embedder = allennlp.ElmoTokenEmbedder.from_params(None, table)  # (vocab, params)
    ids = allennlp.batch_to_ids([["the", "cat"]])
    expected = embedder(ids)
    embedder._elmo.reset_states()
    assert torch.equal(embedder(inputs=ids), expected)
    with pytest.raises(allennlp.ConfigurationError) as raised:
        allennlp.ScalarMix(2, initial_scalar_parameters=[0.0])
    assert raised.value.message == str(raised.value)

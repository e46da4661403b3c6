"""ELMo in transformers, through that library's auto classes and pipeline, and scored by minicons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo, LanguageModel, PretrainedBiLM
from elmokit.engine.config import PRESETS
from elmokit.errors import ConfigError, ModelNotFoundError
from tests.conftest import aligned_model, random_model
from tests.helpers.hosts import need_host

need_host("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from minicons.scorer import IncrementalLMScorer  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from elmokit.integrations.transformers import ElmoConfig, ElmoForCausalLM, ElmoModel, ElmoTokenizer  # noqa: E402

TEXTS = ["the cat sat on the mat .", "the zebra ran .", "", "a cat"]
TOKENS = [text.split() for text in TEXTS]


@pytest.fixture
def saved(model: PretrainedBiLM, tmp_path: Path) -> Path:
    """A saved ElmoModel with its tokenizer."""
    ElmoModel.from_elmokit(model).save_pretrained(tmp_path / "saved")
    ElmoTokenizer.from_elmokit(model).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def save_causal(model: PretrainedBiLM, folder: Path, direction: str) -> str:
    ElmoForCausalLM.from_elmokit(model, direction=direction).save_pretrained(folder)  # type: ignore[arg-type]
    ElmoTokenizer.from_elmokit(model, direction=direction).save_pretrained(folder)  # type: ignore[arg-type]
    return str(folder)


def test_hidden_states_of_a_loaded_model_equal_the_vectors_of_elmo(model: PretrainedBiLM, saved: Path) -> None:
    loaded, tokenizer = AutoModel.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    assert isinstance(loaded, ElmoModel)
    assert isinstance(tokenizer, ElmoTokenizer)
    with torch.no_grad():
        output = loaded(**tokenizer(TEXTS, return_tensors="pt", padding=True), output_hidden_states=True)
    layers = torch.stack(output.hidden_states).transpose(0, 1).numpy()
    for row, expected in zip(layers, Elmo(model).embed(TOKENS), strict=True):
        np.testing.assert_allclose(row[:, 1 : 1 + expected.shape[1]], expected, atol=1e-5)
        assert not row[:, expected.shape[1] + 2 :].any()
    torch.testing.assert_close(output.last_hidden_state, output.hidden_states[-1])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_pipeline_extracts_the_same_features(model: PretrainedBiLM, saved: Path, batch_size: int) -> None:
    extract = pipeline("feature-extraction", model=str(saved))
    features = extract(TEXTS, batch_size=batch_size)
    for (row,), expected in zip(features, Elmo(model).embed(TOKENS, layers="top"), strict=True):
        np.testing.assert_allclose(np.array(row)[1 : 1 + len(expected)], expected, atol=1e-5)


def test_other_output_layers_can_be_chosen_when_a_model_is_loaded(model: PretrainedBiLM, saved: Path) -> None:
    inputs = AutoTokenizer.from_pretrained(saved)(TEXTS[0], return_tensors="pt")
    average = AutoModel.from_pretrained(saved, output_layers="average")(**inputs).last_hidden_state
    mix = AutoModel.from_pretrained(saved, output_layers="mix")(**inputs).last_hidden_state  # a new mix is the average
    (expected,) = Elmo(model).embed(TOKENS[:1], layers="average")
    for vectors in (average, mix):
        np.testing.assert_allclose(vectors[0, 1:-1].detach().numpy(), expected, atol=1e-5)


def test_the_included_model_which_also_reads_words_has_the_vectors_of_elmo(tmp_path: Path) -> None:
    elmo = Elmo.from_pretrained(precision="float32")
    ElmoModel.from_elmokit(elmo.model).save_pretrained(tmp_path)
    ElmoTokenizer.from_elmokit(elmo.model).save_pretrained(tmp_path)
    loaded, tokenizer = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    tokens = [*TOKENS, ["She", "crossed", "the", "xyzzyq", "river"]]
    encoded = tokenizer([" ".join(sentence) for sentence in tokens], return_tensors="pt", padding=True)
    np.testing.assert_array_equal(encoded["char_ids"], elmo.ids(tokens))
    with torch.no_grad():
        vectors = loaded(**encoded).last_hidden_state.numpy()
    for row, expected in zip(vectors, elmo.embed(tokens, layers="top"), strict=True):
        np.testing.assert_allclose(row[1 : 1 + len(expected)], expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"char_ids.* 50 .* 51"):
        loaded(char_ids=encoded["char_ids"][..., 1:])


def test_tokenizer_reads_a_tuple_of_words_as_words(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    for words in (("the", "cat"), [("the", "cat")], [["the", "cat"]]):
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="np")
        np.testing.assert_array_equal(np.squeeze(encoded["char_ids"]), Elmo(model).ids([["the", "cat"]])[0])


def test_tokenizer_pads_char_ids_on_the_side_of_the_words(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    tokenizer.padding_side = "left"
    padded = tokenizer.pad([tokenizer("the cat"), tokenizer("cat")], return_tensors="pt")
    torch.testing.assert_close((padded["char_ids"] > 0).any(dim=-1), padded["attention_mask"].bool())


def test_tokenizer_returns_the_char_ids_of_elmo(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    texts = tokenizer(TEXTS, return_tensors="pt", padding=True)
    lists = tokenizer(TOKENS, return_tensors="pt", padding=True, is_split_into_words=True)
    for name in ("input_ids", "char_ids", "attention_mask"):
        torch.testing.assert_close(texts[name], lists[name])
    np.testing.assert_array_equal(texts["char_ids"], Elmo(model).ids(TOKENS))
    assert tokenizer.convert_ids_to_tokens(texts["input_ids"][1]) == (
        ["<S>", "the", "<UNK>", "ran", ".", "</S>"] + ["<PAD>"] * 3
    )
    assert tokenizer.decode(texts["input_ids"][3], skip_special_tokens=True) == "cat"


def test_tokenizer_cuts_texts_and_marks_boundaries(model: PretrainedBiLM) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    cut = tokenizer(TEXTS[0], truncation=True, max_length=4, return_special_tokens_mask=True)
    assert tokenizer.convert_ids_to_tokens(cut["input_ids"]) == ["<S>", "the", "cat", "</S>"]
    assert cut["special_tokens_mask"] == [1, 0, 0, 1]
    assert len(cut["char_ids"]) == 4
    assert tokenizer("the cat", add_special_tokens=False)["input_ids"] == [3, 5]
    left = ElmoTokenizer.from_elmokit(model)
    left.truncation_side = "left"
    cut = left(TEXTS[0], truncation=True, max_length=4)
    assert left.convert_ids_to_tokens(cut["input_ids"]) == ["<S>", "mat", ".", "</S>"]
    np.testing.assert_array_equal(cut["char_ids"], Elmo(model).ids([["mat", "."]])[0])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_minicons_computes_the_surprisal_of_elmokit(model: PretrainedBiLM, tmp_path: Path, direction: str) -> None:
    scorer = IncrementalLMScorer(save_causal(model, tmp_path / "lm", direction), "cpu")
    texts = [text for text in TEXTS if text]
    scores = scorer.token_score(texts, surprisal=True, eos_token=True)
    expected = LanguageModel(model).surprisal([text.split() for text in texts])
    for row, sentence in zip(scores, expected, strict=True):
        nats = sentence.nats[0, 1:] if direction == "forward" else sentence.nats[1, -2::-1]
        np.testing.assert_allclose([score for _, score in row[1:]], nats, atol=1e-4)
    totals = scorer.sequence_score(texts, reduction=lambda scores: -scores.sum().item(), eos_token=True)
    index = 0 if direction == "forward" else 1
    np.testing.assert_allclose(totals, [sentence.total_nats[index] for sentence in expected], atol=1e-4)


def test_minicons_scores_a_continuation(model: PretrainedBiLM, tmp_path: Path) -> None:
    scorer = IncrementalLMScorer(save_causal(model, tmp_path / "lm", "forward"), "cpu")
    score = scorer.conditional_score("the cat sat", "on the mat", reduction=lambda scores: -scores.sum().item())
    (sentence,) = LanguageModel(model).surprisal([["the", "cat", "sat", "on", "the", "mat"]])
    assert score == pytest.approx([sentence.nats[0, 4:7].sum()], abs=1e-4)


def test_language_model_without_char_ids_reads_the_words_of_its_vocabulary(
    model: PretrainedBiLM, tmp_path: Path
) -> None:
    folder = save_causal(model, tmp_path / "lm", "forward")
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(["the cat sat .", "the dog"], return_tensors="pt", padding=True)
    with torch.no_grad():
        output = lm(**inputs, labels=inputs["input_ids"])
        words_only = lm(inputs["input_ids"])
    torch.testing.assert_close(words_only.logits, output.logits)
    sentences = LanguageModel(model).surprisal([["the", "cat", "sat", "."], ["the", "dog"]])
    nats = np.concatenate([sentence.nats[0, 1:-1] for sentence in sentences])  # without </S>
    assert output.loss.item() == pytest.approx(nats.mean(), abs=1e-4)


@pytest.mark.slow
def test_trainer_trains_the_language_model(model: PretrainedBiLM, tmp_path: Path) -> None:
    lm, tokenizer = ElmoForCausalLM.from_elmokit(model), ElmoTokenizer.from_elmokit(model, direction="forward")
    examples = [{**tokenizer(text + "</S>"), "labels": None} for text in ("the cat sat .", "the dog ran on the mat .")]
    pad = DataCollatorWithPadding(tokenizer)

    def collate(batch: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        padded = pad([{name: value for name, value in row.items() if name != "labels"} for row in batch])
        return {**padded, "labels": padded["input_ids"]}

    settings = TrainingArguments(
        str(tmp_path), num_train_epochs=20, learning_rate=1e-2, report_to="none", use_cpu=True, save_strategy="no"
    )
    trainer = Trainer(lm, settings, train_dataset=examples, data_collator=collate, eval_dataset=examples)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2


def test_new_model_has_random_weights() -> None:
    config = ElmoConfig(bilm={"char_cnn": {"filters": [[1, 8]], "n_highway": 1}, "projection_dim": 8, "hidden_dim": 16})
    new = ElmoModel(config)
    assert new.config.hidden_size == 16
    for name, parameter in new.bilm.named_parameters():
        assert parameter.abs().max() < 5, name
        assert name.endswith("bias") or parameter.std() > 0.01, name


def padded_left(model: PretrainedBiLM) -> object:
    inputs = ElmoTokenizer.from_elmokit(model, tokenization="spaces")(TEXTS, return_tensors="pt", padding=True)
    return ElmoModel.from_elmokit(model)(**{name: value.flip(1) for name, value in inputs.items()})


TINY = PRESETS["tiny"]
REFUSED: list[tuple[Callable[[PretrainedBiLM, Path], object], type[Exception], str]] = [
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers=9), ConfigError, "9"),
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers="all"), ConfigError, "output_layers"),
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers=[0, 1]), ConfigError, "output_layers"),
    (lambda model, saved: AutoModelForCausalLM.from_pretrained(saved), ConfigError, "softmax"),
    (lambda model, saved: ElmoForCausalLM.from_elmokit(model.replace(softmax=None)), ModelNotFoundError, "softmax"),
    (
        lambda model, saved: ElmoForCausalLM.from_elmokit(
            random_model(replace(TINY, bidirectional=False)), direction="backward"
        ),
        *(ConfigError, "direction"),
    ),
    (lambda model, saved: ElmoTokenizer.from_elmokit(model, direction="left"), ConfigError, "direction"),  # type: ignore[arg-type]
    (lambda model, saved: ElmoTokenizer.from_elmokit(model).add_tokens(["cat", "zzxq"]), ValueError, "'zzxq'"),
    (
        lambda model, saved: ElmoTokenizer.from_elmokit(model, direction="forward")("the cat", "the dog"),
        *(ValueError, "pairs"),
    ),
    (lambda model, saved: padded_left(model), ValueError, "padding_side"),
    (
        lambda model, saved: ElmoModel.from_elmokit(random_model(replace(TINY, char_cnn=None, n_words=11))),
        *(ConfigError, "word ids"),
    ),
    (lambda model, saved: ElmoModel.from_elmokit(aligned_model()), ConfigError, r"model\.alignment"),
]


@pytest.mark.parametrize(("use", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_model_cannot_do_is_refused(
    model: PretrainedBiLM, saved: Path, use: Callable[[PretrainedBiLM, Path], object], error: type, mentioned: str
) -> None:
    with pytest.raises(error, match=mentioned):
        use(model, saved)

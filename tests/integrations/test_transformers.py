"""ELMo in transformers, through its auto classes, pipelines and trainer, and scored by minicons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo, LanguageModel, PretrainedBiLM
from elmokit.engine.architecture import PRESETS
from elmokit.errors import ConfigError, ModelNotFoundError
from tests.conftest import aligned_model, random_model
from tests.helpers.hosts import need_host

need_host("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from minicons.scorer import IncrementalLMScorer, MaskedLMScorer  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from elmokit.integrations.transformers import (  # noqa: E402
    ElmoConfig,
    ElmoForCausalLM,
    ElmoForMaskedLM,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)

TEXTS = ["the cat sat on the mat .", "the zebra ran .", "", "a cat"]
TOKENS = [text.split() for text in TEXTS]
WORDS = TOKENS[0]


def save(new: Any, model: PretrainedBiLM, folder: Path, **arguments: Any) -> str:
    new.save_pretrained(folder)
    ElmoTokenizer.from_elmokit(model, **arguments).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def saved(model: PretrainedBiLM, tmp_path: Path) -> str:
    """A saved ElmoModel with its tokenizer."""
    return save(ElmoModel.from_elmokit(model), model, tmp_path / "saved")


@pytest.fixture
def causal(model: PretrainedBiLM, tmp_path: Path) -> str:
    """A saved ElmoForCausalLM with its tokenizer."""
    return save(ElmoForCausalLM.from_elmokit(model), model, tmp_path / "causal", direction="forward")


def test_hidden_states_of_a_loaded_model_equal_the_vectors_of_elmo(model: PretrainedBiLM, saved: str) -> None:
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


def test_other_output_layers_can_be_chosen_when_a_model_is_loaded(model: PretrainedBiLM, saved: str) -> None:
    inputs = AutoTokenizer.from_pretrained(saved)(TEXTS[0], return_tensors="pt")
    average = AutoModel.from_pretrained(saved, output_layers="average")(**inputs).last_hidden_state
    mix = AutoModel.from_pretrained(saved, output_layers="mix")(**inputs).last_hidden_state  # a new mix is the average
    (expected,) = Elmo(model).embed(TOKENS[:1], layers="average")
    for vectors in (average, mix):
        np.testing.assert_allclose(vectors[0, 1:-1].detach().numpy(), expected, atol=1e-5)


def test_the_included_model_which_also_reads_words_has_the_vectors_of_elmo(tmp_path: Path) -> None:
    elmo = Elmo.from_pretrained(precision="float32")
    save(ElmoModel.from_elmokit(elmo.model), elmo.model, tmp_path)
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


def test_word_ids_alone_are_read_by_their_spelling(saved: str) -> None:
    loaded, tokenizer = AutoModel.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    inputs = tokenizer(["the cat sat", "the"], return_tensors="pt", padding=True)
    with torch.no_grad():
        alone = loaded(inputs["input_ids"]).last_hidden_state
        torch.testing.assert_close(alone, loaded(**inputs).last_hidden_state)
        torch.testing.assert_close(alone, loaded(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state)
        masked = loaded(tokenizer("the <MASK>", return_tensors="pt")["input_ids"]).last_hidden_state
        unknown = loaded(**tokenizer("the <UNK>", return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(masked, unknown)


def test_fill_mask_finds_the_substitutes_of_elmokit(model: PretrainedBiLM, tmp_path: Path) -> None:
    fill = pipeline("fill-mask", model=save(ElmoForMaskedLM.from_elmokit(model), model, tmp_path / "lm"))
    for position in range(len(WORDS)):
        text = " ".join("<MASK>" if i == position else word for i, word in enumerate(WORDS))
        expected = LanguageModel(model).substitutes(WORDS, position, n=5)
        found = fill(text)
        assert [row["token_str"] for row in found] == [word.word for word in expected]
        np.testing.assert_allclose([row["score"] for row in found], [word.probability for word in expected], rtol=1e-4)
    assert found[0]["sequence"] == " ".join([*WORDS[:-1], found[0]["token_str"]])
    (targets,) = fill(["the <MASK> sat"], targets=["dog"])
    assert targets["token_str"] == "dog"


def test_one_pass_predicts_every_word_from_the_others(model: PretrainedBiLM) -> None:
    lm, tokenizer = ElmoForMaskedLM.from_elmokit(model), ElmoTokenizer.from_elmokit(model)
    inputs = tokenizer(["the cat sat on the mat .", "the zebra ran"], return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = lm(**inputs).logits
        for row, n_words in enumerate((7, 3)):
            for position in range(1, 1 + n_words):
                masked = {name: value.clone() for name, value in inputs.items()}
                masked["input_ids"][row, position] = tokenizer.mask_token_id
                found = lm(**masked).logits[row, position]
                torch.testing.assert_close(found[3:], logits[row, position, 3:])
                assert found[:3].isinf().all()
    assert not logits[1, 5:].any()
    expected = LanguageModel(model).substitutes(["the", "zebra", "ran"], 1, n=99, special_words=True)
    probabilities = logits[1, 2].softmax(dim=0)
    for word in expected:
        assert probabilities[word.word_id].item() == pytest.approx(word.probability, rel=1e-4)
    # At the ends there is one direction only.
    surprisal = LanguageModel(model).surprisal([WORDS])[0].nats
    nats = -logits[0].log_softmax(dim=1)
    assert nats[0, 0].item() == pytest.approx(surprisal[1, 0], abs=1e-4)
    assert nats[8, 1].item() == pytest.approx(surprisal[0, 8], abs=1e-4)


def test_masks_are_read_as_unknown_words(model: PretrainedBiLM) -> None:
    lm, tokenizer = ElmoForMaskedLM.from_elmokit(model), ElmoTokenizer.from_elmokit(model)
    with torch.no_grad():
        two = lm(**tokenizer("the <MASK> <MASK> on", return_tensors="pt")).logits[0, 2]
        unknown = lm(**tokenizer("the <MASK> <UNK> on", return_tensors="pt")).logits[0, 2]
        # The characters of a token that a data collator masked are still there.
        inputs = tokenizer("the cat sat on", return_tensors="pt")
        inputs["input_ids"][0, 2:4] = tokenizer.mask_token_id
        collated = lm(**inputs).logits[0, 2]
    torch.testing.assert_close(two, unknown)
    torch.testing.assert_close(two, collated)


def test_minicons_scores_the_word_behind_a_mask(model: PretrainedBiLM, tmp_path: Path) -> None:
    path = save(ElmoForMaskedLM.from_elmokit(model, special_words=True), model, tmp_path / "lm")
    scorer = MaskedLMScorer(path, "cpu")
    (found,) = scorer.cloze([("the <UNK> ran on", "<UNK>")])
    lm, tokenizer = AutoModelForMaskedLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    inputs = tokenizer("the <UNK> ran on", return_tensors="pt")
    with torch.no_grad():
        expected = lm(inputs["input_ids"]).logits[0, 2].log_softmax(dim=0)[tokenizer.unk_token_id]
    assert found == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("mlm", [True, False])
def test_the_loss_of_a_language_model_is_finite_for_unknown_words(model: PretrainedBiLM, mlm: bool) -> None:
    lm, tokenizer = ElmoForMaskedLM.from_elmokit(model), ElmoTokenizer.from_elmokit(model)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm, mlm_probability=0.9)
    batch = collate([tokenizer("the zebra ran on the mat ."), tokenizer("the cat")])
    output = lm(**batch)
    assert output.loss.isfinite()
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in lm.parameters() if parameter.grad is not None)
    everything = lm(**tokenizer("the zebra", return_tensors="pt"), labels=torch.tensor([[-100, 3, 2, -100]])).loss
    expected = [LanguageModel(model).substitutes(["the", "zebra"], i, n=99, special_words=True) for i in (0, 1)]
    nats = [
        -np.log(next(w.probability for w in words if w.word_id == i)) for words, i in zip(expected, (3, 2), strict=True)
    ]
    assert everything.item() == pytest.approx(np.mean(nats), abs=1e-4)


def test_minicons_computes_the_surprisal_of_elmokit(model: PretrainedBiLM, causal: str) -> None:
    scorer = IncrementalLMScorer(causal, "cpu")
    texts = [text for text in TEXTS if text]
    scores = scorer.token_score(texts, surprisal=True, eos_token=True)
    expected = LanguageModel(model).surprisal([text.split() for text in texts])
    for row, sentence in zip(scores, expected, strict=True):
        np.testing.assert_allclose([score for _, score in row[1:]], sentence.nats[0, 1:], atol=1e-4)
    totals = scorer.sequence_score(texts, reduction=lambda scores: -scores.sum().item(), eos_token=True)
    np.testing.assert_allclose(totals, [sentence.total_nats[0] for sentence in expected], atol=1e-4)
    score = scorer.conditional_score("the cat sat", "on the mat", reduction=lambda scores: -scores.sum().item())
    (sentence,) = LanguageModel(model).surprisal([["the", "cat", "sat", "on", "the", "mat"]])
    assert score == pytest.approx([sentence.nats[0, 4:7].sum()], abs=1e-4)


def test_language_model_without_char_ids_reads_the_words_of_its_vocabulary(model: PretrainedBiLM, causal: str) -> None:
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(causal), AutoTokenizer.from_pretrained(causal)
    inputs = tokenizer(["the cat sat .", "the dog"], return_tensors="pt", padding=True)
    with torch.no_grad():
        output = lm(**inputs, labels=inputs["input_ids"])
        words_only = lm(inputs["input_ids"])
    torch.testing.assert_close(words_only.logits, output.logits)
    sentences = LanguageModel(model).surprisal([["the", "cat", "sat", "."], ["the", "dog"]])
    nats = np.concatenate([sentence.nats[0, 1:-1] for sentence in sentences])  # without </S>
    assert output.loss.item() == pytest.approx(nats.mean(), abs=1e-4)


def tagged(tokenizer: ElmoTokenizer) -> list[dict[str, object]]:
    """Sentences whose animals are tagged, encoded as the guides of transformers do."""
    examples = []
    for words in map(str.split, ("the cat sat .", "on the mat", "the zebra", "The zebra sat . the dog")):
        encoded = tokenizer(words, is_split_into_words=True)
        names = {"cat": 1, "zebra": 1, "dog": 1}
        labels = [-100 if i is None else names.get(words[i], 0) for i in encoded.word_ids()]
        examples.append({**encoded, "labels": labels})
    return examples


def trainer(model: torch.nn.Module, examples: list[dict[str, object]], collator: object, folder: Path) -> Trainer:
    settings = TrainingArguments(
        str(folder), num_train_epochs=100, learning_rate=0.003, report_to="none", use_cpu=True, save_strategy="no"
    )
    return Trainer(model, settings, train_dataset=examples, data_collator=collator, eval_dataset=examples)  # type: ignore[arg-type]


@pytest.mark.slow
def test_trainer_trains_a_tagger_that_a_pipeline_uses(model: PretrainedBiLM, tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    new = ElmoForTokenClassification.from_elmokit(model, labels=["O", "ANIMAL"])
    new.dropout.p = 0.0
    trainer(new, tagged(tokenizer), DataCollatorForTokenClassification(tokenizer), tmp_path).train()
    text = "The zebra sat .\nthe  dog"
    tag = pipeline("token-classification", model=save(new.eval(), model, tmp_path / "tagger"))
    found = [(row["word"], text[row["start"] : row["end"]], row["entity"]) for row in tag(text)]
    assert found == [("zebra", "zebra", "ANIMAL"), ("dog", "dog", "ANIMAL")]
    groups = tag(text, aggregation_strategy="first")
    assert [(row["word"], row["entity_group"], row["start"]) for row in groups] == [
        ("zebra", "ANIMAL", 4),
        ("dog", "ANIMAL", 21),
    ]
    ((row,),) = tag(["the", "zebra"], is_split_into_words=True)
    assert (row["word"], row["start"]) == ("zebra", 4)


@pytest.mark.slow
def test_trainer_trains_a_classifier_of_pairs_that_a_pipeline_uses(model: PretrainedBiLM, tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer.from_elmokit(model)
    pairs = [("the cat", "the cat sat", 1), ("the cat", "the dog ran", 0), ("dog", "the dog", 1), ("dog", "the cat", 0)]
    examples = [{**tokenizer(first, second), "label": label} for first, second, label in pairs]
    new = ElmoForSequenceClassification.from_elmokit(model, labels=["other", "same"])
    new.dropout.p = 0.0
    trained = trainer(new, examples, DataCollatorWithPadding(tokenizer), tmp_path)
    trained.train()
    assert trained.evaluate()["eval_loss"] < 0.5
    classify = pipeline("text-classification", model=save(new, model, tmp_path / "classifier"))
    found = classify([{"text": first, "text_pair": second} for first, second, _ in pairs])
    assert [row["label"] for row in found] == ["same", "other", "same", "other"]


def test_a_text_is_classified_by_the_mean_of_its_mix(model: PretrainedBiLM) -> None:
    new, tokenizer = ElmoForSequenceClassification.from_elmokit(model), ElmoTokenizer.from_elmokit(model)
    texts = ["the cat sat", "the"]
    with torch.no_grad():
        logits = new(**tokenizer(texts, return_tensors="pt", padding=True)).logits
        for row, text in zip(logits, texts, strict=True):
            hidden = new.elmo(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            mean = torch.stack(hidden).mean(dim=0)[0].mean(dim=0)  # a new mix is the plain mean
            torch.testing.assert_close(row, new.classifier(mean))


def test_a_saved_model_opens_with_another_head(model: PretrainedBiLM, saved: str, tmp_path: Path) -> None:
    tagger = AutoModelForTokenClassification.from_pretrained(saved, num_labels=5, trainable=False)
    assert isinstance(tagger, ElmoForTokenClassification)
    assert tagger.classifier.weight.std() > 0.01
    inputs = AutoTokenizer.from_pretrained(saved)("the cat", return_tensors="pt")
    tagger(**inputs, labels=torch.tensor([[-100, 0, 4, -100]])).loss.backward()
    assert {name for name, value in tagger.named_parameters() if value.grad is not None} == (
        {"elmo.mixes.0.weight", "elmo.mixes.0.gamma", "classifier.weight", "classifier.bias"}
    )
    regression = AutoModelForSequenceClassification.from_pretrained(saved, num_labels=1)
    assert regression(**inputs, labels=torch.tensor([0.5])).loss.item() >= 0
    lm = save(ElmoForMaskedLM.from_elmokit(model), model, tmp_path / "lm")
    vectors = AutoModel.from_pretrained(lm)(**inputs).last_hidden_state[0, 1:-1].detach()
    np.testing.assert_allclose(vectors, Elmo(model).embed([["the", "cat"]], layers="top")[0], atol=1e-5)


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
REFUSED: list[tuple[Callable[[Any, str], object], type[Exception], str]] = [
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers=9), ConfigError, "9"),
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers="all"), ConfigError, "output_layers"),
    (lambda model, saved: AutoModel.from_pretrained(saved, output_layers=[0, 1]), ConfigError, "output_layers"),
    (lambda model, saved: AutoModelForCausalLM.from_pretrained(saved), ConfigError, "softmax"),
    (lambda model, saved: ElmoForCausalLM.from_elmokit(model.replace(softmax=None)), ModelNotFoundError, "softmax"),
    (lambda model, saved: ElmoForCausalLM(ElmoForMaskedLM.from_elmokit(model).config), ConfigError, "one direction"),
    (
        lambda model, saved: ElmoForMaskedLM.from_elmokit(random_model(replace(TINY, bidirectional=False))),
        *(ConfigError, "both directions"),
    ),
    (lambda model, saved: ElmoTokenizer.from_elmokit(model, direction="left"), ConfigError, "direction"),
    (lambda model, saved: ElmoTokenizer.from_elmokit(model).add_tokens(["cat", "zzxq"]), ValueError, "'zzxq'"),
    (
        lambda model, saved: ElmoTokenizer.from_elmokit(model, direction="forward")("the cat", "the dog"),
        *(ValueError, "pairs"),
    ),
    (lambda model, saved: padded_left(model), ValueError, "pad on the right"),
    (
        lambda model, saved: ElmoModel.from_elmokit(random_model(replace(TINY, char_cnn=None, n_words=11))),
        *(ConfigError, "only reads words"),
    ),
    (lambda model, saved: ElmoModel.from_elmokit(aligned_model()), ConfigError, r"alignment=None"),
]


@pytest.mark.parametrize(("use", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_model_cannot_do_is_refused(
    model: PretrainedBiLM, saved: str, use: Callable[[Any, str], object], error: type, mentioned: str
) -> None:
    with pytest.raises(error, match=mentioned):
        use(model, saved)

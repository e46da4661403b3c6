"""ELMo in transformers for tasks: masks, tokens and texts, through its pipelines, trainer and auto classes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo, LanguageModel, PretrainedBiLM
from elmokit.engine.config import PRESETS
from elmokit.errors import ConfigError
from tests.conftest import random_model
from tests.helpers.hosts import need_host

need_host("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from huggingface_hub import ModelCard  # noqa: E402
from minicons.scorer import MaskedLMScorer  # noqa: E402
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
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from elmokit.integrations.transformers import (  # noqa: E402
    ElmoForCausalLM,
    ElmoForMaskedLM,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)

WORDS = ["the", "cat", "sat", "on", "the", "mat", "."]


def save(new: torch.nn.Module, model: PretrainedBiLM, folder: Path) -> str:
    new.save_pretrained(folder)  # type: ignore[operator]
    ElmoTokenizer.from_elmokit(model).save_pretrained(folder)
    return str(folder)


def trainer(model: torch.nn.Module, examples: list[dict[str, object]], collator: object, folder: Path) -> Trainer:
    settings = TrainingArguments(
        str(folder), num_train_epochs=100, learning_rate=0.003, report_to="none", use_cpu=True, save_strategy="no"
    )
    return Trainer(model, settings, train_dataset=examples, data_collator=collator, eval_dataset=examples)  # type: ignore[arg-type]


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


def test_a_language_model_of_other_directions_is_refused(model: PretrainedBiLM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ElmoForCausalLM"):
        ElmoForMaskedLM.from_elmokit(random_model(replace(PRESETS["tiny"], bidirectional=False)))
    ElmoForMaskedLM.from_elmokit(model).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="from_elmokit"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


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


def test_word_ids_alone_are_read_by_their_spelling(model: PretrainedBiLM, tmp_path: Path) -> None:
    path = save(ElmoModel.from_elmokit(model), model, tmp_path / "model")
    loaded, tokenizer = AutoModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    inputs = tokenizer(["the cat sat", "the"], return_tensors="pt", padding=True)
    with torch.no_grad():
        alone = loaded(inputs["input_ids"]).last_hidden_state
        torch.testing.assert_close(alone, loaded(**inputs).last_hidden_state)
        torch.testing.assert_close(alone, loaded(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state)
        masked = loaded(tokenizer("the <MASK>", return_tensors="pt")["input_ids"]).last_hidden_state
        unknown = loaded(**tokenizer("the <UNK>", return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(masked, unknown)


def tagged(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, object]]:
    """Sentences whose animals are tagged, encoded as the guides of transformers do."""
    examples = []
    for words in map(str.split, ("the cat sat .", "on the mat", "the zebra", "The zebra sat . the dog")):
        encoded = tokenizer(words, is_split_into_words=True)
        names = {"cat": 1, "zebra": 1, "dog": 1}
        labels = [-100 if i is None else names.get(words[i], 0) for i in encoded.word_ids()]
        examples.append({**encoded, "labels": labels})
    return examples


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


def test_a_saved_model_opens_with_another_head(model: PretrainedBiLM, tmp_path: Path) -> None:
    path = save(ElmoModel.from_elmokit(model), model, tmp_path / "model")
    tagger = AutoModelForTokenClassification.from_pretrained(path, num_labels=5, trainable=False)
    assert isinstance(tagger, ElmoForTokenClassification)
    assert tagger.classifier.weight.std() > 0.01
    inputs = AutoTokenizer.from_pretrained(path)("the cat", return_tensors="pt")
    tagger(**inputs, labels=torch.tensor([[-100, 0, 4, -100]])).loss.backward()
    assert {name for name, value in tagger.named_parameters() if value.grad is not None} == (
        {"elmo.mixes.0.weight", "elmo.mixes.0.gamma", "classifier.weight", "classifier.bias"}
    )
    regression = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    assert regression(**inputs, labels=torch.tensor([0.5])).loss.item() >= 0
    lm = save(ElmoForMaskedLM.from_elmokit(model), model, tmp_path / "lm")
    vectors = AutoModel.from_pretrained(lm)(**inputs).last_hidden_state[0, 1:-1].detach()
    np.testing.assert_allclose(vectors, Elmo(model).embed([["the", "cat"]], layers="top")[0], atol=1e-5)


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


LOAD = """
import sys
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline
path = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
model = AutoModel.from_pretrained(path, trust_remote_code=True)
print(type(tokenizer).__name__, type(model).__name__, type(model).__module__)
fill = pipeline("fill-mask", model=path, trust_remote_code=True)
print(len(fill("the <MASK> sat")))
AutoModelForMaskedLM.from_pretrained(path, trust_remote_code=True).save_pretrained(sys.argv[2])
tokenizer.save_pretrained(sys.argv[2])
"""
ABSENT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.split(".")[0] == "elmokit" else find(name, *more)
"""


@pytest.mark.slow
def test_a_saved_model_imports_elmokit_by_itself_or_says_how_to_install_it(
    model: PretrainedBiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = save(ElmoForMaskedLM.from_elmokit(model), model, tmp_path / "lm")
    ran = run(LOAD, path, str(tmp_path / "again"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["ElmoTokenizer ElmoModel elmokit.integrations.transformers_model", "5"]
    names = [sorted(file.name for file in (tmp_path / folder).iterdir()) for folder in ("lm", "again")]
    assert names[0] == names[1]
    assert (tmp_path / "again" / "modeling_elmo.py").read_text() == (tmp_path / "lm" / "modeling_elmo.py").read_text()
    for auto in ("AutoModel", "AutoTokenizer"):
        load = (
            f"import sys\nfrom transformers import {auto}\n{auto}.from_pretrained(sys.argv[1], trust_remote_code=True)"
        )
        ran = run(ABSENT + load, path)
        assert ran.stderr.splitlines()[-1] == (
            "ImportError: This model needs elmokit. Install it with: pip install 'elmokit[transformers]'"
        )
    ran = run("import sys\nfrom transformers import AutoModel\nAutoModel.from_pretrained(sys.argv[1])", path)
    assert "trust_remote_code=True" in ran.stderr.splitlines()[-1]


def test_a_saved_model_has_a_card_with_the_results_of_its_training(model: PretrainedBiLM, tmp_path: Path) -> None:
    measured = model.replace(card={"name": "tiny", "held_out_perplexity": [54.289, 54.63], "about": "A tiny ELMo."})
    ElmoForMaskedLM.from_elmokit(measured).save_pretrained(tmp_path / "lm")
    card = ModelCard.load(tmp_path / "lm" / "README.md")
    assert card.data.model_name == "tiny"
    assert [(result.metric_type, result.metric_value) for result in card.data.eval_results] == (
        [("perplexity", 54.29), ("perplexity", 54.63)]
    )
    assert card.data.to_dict()["model-index"][0]["results"][0]["metrics"][0]["name"] == "perplexity per token, forward"
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "fill-mask")
    assert "AutoModelForMaskedLM.from_pretrained" in card.content
    assert "A tiny ELMo." in card.content
    (tmp_path / "lm" / "README.md").write_text("Mine.")
    ElmoForCausalLM.from_elmokit(model).save_pretrained(tmp_path / "lm")
    assert (tmp_path / "lm" / "README.md").read_text() == "Mine."

    class Own(ElmoForCausalLM):
        pass

    Own.from_elmokit(model).save_pretrained(tmp_path / "other")
    assert "AutoModelForCausalLM.from_pretrained" in (tmp_path / "other" / "README.md").read_text()
    assert ModelCard.load(tmp_path / "other" / "README.md").data.eval_results is None

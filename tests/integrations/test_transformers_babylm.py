"""BabyLM's evaluation: its calls of transformers work on saved ELMos, and give the probabilities of the biLM."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from elmokit import LanguageModel, PretrainedBiLM
from tests.conftest import random_model
from tests.helpers.hosts import need_host
from tests.helpers.paths import ROOT

need_host("transformers")
pytestmark = pytest.mark.filterwarnings("default")

from transformers import AutoConfig, AutoModel, AutoTokenizer  # noqa: E402

SENTENCES = ["the cat sat on the mat .", "zebras ran .", "the dog and the cat ran on"]


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    """The program that makes the calls of BabyLM's."""
    spec = importlib.util.spec_from_file_location("babylm", ROOT / "benchmarks" / "babylm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["babylm"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> PretrainedBiLM:
    return random_model()


def scorer(replay: ModuleType, model: PretrainedBiLM, backend: str, folder: Path, one_pass: bool = False):  # type: ignore[no-untyped-def]
    replay.save(model, backend, folder)
    return replay.Scorer(folder, backend, one_pass)


def read_as_unknown(model: PretrainedBiLM, sentence: str) -> list[str]:
    """The tokens as the pipeline passes them: by their ids, among which all unknown words are one."""
    assert model.vocabulary is not None
    return [token if token in model.vocabulary.ids else "<UNK>" for token in sentence.split()]


def test_the_causal_backend_gives_the_forward_log_probability_without_the_end(
    replay: ModuleType, model: PretrainedBiLM, tmp_path: Path
) -> None:
    scores = scorer(replay, model, "causal", tmp_path)(SENTENCES)
    surprisals = LanguageModel(model).surprisal([read_as_unknown(model, sentence) for sentence in SENTENCES])
    np.testing.assert_allclose(scores, [-sentence.nats[0, 1:-1].sum() for sentence in surprisals], rtol=1e-4)


def test_a_completion_is_scored_after_its_context(replay: ModuleType, model: PretrainedBiLM, tmp_path: Path) -> None:
    score = scorer(replay, model, "causal", tmp_path)
    (whole,), (context,) = score([SENTENCES[0]]), score(["the cat sat on"])
    (completion,) = score([SENTENCES[0]], [" the mat ."])
    assert completion == pytest.approx(whole - context, rel=1e-4)


def test_one_pass_gives_the_scores_of_a_mask_for_each_word(
    replay: ModuleType, model: PretrainedBiLM, tmp_path: Path
) -> None:
    score = scorer(replay, model, "mlm", tmp_path)
    masked = score(SENTENCES)
    score.score = score.one_pass
    np.testing.assert_allclose(score(SENTENCES), masked, rtol=1e-4)
    assert np.isfinite(masked).all()  # a sentence with an unknown word, too


def test_the_masked_backend_gives_the_product_of_both_directions(
    replay: ModuleType, model: PretrainedBiLM, tmp_path: Path
) -> None:
    sentence, lm = SENTENCES[0], LanguageModel(model)
    (score,) = scorer(replay, model, "mlm", tmp_path)([sentence])
    assert model.vocabulary is not None
    expected = 0.0
    for position, token in enumerate(sentence.split()):
        words = lm.substitutes(sentence.split(), position, n=len(model.vocabulary), special_words=True)
        expected += next(np.log(word.probability) for word in words if word.word == token)
    assert score == pytest.approx(expected, rel=1e-4)


def test_words_of_a_reading_task_have_a_probability_after_their_context(
    replay: ModuleType, model: PretrainedBiLM, tmp_path: Path
) -> None:
    causal = scorer(replay, model, "causal", tmp_path / "causal")
    words = {
        word.word: word.probability
        for word in LanguageModel(model).substitutes(["the", "cat", "ran"], 2, "forward", n=100, special_words=True)
    }
    assert causal.word("the cat", "ran") == pytest.approx(words["ran"], rel=1e-4)
    two = causal.word("the cat", "ran.")  # the word, and then the period after "catran", as the pipeline puts it
    assert two == pytest.approx(words["ran"] * causal.word("the catran", "."), rel=1e-4)
    masked = scorer(replay, model, "mlm", tmp_path / "mlm")
    assert 0 < masked.word("the cat", "ran", n_masks=3) < 1


def test_a_saved_model_gives_its_vectors_for_fine_tuning(
    replay: ModuleType, model: PretrainedBiLM, tmp_path: Path
) -> None:
    replay.save(model, "mlm", tmp_path)
    arguments = {"trust_remote_code": True, "revision": None}
    network, config = (auto.from_pretrained(str(tmp_path), **arguments) for auto in (AutoModel, AutoConfig))
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path), **arguments)
    encoded = tokenizer(["the cat", "a dog ran"], ["the mat .", "the dog"], padding="longest", return_tensors="pt")
    # By position, and with ids alone, as the classifier of the pipeline passes them.
    vectors = network.train()(encoded["input_ids"], encoded["attention_mask"]).last_hidden_state[:, 0]
    classifier = torch.nn.Linear(config.hidden_size, 2)
    classifier(vectors).sum().backward()
    assert vectors.shape == (2, config.hidden_size)
    assert any(parameter.grad is not None for parameter in network.parameters())


def test_the_page_saves_the_directories_that_the_test_uses(replay: ModuleType) -> None:
    page = (ROOT / "docs" / "how-to" / "evaluate" / "babylm.md").read_text(encoding="utf-8")
    code = (ROOT / "benchmarks" / "babylm.py").read_text(encoding="utf-8")
    for call in ("special_words=True)", "tokenizer.pad_token = tokenizer.eos_token", 'direction="forward")'):
        assert call in page
        assert call in code

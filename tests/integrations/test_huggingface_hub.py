"""ELMo on the Hugging Face Hub, through huggingface_hub's own client and a server on this machine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo, PretrainedBiLM, SentenceEmbedder, SentencePooling
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.perplexity import perplexity
from tests.helpers.hosts import need_host
from tests.helpers.http_server import served
from tests.helpers.hub_server import HubServer

need_host("huggingface-hub")

from huggingface_hub import ModelCard  # noqa: E402

from elmokit.integrations.huggingface_hub import HubModel  # noqa: E402

TOKENS = [["the", "cat", "sat", "."]]
UPLOAD = """
import sys
from elmokit import open_model
from elmokit.integrations.huggingface_hub import HubModel
model = HubModel(open_model(sys.argv[1]))
print(model.push_to_hub("ada/elmo", token="hf_secret", model_card_kwargs={"license": "mit", "language": "en"}))
"""
DOWNLOAD = """
import sys
import numpy as np
from elmokit import Elmo
from elmokit.integrations.huggingface_hub import HubModel
mine = Elmo(HubModel.from_pretrained("ada/elmo", token="hf_secret").model).embed([["the", "cat", "sat", "."]])
plain = Elmo.from_pretrained("ada/elmo").embed([["the", "cat", "sat", "."]])
np.savez(sys.argv[1], mine=mine[0], plain=plain[0])
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A part of the Hub, on this machine."""
    with served(HubServer()) as server:
        yield server


def run(code: str, argument: Path, hub: HubServer, home: Path) -> str:
    """Run code in another process: huggingface_hub reads the address of the Hub when it is imported."""
    settings = {"HF_ENDPOINT": hub.address(), "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "no_proxy": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(argument)], env=os.environ | settings, capture_output=True, text=True
    )
    assert not ran.returncode, ran.stderr
    return ran.stdout


@pytest.fixture
def whitened(model: PretrainedBiLM) -> PretrainedBiLM:
    embedder = SentenceEmbedder(Elmo(model), SentencePooling()).fit([*TOKENS, ["the", "dog", "ran"], ["a", "mat"]])
    card = {
        "name": "tiny",
        "description": "A model | for tests.",
        "held_out_perplexity": [70.25, 65.5],
        "corpus": {"n_tokens": 7},
    }
    return embedder.elmo.model.replace(card=card)


@pytest.mark.slow
def test_model_that_was_uploaded_is_downloaded_equal(whitened: PretrainedBiLM, tmp_path: Path, hub: HubServer) -> None:
    save_model(whitened, tmp_path / "model")
    url = run(UPLOAD, tmp_path / "model", hub, tmp_path / "home")
    assert url.strip().startswith(hub.address("/ada/elmo"))
    files = hub.repos["ada/elmo"]
    assert set(files) - {".gitattributes"} == {path.name for path in (tmp_path / "model").iterdir()} | {"README.md"}
    assert len(hub.large_files) == 3
    run(DOWNLOAD, tmp_path / "vectors.npz", hub, tmp_path / "another-home")
    assert any(line.endswith("Bearer hf_secret") for line in hub.seen)
    (expected,) = Elmo(whitened).embed(TOKENS)
    with np.load(tmp_path / "vectors.npz") as vectors:
        for name in ("mine", "plain"):
            np.testing.assert_array_equal(vectors[name], expected)


def test_saved_directory_opens_as_any_model(whitened: PretrainedBiLM, tmp_path: Path) -> None:
    HubModel(whitened).save_pretrained(tmp_path / "saved")
    assert "README.md" in {path.name for path in (tmp_path / "saved").iterdir()}
    for model in (HubModel.from_pretrained(tmp_path / "saved").model, open_model(tmp_path / "saved")):
        np.testing.assert_array_equal(Elmo(model).embed(TOKENS)[0], Elmo(whitened).embed(TOKENS)[0])
        assert model.vocabulary is not None
        assert model.softmax is not None
        assert model.whitening is not None
        assert model.card == whitened.card


def test_model_card_says_what_the_model_says_about_itself(whitened: PretrainedBiLM, tmp_path: Path) -> None:
    HubModel(whitened).save_pretrained(tmp_path / "saved", model_card_kwargs={"license": "mit", "language": "en"})
    card = ModelCard.load(tmp_path / "saved" / "README.md")
    header = card.data.to_dict()
    (results,) = header.pop("model-index")[0]["results"]
    assert results["metrics"] == [
        {"type": "perplexity", "value": 70.25, "name": "perplexity per token, forward"},
        {"type": "perplexity", "value": 65.5, "name": "perplexity per token, backward"},
    ]
    assert header == {
        "library_name": "elmokit",
        "tags": ["elmo"],
        "pipeline_tag": "feature-extraction",
        "license": "mit",
        "language": "en",
    }
    assert "# tiny\n\nA model | for tests.\n" in card.text
    assert "| held_out_perplexity | 70.25, 65.5 |" in card.text
    assert "| vocabulary | 11 words |" in card.text
    assert "| storage |" not in card.text  # that of the file it was opened from
    assert str(tmp_path) not in card.text
    assert 'sentence = "The bank raised its rate ."' in card.text
    assert "http" not in card.text


def test_model_card_of_a_model_that_was_not_evaluated_has_no_results(model: PretrainedBiLM) -> None:
    assert "model-index" not in HubModel(model).generate_model_card().data.to_dict()


def test_model_card_tells_the_unknown_words_beside_the_perplexity(whitened: PretrainedBiLM) -> None:
    text = [["the", "cat"], ["xyzzy", "sat", "plugh"]]
    whitened.card["held_out"] = dataclasses.asdict(perplexity(whitened, text))
    card = HubModel(whitened).generate_model_card(language="tr")
    (results,) = card.data.to_dict()["model-index"][0]["results"]
    names = [metric["name"] for metric in results["metrics"]]
    assert names == [f"perplexity per token, {one} (40.0% unknown words)" for one in ("forward", "backward")]
    row = "| unknown words in the held-out text |"
    assert f"{row} 40.0% of the words are not in the model's vocabulary and count as `<UNK>`" in card.text
    whitened.card["held_out"]["unknown_ratio"] = 0.05
    card = HubModel(whitened).generate_model_card(language="tr")
    assert f"{row} 5.0% of the words, which the perplexity counts as `<UNK>`. |" in card.text
    assert 'sentence = "..."  # in the language of the model' in card.text  # no English sentence for Turkish

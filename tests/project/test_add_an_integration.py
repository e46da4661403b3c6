"""The guide to adding an integration works, and one new file and three lists are all that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-an-integration.md"
# Run with the changed package.
USE = """
import pickle
import tomllib
from pathlib import Path
from runpy import run_path
import numpy as np
from nltk.tag.util import untag
from elmokit import Elmo, open_model
from elmokit.errors import ConfigError
from elmokit.integrations.nltk import ElmoTagger

training = [
    [("The", "DET"), ("bank", "NOUN"), ("raised", "VERB"), ("its", "DET"), ("rate", "NOUN")],
    [("A", "DET"), ("man", "NOUN"), ("plays", "VERB"), ("the", "DET"), ("guitar", "NOUN")],
]
tagger = ElmoTagger(training, layer=2)
sentence = ["The", "woman", "sold", "a", "house"]
tagged = tagger.tag(sentence)
assert untag(tagged) == sentence

def unit_vectors(sentences):
    vectors = np.concatenate([array[2] for array in Elmo.from_pretrained().embed(sentences)])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

vectors = unit_vectors([untag(text) for text in training])
tags = [tag for text in training for _, tag in text]
for vector, (token, tag) in zip(unit_vectors([sentence]), tagged, strict=True):
    means = {name: np.mean([row for row, own in zip(vectors, tags) if own == name], axis=0) for name in set(tags)}
    assert tag == max(means, key=lambda name: vector @ means[name])

assert tagger.accuracy(training) > 0.9
assert tagger.confusion(training)["DET", "DET"] == 4
assert tagger.tag_sents([]) == [] and tagger.tag([]) == []
assert pickle.loads(pickle.dumps(tagger)).tag(sentence) == tagged
assert ElmoTagger(training, open_model("en-mini"), layer=2).tag(sentence) == tagged
for arguments in (([],), (training, None)):
    try:
        ElmoTagger(*arguments, layer=9)
    except ConfigError as error:
        assert "tagged token" in str(error) or "layers 0 to 2" in str(error), error
    else:
        raise AssertionError("An error was expected.")

assert "nltk" in tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
assert run_path("tests/helpers/hosts.py")["MODULES"]["nltk"] == ["nltk"]
"""
WITHOUT_NLTK = """
import sys
sys.modules["nltk"] = None
from elmokit.errors import MissingExtraError
try:
    import elmokit.integrations.nltk
except MissingExtraError as error:
    assert "[nltk]'" in str(error)
else:
    raise AssertionError("An error was expected.")
"""


@pytest.mark.slow
def test_an_integration_is_added_in_one_file_and_three_lists_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("nltk")
    assert len(follow(PAGE, tmp_path)) == 4
    run_in(tmp_path, USE)
    run_in(tmp_path, WITHOUT_NLTK)

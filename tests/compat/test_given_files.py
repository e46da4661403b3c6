"""Each class of the old programs says what is wrong with the files that it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmokit.compat import allennlp, bilm
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.errors import ElmoError, FormatError
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.open import open_model
from tests.conftest import WORDS, random_model

DOORS: dict[str, Callable[[Any, Any], Any]] = {
    "Elmo": lambda options, weights: allennlp.Elmo(options, weights, 2),
    "_ElmoBiLm": allennlp._ElmoBiLm,
    "_ElmoCharacterEncoder": allennlp._ElmoCharacterEncoder,
    "ElmoTokenEmbedder": allennlp.ElmoTokenEmbedder,
    "ElmoTokenEmbedderMultiLang": lambda options, weights: allennlp.ElmoTokenEmbedderMultiLang(
        {"en": options}, {"en": weights}
    ),
    "ElmoEmbedder": allennlp.ElmoEmbedder,
    "load_weights": lambda options, weights: allennlp.ElmoLstm(32, 32, 64, 2).load_weights(weights, options),
    "BidirectionalLanguageModel": bilm.BidirectionalLanguageModel,
    "dump_token_embeddings": lambda options, weights: bilm.dump_token_embeddings("vocab.txt", options, weights, "out"),
    "dump_bilm_embeddings": lambda options, weights: bilm.dump_bilm_embeddings(
        "vocab.txt", "vocab.txt", options, weights, "out"
    ),
    "elmokit.Elmo": lambda options, weights: Elmo.from_pretrained(weights, options=options),
    "elmokit.ElmoModule": lambda options, weights: ElmoModule.from_pretrained(weights, options=options),
    "elmokit.open_model": lambda options, weights: open_model(weights, options=options),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    write_hdf5(random_model(), "options.json", "weights.hdf5")
    Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return Path("options.json"), Path("weights.hdf5")


@pytest.mark.parametrize("door", DOORS)
def test_swapped_files_are_recognized(files: tuple[Path, Path], door: str) -> None:
    options, weights = files
    message = (
        r"^weights\.hdf5 is an HDF5 file, but an options file is JSON\. Were the options file and the weights swapped"
    )
    with pytest.raises(FormatError, match=message):
        DOORS[door](weights, options)
    assert not Path("out").exists()


@pytest.mark.parametrize("door", DOORS)
def test_empty_paths_are_named(files: tuple[Path, Path], door: str) -> None:
    _, weights = files
    for given in (("", ""), ("", weights)):
        with pytest.raises(ElmoError, match=r"(options_file|options file|weight_file|name of the model) is empty"):
            DOORS[door](*given)

"""Opening models by their paths, and errors about paths that are not models."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import h5py
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.errors import ConfigError, FormatError
from elmokit.formats.open import as_model, open_model
from elmokit.formats.save import save_model
from elmokit.lm.language_model import LanguageModel
from elmokit.pretrained.model import FORMER_NAMES, PretrainedBiLM
from tests.conftest import random_model
from tests.helpers.every_format import write_model
from tests.helpers.weights import same_weights


def test_an_opened_model_is_taken_as_it_is_and_a_path_is_opened(model: PretrainedBiLM, tmp_path: Path) -> None:
    assert as_model(model) is model
    save_model(model, tmp_path / "model")
    assert as_model(tmp_path / "model").source == tmp_path / "model"


def test_a_wrong_device_or_precision_is_noticed_before_anything_is_opened() -> None:
    for opened in (Elmo, ElmoModule, LanguageModel):
        with pytest.raises(ConfigError, match="cudda"):
            opened.from_pretrained("no-such-model", device="cudda")
    with pytest.raises(ConfigError, match="int9"):
        open_model("no-such-model", precision="int9")


def test_what_a_model_had_before_answers_with_the_new_call(model: PretrainedBiLM) -> None:
    for name, instead in FORMER_NAMES.items():
        with pytest.raises(AttributeError, match=re.escape(instead)):
            getattr(model, name)
    with pytest.raises(ConfigError, match=r"PretrainedBiLM\.from_modules"):
        PretrainedBiLM(model.build_bilm(), "elmokit")
    with pytest.raises(ConfigError, match=re.escape("Elmo(model, device='cuda')")):
        open_model(device="cuda")
    with pytest.raises(AttributeError, match="card"):
        model.card = {}


@pytest.mark.parametrize("kind", ["zip", "hdf5", "elsewhere"])
def test_files_that_may_not_be_read_are_one_clear_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model("zip" if kind == "elsewhere" else kind, tmp_path / "model")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)  # root may read whatever a mode says
    monkeypatch.setattr(h5py, "is_hdf5", refuse)
    with pytest.raises(FormatError, match=rf"{path.name} cannot be read: Permission denied\."):
        open_model(path, options=tmp_path / "options.json" if kind == "elsewhere" else None)


def test_every_path_to_a_published_model_opens(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(model, tmp_path / "a" / "weights.hdf5")
    save_model(model, tmp_path / "b" / "elmo_tiny_weights.hdf5")
    assert (tmp_path / "b" / "elmo_tiny_options.json").exists()
    for path in ("a", "a/weights.hdf5", "b", "b/elmo_tiny_weights.hdf5"):
        opened = open_model(tmp_path / path)
        assert (opened.family, same_weights(model, opened)) == ("bilm-tf", True)
    (tmp_path / "a" / "options.json").rename(tmp_path / "elsewhere.json")
    assert same_weights(model, open_model(tmp_path / "a" / "weights.hdf5", options=tmp_path / "elsewhere.json"))


def test_an_options_file_opens_the_weights_that_use_it(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(model, tmp_path / "a_weights.hdf5")
    save_model(random_model(seed=1), tmp_path / "b_weights.hdf5")
    assert same_weights(model, open_model(tmp_path / "a_options.json"))


def test_an_options_file_for_a_model_without_one_is_refused(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(model, tmp_path / "run" / "model")
    for source in (None, "en-mini", tmp_path / "run", tmp_path / "run" / "model"):
        with pytest.raises(ConfigError, match=r"an elmokit directory.*x\.json"):
            open_model(source, options=tmp_path / "x.json")


def test_what_is_no_source_is_refused_with_what_to_pass(model: PretrainedBiLM) -> None:
    for source in (Elmo(model), model, 3):
        with pytest.raises(ConfigError, match=f"of type {type(source).__name__}"):
            open_model(source)

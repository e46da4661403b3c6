"""Scripts that import older ELMo programs run unchanged with ``python -m elmokit.compat.as_originals``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.compat.many_langs import Embedder
from elmokit.formats.save import save_model
from tests.conftest import WORDS, random_model

SCRIPT = """
import sys
import helper
import numpy as np
import tensorflow_hub as hub
from allennlp.commands.elmo import ElmoEmbedder
from allennlp.data.tokenizers import Token
from bilm import Batcher, BidirectionalLanguageModel, weight_layers
from bilm.data import BidirectionalLMDataset
from bilm.training import load_vocab
from elmoformanylangs import Embedder
from simple_elmo import ElmoModel

if __name__ == "__main__":
    folder, flag = sys.argv[1:]
    print(helper.NAME, sys.argv[0].endswith("script.py"), flag)
    sentences = [["the", "cat", "sat"], ["the"]]
    print(Embedder(folder).sents2elmo(sentences)[0].shape)
    model = ElmoModel()
    model.load(folder)
    print(model.get_elmo_vectors(sentences).shape)
    print(hub.load(folder).signatures["default"](["the cat sat", "the"])["sequence_len"].tolist())
    print(ElmoEmbedder(None, folder).embed_sentence([str(Token("the"))]).shape)
    ids = Batcher(folder + "/vocab.txt", 50).batch_sentences(sentences)
    ops = BidirectionalLanguageModel(folder + "/options.json", folder + "/model.hdf5")(ids)
    print(tuple(weight_layers("input", ops)["weighted_op"].shape))
    print(load_vocab(folder + "/vocab.txt", 50).size, BidirectionalLMDataset.__name__)
    try:
        hub.ModuleSpec
    except AttributeError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_script_that_imports_the_old_programs_runs_unchanged(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "model" / "model.hdf5")
    (tmp_path / "model" / "model_options.json").rename(tmp_path / "model" / "options.json")
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "helper.py").write_text("NAME = 'next to the script'\n", encoding="utf-8")
    command = [sys.executable, "-m", "elmokit.compat.as_originals", str(tmp_path / "script.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(
        [*command, str(tmp_path / "model"), "--flag"], capture_output=True, text=True, env=environment, check=False
    )
    assert finished.stderr == ""
    assert finished.stdout.splitlines() == [
        "next to the script True --flag",
        "(3, 64)",
        "(2, 3, 64)",
        "[3, 1]",
        "(3, 1, 64)",
        "(2, 3, 64)",
        f"{len(WORDS)} BidirectionalLMDataset",
        "module 'tensorflow_hub' has no attribute 'ModuleSpec'",
    ]


def test_a_program_that_is_installed_itself_is_used_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "simple_elmo.py").write_text("ElmoModel = 'the old one'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # type: ignore[no-untyped-call]
    before = set(sys.modules)
    try:
        importlib.import_module("elmokit.compat.as_originals")
        names = [importlib.import_module(name) for name in ("simple_elmo", "elmoformanylangs")]
        assert names[0].ElmoModel == "the old one"
        assert names[1].Embedder is Embedder
    finally:
        for name in sys.modules.keys() - before:
            if not name.startswith("elmokit.") or name.endswith(".as_originals"):
                del sys.modules[name]
    assert capsys.readouterr().err == (
        f"elmokit: simple_elmo itself is installed ({tmp_path / 'simple_elmo.py'}) and is used. "
        "Uninstall it to use elmokit's.\n"
    )

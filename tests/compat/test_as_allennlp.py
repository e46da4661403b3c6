"""Programs that import AllenNLP's ELMo run unchanged after ``import elmokit.compat.as_allennlp``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.compat.stand_ins import ALLENNLP
from tests.helpers.allennlp_files import write_files

# A program as its users wrote it, with the calls of flair 0.15.1's ELMoEmbeddings among them.
PROGRAM = """
import pickle, sys

import torch
import allennlp.commands.elmo
from allennlp.commands.elmo import ElmoEmbedder
from allennlp.common import Params
from allennlp.common.checks import ConfigurationError
from allennlp.common.file_utils import cached_path
from allennlp.data.tokenizers import Token
from allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from allennlp.modules import Elmo, ScalarMix
from allennlp.modules.elmo import Elmo, _ElmoBiLm, _ElmoCharacterEncoder, batch_to_ids
from allennlp.modules.elmo_lstm import ElmoLstm
from allennlp.modules.lstm_cell_with_projection import LstmCellWithProjection
from allennlp.modules.token_embedders import ElmoTokenEmbedder
from allennlp.nn.util import remove_sentence_boundaries

options, weights = sys.argv[1:]
options = cached_path(options)
indexed = ELMoTokenCharactersIndexer().tokens_to_indices([Token("hello"), Token("world")], None, "elmo")
print(len(indexed["elmo"]), str(Token("hello", idx=3)))
ee = allennlp.commands.elmo.ElmoEmbedder(options_file=options, weight_file=weights, cuda_device=-1)
vectors = ee.embed_batch([["hello", "world"], ["again"]])
print([v.shape for v in vectors], torch.FloatTensor(vectors[0][0, 0, :]).shape)
again = pickle.loads(pickle.dumps(ee))
again.elmo_bilm.to(device="cpu")
again.elmo_bilm._elmo_lstm._states = tuple([state.to("cpu") for state in again.elmo_bilm._elmo_lstm._states])
print((again.embed_sentence(["hello"]) == ee.embed_sentence(["hello"])).all())

table = {"options_file": options, "weight_file": weights, "num_output_representations": 2, "dropout": 0}
elmo = Elmo.from_params(Params(table))
print(elmo(batch_to_ids([["First", "sentence", "."]]))["elmo_representations"][1].shape)
for name in ("allennlp.models", "allennlp.modules.attention"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
try:
    from allennlp.data import Vocabulary
except ImportError as error:
    print(str(error).split(" (")[0])
"""


@pytest.mark.slow
def test_a_program_that_imports_allennlp_runs_unchanged(tmp_path: Path) -> None:
    files = write_files(tmp_path / "model")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    code = "import elmokit.compat.as_allennlp, runpy, sys; program = sys.argv.pop(1); runpy.run_path(program)"
    command = [sys.executable, "-c", code, str(tmp_path / "program.py"), files.options, files.weights]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert finished.stderr == ""
    assert finished.stdout.splitlines() == [
        "2 hello",
        "[(3, 2, 16), (3, 1, 16)] torch.Size([16])",
        "True",
        "torch.Size([1, 3, 16])",
        "No module named 'allennlp.models'",
        "No module named 'allennlp.modules.attention'",
        "cannot import name 'Vocabulary' from 'allennlp.data'",
    ]


def test_an_installed_allennlp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "allennlp.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # type: ignore[no-untyped-call]
    for name in (*ALLENNLP, "elmokit.compat.as_allennlp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=f"AllenNLP itself is installed .*{tmp_path}"):
        importlib.import_module("elmokit.compat.as_allennlp")

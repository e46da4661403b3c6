"""A program that keeps a copy of AllenNLP's ``elmo`` command or of its ``ElmoEmbedder`` runs, with the same numbers."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.compat.allennlp_embedder import (
    check_for_gpu,
    get_device_of,
    get_lengths_from_binary_sequence_mask,
    lazy_groups_of,
)
from elmokit.compat.stand_ins import ALLENNLP, provide
from tests.helpers.allennlp_files import write_files

# Imports and calls of such a copy; the code is written for this test.
PROGRAM = """
import argparse, logging, os

import h5py
import numpy
import torch

from allennlp.commands.subcommand import Subcommand
from allennlp.common.checks import ConfigurationError
from allennlp.common.tqdm import Tqdm
from allennlp.common.util import lazy_groups_of, prepare_global_logging
from allennlp.data.token_indexers.elmo_indexer import ELMoTokenCharactersIndexer
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
from allennlp.nn.util import remove_sentence_boundaries

logger = logging.getLogger(__name__)


class Elmo(Subcommand):
    def add_subparser(self, name, parser):
        command = parser.add_parser(name)
        for argument in ("input", "output", "options", "weights"):
            command.add_argument(argument)
        command.set_defaults(func=run_command)
        return command


class OwnEmbedder:
    def __init__(self, options_file, weight_file, cuda_device=-1):
        self.indexer = ELMoTokenCharactersIndexer()
        self.bilm = _ElmoBiLm(options_file, weight_file)
        if cuda_device >= 0:
            self.bilm = self.bilm.cuda(device=cuda_device)

    def tensors_of(self, batch):
        output = self.bilm(batch_to_ids(batch))
        pairs = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.cat([layer.unsqueeze(1) for layer, _ in pairs], dim=1), pairs[0][1]

    def embed_batch(self, batch):
        layers, mask = self.tensors_of(batch)
        lengths = [int(row.sum()) for row in mask]
        return [layers[k, :, :n, :].detach().cpu().numpy() for k, n in enumerate(lengths)]

    def embed_sentences(self, sentences, batch_size):
        for batch in lazy_groups_of(iter(sentences), batch_size):
            yield from self.embed_batch(batch)


def run_command(args):
    handler = prepare_global_logging(os.path.dirname(args.output), False)
    logger.warning("writing")
    embedder = OwnEmbedder(args.options, args.weights)
    with open(args.input) as lines, h5py.File(args.output, "w") as file:
        vectors = embedder.embed_sentences([line.split() for line in lines], 2)
        for number, array in enumerate(Tqdm.tqdm(vectors)):
            file.create_dataset(str(number), data=array)
    print("done")
    return handler
"""
IMPORTED_BY_THE_MODULE = (
    "ConfigurationError ELMoCharacterMapper ELMoTokenCharactersIndexer ElmoLstm Params ScalarMix Token "
    "add_sentence_boundary_token_ids cached_path get_device_of lazy_groups_of logger remove_sentence_boundaries"
)
SENTENCES = [["the", "cat", "sat"], ["a"], ["dogs", "ran", "."], ["the", "cat"]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the program, which imported AllenNLP's."""
    for name in ALLENNLP:
        monkeypatch.delitem(sys.modules, name, raising=False)
    provide(ALLENNLP)
    names: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM, names)
    yield names
    for name in ALLENNLP:
        sys.modules.pop(name)


def test_a_copy_of_the_embedder_computes_the_same(program: dict[str, Any], tmp_path: Path) -> None:
    files = write_files(tmp_path)
    own, ours = program["OwnEmbedder"](files.options, files.weights), ElmoEmbedder(files.options, files.weights)
    for _ in range(2):  # the state is carried in both
        found, expected = own.embed_sentences(SENTENCES, 3), ours.embed_sentences(SENTENCES, 3)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_copy_of_the_command_writes_its_vectors_and_logs(
    program: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("stdout", "stderr"):  # the command replaces them
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    files = write_files(tmp_path / "model")
    (tmp_path / "in.txt").write_text("".join(f"{' '.join(sentence)}\n" for sentence in SENTENCES), encoding="utf-8")
    parser = argparse.ArgumentParser()
    program["Elmo"]().add_subparser("elmo", parser.add_subparsers())
    names = str(tmp_path / "in.txt"), str(tmp_path / "out.hdf5"), str(files.options), str(files.weights)
    arguments = parser.parse_args(["elmo", *names])
    handler = arguments.func(arguments)
    logging.getLogger().removeHandler(handler)
    for file in (handler, sys.stdout.log, sys.stderr.log):  # type: ignore[attr-defined]
        file.close()
    assert "done" in capsys.readouterr().out
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [file[str(number)].shape for number in range(4)] == [(3, len(s), 16) for s in SENTENCES]
    log = (tmp_path / "stdout.log").read_text(encoding="utf-8")
    assert "done\n" in log
    assert "WARNING - program - writing" in log
    assert "4it" in (tmp_path / "stderr.log").read_text(encoding="utf-8")


def test_the_module_of_elmo_has_the_names_that_it_imported(program: dict[str, Any]) -> None:
    module = __import__("allennlp.modules.elmo", fromlist=["elmo"])
    assert [name for name in IMPORTED_BY_THE_MODULE.split() if not hasattr(module, name)] == []


def test_small_functions_do_what_their_names_say() -> None:
    assert list(lazy_groups_of(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]
    assert list(lazy_groups_of(iter([]), 2)) == []
    assert get_device_of(torch.zeros(1)) == -1
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert get_lengths_from_binary_sequence_mask(mask).tolist() == [2, 1]
    check_for_gpu(-1)
    check_for_gpu([-1])

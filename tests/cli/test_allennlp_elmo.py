# ruff: noqa: RUF001 (typographic marks are part of what is embedded)
"""The argument lines of ``allennlp elmo`` and of AllenNLP's vocabulary script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.compat.allennlp import ElmoEmbedder
from tests.helpers.allennlp_files import DIM, Files, write_files
from tests.helpers.shell import Shell

LINES = ["The cat sat .", "one\u00a0two", "a / b :", "The cat sat .", "don’t – ‘ a ’ “ b ” … — é"]


@pytest.fixture
def files(folder: Path) -> Files:
    Path("in.txt").write_text("".join(f" {line} \r\n" for line in LINES), encoding="utf-8")
    return write_files(folder / "theirs")


def model_of(files: Files) -> tuple[str, ...]:
    return ("--options-file", files.options, "--weight-file", files.weights)


@pytest.mark.parametrize("mode", ["all", "top", "average"])
def test_layers_are_those_of_the_old_embedder_batch_by_batch(shell: Shell, files: Files, mode: str) -> None:
    code, _, err = shell("allennlp-elmo", "in.txt", "new/out.hdf5", f"--{mode}", "--batch-size", "2", *model_of(files))
    assert (code, "5 sentences, 25 tokens" in err) == (0, True)
    fresh = ElmoEmbedder(files.options, files.weights).embed_sentences([line.split() for line in LINES], 2)
    with h5py.File("new/out.hdf5") as file:
        assert set(file) == {*"01234", "sentence_to_index"}
        for number, layers in enumerate(fresh):
            expected = {"all": layers, "top": layers[2], "average": layers.mean(axis=0)}[mode]
            np.testing.assert_allclose(file[str(number)][...], expected, rtol=1e-4, atol=1e-5)
        sentences = json.loads(file["sentence_to_index"].asstr()[0])
    assert sentences == {"The cat sat .": "3", "one\u00a0two": "1", "a / b :": "2", LINES[4]: "4"}


def test_every_old_flag_is_taken_and_the_output_is_replaced(shell: Shell, files: Files) -> None:
    Path("out.hdf5").write_text("old", encoding="utf-8")
    flags = ["--vocab-path", "none.txt", "--cuda-device", "-1", "--file-friendly-logging", "--forget-sentences"]
    more = ["--include-package", "my.package", "--include-package", "other"]
    assert shell("allennlp-elmo", *flags, *more, "--all", "in.txt", "out.hdf5", *model_of(files))[0] == 0
    with h5py.File("out.hdf5") as file:
        assert set(file) == set("01234")
        assert file["0"].shape == (3, 4, DIM)


def test_the_flag_of_the_tutorials_writes_the_map_under_both_names(shell: Shell, files: Files) -> None:
    assert shell("allennlp-elmo", "in.txt", "o.hdf5", "--top", "--include-sentence-indices", *model_of(files))[0] == 0
    with h5py.File("o.hdf5") as file:
        assert file["sentence_indices"].asstr()[0] == file["sentence_to_index"].asstr()[0]


def test_sentences_as_keys(shell: Shell, files: Files) -> None:
    Path("in.txt").write_text("one two\nthree :\n", encoding="utf-8")
    assert shell("allennlp-elmo", "in.txt", "o.hdf5", "--top", "--use-sentence-keys", *model_of(files))[0] == 0
    with h5py.File("o.hdf5") as file:
        assert set(file) == {"one two", "three :"}


def test_a_blank_line_in_standard_input_is_refused_too(
    shell: Shell, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("blank.txt").open("w+", encoding="utf-8") as lines:
        lines.write("a\n\n")
        lines.seek(0)
        monkeypatch.setattr(sys, "stdin", lines)
        code, _, err = shell("allennlp-elmo", "-", "o.hdf5", "--all", *model_of(files))
    assert (code, "line 2 is blank; expected a sentence on each line" in err) == (2, True)
    assert not list(Path().glob("*o.hdf5*"))


def test_raw_text_is_read_with_a_warning(shell: Shell, files: Files) -> None:
    Path("raw.txt").write_text("Anna left, and John didn't see her.\n" * 9, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"raw\.txt looks like raw text: 'left,' is read as one token"):
        assert shell("allennlp-elmo", "raw.txt", "o.hdf5", "--top", *model_of(files))[0] == 0


def test_vocabulary_script_from_the_shell(shell: Shell, files: Files) -> None:
    Path("words.txt").write_text("the\ncat\n", encoding="utf-8")
    old = ["--vocab_path", "words.txt", "--elmo_config", files.options, "--elmo_weights", files.weights]
    code, _, err = shell("allennlp-vocab", *old, "--output_dir", "out", "--use_custom_oov_token", "False")
    assert (code, "@@UNKNOWN@@" in err) == (2, True)
    assert shell("allennlp-vocab", *old, "--output_dir", "out", "--use_custom_oov_token", "True")[0] == 0
    assert {path.name for path in Path("out").iterdir()} == {"words.txt", "elmo_embeddings.txt.gz"}

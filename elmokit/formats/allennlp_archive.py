"""The unpacked archive of an AllenNLP model that has an ELMo: published weights and options in ``fta/``.

Before version 1.0, AllenNLP archived the files that a config names, each under its key in the config:
``fta/model.text_field_embedder.token_embedders.elmo.weight_file``, and the same with ``options_file``.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

from elmokit.errors import FormatError
from elmokit.formats import bilm_tf_hdf5
from elmokit.formats.format import Format
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.sidecars import visible_files


class AllenNLPArchive(Format):
    """The archive of an AllenNLP model with an ELMo, unpacked."""

    name = bilm_tf_hdf5.FORMAT.name  # the files are those of bilm-tf
    description = "an AllenNLP model with an ELMo"
    files = ("*options_file", "*weight_file")

    def recognizes(self, path: Path) -> bool:
        return path.is_dir() and bool(visible_files(path / "fta", "*weight_file"))

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        # There is a copy for each module that uses the ELMo.
        weights, *copies = visible_files(path / "fta", "*weight_file")
        if any(not filecmp.cmp(weights, copy, shallow=False) for copy in copies):
            names = ", ".join(file.name for file in (weights, *copies))
            raise FormatError(f"{path} holds several ELMo models ({names}). Unpack it, and name the one to open.")
        options = options or weights.with_name(f"{weights.name.removesuffix('weight_file')}options_file")
        return bilm_tf_hdf5.FORMAT.load(weights, options, words)


FORMAT = AllenNLPArchive()

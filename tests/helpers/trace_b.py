"""The models of bilm-tf.md, appendix B: deterministic weights, as checkpoints of bilm-tf."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.formats import bilm_tf
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import Vocabulary
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_names import checkpoint_tensors

WORDS = ["<S>", "</S>", "<UNK>", "the", "ran", "cat", "dog", "a", "sat", "on", "mat"]
LINES = ["a cat sat on the mat", "the dog ran", "cats and dogs ran home", "the end"]
SIZES = {"projection_dim": 6, "hidden_dim": 12, "n_layers": 2, "dropout": 0.0}
CHARS = BiLMConfig(CharCNNConfig(((1, 4), (2, 6), (3, 8)), 4, 1, max_chars=8), **SIZES)  # type: ignore[arg-type]
TIED_WORDS = BiLMConfig(None, len(WORDS), **SIZES)  # type: ignore[arg-type]
FORWARD_WORDS = BiLMConfig(None, len(WORDS), skip_connections=False, bidirectional=False, **SIZES)  # type: ignore[arg-type]


def write_checkpoint(folder: Path, config: BiLMConfig, tied: bool = False) -> Path:
    """A folder as bilm-tf leaves it before the first step; the weights are 0.4 sin(1.3 k + 0.01 S).

    k counts a variable's entries from 0, S sums the character codes of its name.
    """
    softmax = FullSoftmax(len(WORDS), config.projection_dim)
    tensors = checkpoint_tensors(PretrainedBiLM.from_modules(BiLM(config), softmax, vocabulary=Vocabulary(WORDS)))
    if tied:
        del tensors["lm/softmax/W"]
    for name, tensor in tensors.items():
        if name.startswith("lm/"):
            codes = sum(map(ord, name.removeprefix("lm/")))
            values = 0.4 * np.sin(1.3 * np.arange(tensor.size) + 0.01 * codes)
            tensors[name] = values.astype(np.float32).reshape(tensor.shape)
    write_bundle(folder / "model.ckpt-0", tensors)
    options = bilm_tf.options_from_config(config) | {"share_embedding_softmax": tied}
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return folder

"""Measure what a model loses when its weights are stored in fewer bits: size, perplexity, cosine of its vectors.

    python benchmarks/storage.py en-mini TEXT... [--sentences 1000]

Perplexity is that of the first sentences of each text, forward and backward, with the stored start state.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional as F

from elmokit.embedding.elmo import Elmo
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.format import Storage
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.lm.perplexity import perplexity
from elmokit.storage.text_files import read_sentences

STORAGES: tuple[Storage, ...] = ("float32", "float16", "int8")


def main() -> None:
    """Print one table row for each storage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model with a softmax and a vocabulary")
    parser.add_argument("texts", metavar="text", nargs="+", type=Path, help="held-out text")
    parser.add_argument("--sentences", type=int, default=1000, help="of each text  [default: 1000]")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    model.precision = "float32"  # what is measured is the storage alone
    texts = [list(islice(read_sentences(path), arguments.sentences)) for path in arguments.texts]
    print("| storage | bytes | " + " | ".join(path.name for path in arguments.texts) + " | mean cosine | lowest |")
    print("|---" * (4 + len(texts)) + "|")
    exact = _layers(model, texts)
    with tempfile.TemporaryDirectory() as folder:
        for storage in STORAGES:
            path = Path(folder) / storage
            save_folder(model, path, storage)
            variant, size = load_folder(path), sum(file.stat().st_size for file in path.iterdir())
            found = [perplexity(variant, text, "warm").per_direction for text in texts]
            cosines = F.cosine_similarity(_layers(variant, texts), exact, dim=-1)
            shown = " | ".join(" / ".join(f"{value:.2f}" for value in values) for values in found)
            drift = f"{cosines.mean():.5f} | {cosines.min():.4f}"
            print(f"| {storage} | {size:,} | {shown} | {drift} |", flush=True)


def _layers(model: PretrainedBiLM, texts: list[list[list[str]]]) -> torch.Tensor:
    """Return the vectors of all layers of all tokens, ``(layers * tokens, dim)``."""
    elmo = Elmo(model)
    return torch.cat([torch.from_numpy(one).flatten(0, 1) for text in texts for one in elmo.embed(text)])


if __name__ == "__main__":
    main()

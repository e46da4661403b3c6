"""Train a model of the letters of unknown words, with PyTorch, on those of the text that a model was trained on.

    python recipes/letter_model.py 'corpus/*.txt.xz' --held-out dev.txt --out my-model

What a word costs that is not in a model's vocabulary is its probability as <UNK>, and its letters. Most words of a
vocabulary are common ones, and most unknown words are names, numbers and compounds. So letters that were learned from
unknown words cost less than those learned from the vocabulary, and ``spelling_nats`` and bits per character come
closer to what the text holds.

The text is tokenized, one sentence per line. The letter model (elmokit/pretrained/letter_model.py) is stored with the
model, in a few kB, and used from then on.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import open_model, save_model
from elmokit.formats.format import Storage
from elmokit.lm.spelling import spelling_of
from elmokit.pretrained.letter_model import EDGE, N_SYMBOLS, LetterModel
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import find_text_files, read_lines

MAX_BYTES = 40  # of a word to train on
LEARNING_RATE, WARM_UP = 0.01, 50


def count_unknown(model: PretrainedBiLM, patterns: Sequence[str]) -> Counter[str]:
    """Count the words of a text that are not in a model's vocabulary, as the model reads them."""
    assert model.vocabulary is not None
    words: Counter[str] = Counter()
    for path in find_text_files(patterns):
        for line in read_lines(path):
            words.update(line.split())
    unknown: Counter[str] = Counter()
    for word, count in words.items():
        if (read := model.read(word)) not in model.vocabulary.ids:
            unknown[read] += count
    return unknown


class Words:
    """Words to draw from, as often as they occur."""

    def __init__(self, counts: Counter[str], n_context: int) -> None:
        # Sorted, so that the order in which they were read does not matter.
        encoded = [(word.encode("utf-8", "replace"), count) for word, count in sorted(counts.items())]
        kept = [(word, count) for word, count in encoded if len(word) <= MAX_BYTES]
        self.n_context = n_context
        self.ends = np.cumsum([count for _, count in kept])
        self.lengths = np.array([len(word) + 1 for word, _ in kept])
        self.symbols = np.full((len(kept), n_context + MAX_BYTES + 1), EDGE, np.int16)
        for row, (word, _) in enumerate(kept):
            self.symbols[row, n_context : n_context + len(word)] = list(word)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw words: the context of each of their symbols, and the symbol."""
        chosen = np.searchsorted(self.ends, rng.integers(self.ends[-1], size=n), side="right")
        rows, lengths = self.symbols[chosen], self.lengths[chosen]
        windows = np.lib.stride_tricks.sliding_window_view(rows, self.n_context + 1, axis=1)
        is_there = np.arange(windows.shape[1]) < lengths[:, None]
        pairs = torch.from_numpy(windows[is_there].astype(np.int64))
        return pairs[:, :-1], pairs[:, -1]


def train(
    counts: Counter[str], *, units: int, dim: int, n_context: int, steps: int, batch: int, seed: int
) -> LetterModel:
    """Train a letter model on the symbols of words that are drawn as often as they occur."""
    words, rng = Words(counts, n_context), np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int, scale: float) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).requires_grad_()

    embedding = weights(N_SYMBOLS, dim, scale=0.3)
    hidden_weight = weights(units, n_context * dim, scale=(n_context * dim) ** -0.5)
    hidden_bias = weights(units, scale=0.0)
    output_weight = weights(dim, units, scale=units**-0.5)
    bias = weights(N_SYMBOLS, scale=0.0)
    parameters = [embedding, hidden_weight, hidden_bias, output_weight, bias]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARM_UP) * (1 - step / steps)
        contexts, symbols = words.draw(batch, rng)
        hidden = F.relu(F.linear(embedding[contexts].flatten(1), hidden_weight, hidden_bias))
        loss = F.cross_entropy(F.linear(F.linear(hidden, output_weight), embedding, bias), symbols)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return LetterModel(*(parameter.detach().numpy() for parameter in parameters))


def bits_of_word(model: PretrainedBiLM, counts: Counter[str]) -> float:
    """Return the mean bits of the letters of an unknown word."""
    spelling = spelling_of(model)
    return sum(count * spelling.bits(word) for word, count in counts.items()) / counts.total()


def main() -> None:
    """Train a letter model and store it with its model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="files, directories or patterns")
    parser.add_argument("--model", help="as in open_model; the included model by default")
    parser.add_argument("--out", type=Path, required=True, help="directory of the model with its letter model")
    parser.add_argument("--storage", choices=get_args(Storage), default="int8", help="of the whole model")
    parser.add_argument("--held-out", nargs="+", help="text to measure the letters of its unknown words")
    parser.add_argument("--units", type=int, default=96)
    parser.add_argument("--dim", type=int, default=16, help="of the embedding of a byte")
    parser.add_argument("--n-context", type=int, default=7, help="how many bytes are read")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=256, help="words")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    model = open_model(options.model)
    held_out = None if options.held_out is None else count_unknown(model, options.held_out)
    if held_out is not None:
        print(f"{held_out.total():,} unknown words, {bits_of_word(model, held_out):.2f} bits each")
    counts = count_unknown(model, options.text)
    print(f"{counts.total():,} unknown words to train on, {len(counts):,} distinct", flush=True)
    letters = train(
        counts,
        units=options.units,
        dim=options.dim,
        n_context=options.n_context,
        steps=options.steps,
        batch=options.batch,
        seed=options.seed,
    )
    model = model.replace(letters=letters)
    save_model(model, options.out, storage=options.storage, overwrite=True)
    if held_out is not None:
        print(f"{held_out.total():,} unknown words, {bits_of_word(open_model(options.out), held_out):.2f} bits each")


if __name__ == "__main__":
    main()

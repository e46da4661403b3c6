"""Compute the layers of a frozen biLM once and cache them on disk, so that an epoch costs the tagger only.

python examples/cached_layers.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn

from elmokit import Elmo
from elmokit.network.scalar_mix import ScalarMix
from elmokit.tasks.layer_cache import LayerCache

TEXT = """Mira/NAME visits/O Oslo/PLACE ./O
The/O bus/O to/O Bergen/PLACE leaves/O at/O nine/O ./O
Ann/NAME met/O Jonas/NAME in/O Rome/PLACE ./O"""
SENTENCES = [[tuple(token.rsplit("/", 1)) for token in line.split()] for line in TEXT.split("\n")]
TAGS = ["O", "NAME", "PLACE"]


class Tagger(nn.Module):
    """A scalar mix of cached layers, a bidirectional LSTM and a score for each tag."""

    def __init__(self, n_layers: int, dim: int) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers)
        self.lstm = nn.LSTM(dim, 32, batch_first=True, bidirectional=True)
        self.output = nn.Linear(64, len(TAGS))

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Return ``(batch, time, tags)`` for layers ``(layers, batch, time, dim)`` and a mask ``(batch, time)``."""
        return self.output(self.lstm(self.mix(layers, mask))[0])


def main(directory: str) -> None:
    """Fit the sentences in two batches, reading their layers from disk in every epoch."""
    torch.manual_seed(0)
    cache = LayerCache(directory, Elmo.from_pretrained())
    words = [[word for word, _ in sentence] for sentence in SENTENCES]
    print(f"computed: {cache.fill(words)} tokens")  # 0 on the next run if you keep the directory
    tagger = Tagger(cache.elmo.n_layers, cache.elmo.output_dim)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.01)
    gold = [torch.tensor([TAGS.index(tag) for _, tag in sentence]) for sentence in SENTENCES]
    for step in range(40):
        layers, mask = cache.batch(words[step % 2 :: 2])
        loss = nn.functional.cross_entropy(tagger(layers, mask)[mask], torch.cat(gold[step % 2 :: 2]))
        (loss + 0.001 * tagger.mix.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    layers, mask = cache.batch(words)
    print(f"fitted: {(tagger(layers, mask)[mask].argmax(-1) == torch.cat(gold)).float().mean():.0%} of the tags")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        main(directory)

"""Add ELMo to the input of a PyTorch tagger; the three lines that do it are marked.

python examples/tagger.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit import ElmoModule

TEXT = """Mira/NAME visits/O Oslo/PLACE ./O
The/O bus/O to/O Bergen/PLACE leaves/O at/O nine/O ./O
Ann/NAME met/O Jonas/NAME in/O Rome/PLACE ./O
Nobody/O sleeps/O on/O this/O train/O ./O"""
SENTENCES = [[tuple(token.rsplit("/", 1)) for token in line.split()] for line in TEXT.split("\n")]
TAGS = ["O", "NAME", "PLACE"]


class Tagger(nn.Module):
    """A scalar mix, a bidirectional LSTM and a score for each tag."""

    def __init__(self) -> None:
        super().__init__()
        self.elmo = ElmoModule.from_pretrained(dropout=0.5)  # 1
        self.lstm = nn.LSTM(self.elmo.output_dim, 32, batch_first=True, bidirectional=True)
        self.output = nn.Linear(64, len(TAGS))

    def forward(self, sentences: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Return scores ``(batch, time, tags)`` and a mask ``(batch, time)``."""
        (vectors,), mask, _ = self.elmo(self.elmo.ids(sentences))  # 2
        return self.output(self.lstm(vectors)[0]), mask


def main() -> None:
    """Fit the sentences, then tag a new one."""
    torch.manual_seed(0)
    tagger = Tagger()
    words = [[word for word, _ in sentence] for sentence in SENTENCES]
    gold = torch.tensor([TAGS.index(tag) for sentence in SENTENCES for _, tag in sentence])
    optimizer = torch.optim.Adam([weight for weight in tagger.parameters() if weight.requires_grad], lr=0.01)
    tagger.train()
    for _ in range(30):
        scores, mask = tagger(words)
        loss = nn.functional.cross_entropy(scores[mask], gold) + 0.001 * tagger.elmo.penalty()  # 3
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tagger.eval()
    scores, mask = tagger(words)
    print(f"fitted: {(scores[mask].argmax(-1) == gold).float().mean():.0%} of the tags")
    new = ["Jonas", "leaves", "Oslo", "at", "nine", "."]
    print(" ".join(f"{word}/{TAGS[tag]}" for word, tag in zip(new, tagger([new])[0][0].argmax(-1), strict=True)))


if __name__ == "__main__":
    main()

"""Classify sentences with two scalar mixes, one before and one after the model's own LSTM.

python examples/classifier.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit import ElmoModule

TEXTS = {
    "river": [
        "We sat on the bank of the river .",
        "The stream had washed the bank away .",
        "Fish swim near the bank .",
    ],
    "money": ["The bank lent him money .", "She works in a bank in town .", "His bank raised the interest ."],
}
NAMES = list(TEXTS)


class Classifier(nn.Module):
    """The input mix feeds an LSTM; the output mix is concatenated to its output; max pooling over time decides."""

    def __init__(self) -> None:
        super().__init__()
        self.elmo = ElmoModule.from_pretrained(n_mixes=2, dropout=0.3)
        self.lstm = nn.LSTM(self.elmo.output_dim, 16, batch_first=True, bidirectional=True)
        self.output = nn.Linear(32 + self.elmo.output_dim, len(NAMES))

    def forward(self, sentences: list[list[str]]) -> Tensor:
        """Return scores ``(batch, classes)``."""
        (below, above), mask, _ = self.elmo(self.elmo.ids(sentences))
        joined = torch.cat([self.lstm(below)[0], above], dim=-1)
        return self.output(joined.masked_fill(~mask[..., None], -1e9).amax(dim=1))


def main() -> None:
    """Fit the sentences and print what the mixes learned."""
    torch.manual_seed(0)
    model = Classifier().train()
    sentences = [text.split() for texts in TEXTS.values() for text in texts]
    gold = torch.tensor([number for number, texts in enumerate(TEXTS.values()) for _ in texts])
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(sentences), gold) + 0.001 * model.elmo.penalty()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    print(f"fitted: {(model(sentences).argmax(-1) == gold).float().mean():.0%} of the sentences")
    for name, mix in zip(("input", "output"), model.elmo.mixes, strict=True):
        print(f"{name} mix: layers {mix.weight.softmax(0).tolist()}, gamma {mix.gamma.item():.2f}")


if __name__ == "__main__":
    main()

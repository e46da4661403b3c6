"""Fine-tune the biLM jointly with a PyTorch model, at a lower learning rate; here only its top layer is used.

python examples/finetune_jointly.py
"""

from __future__ import annotations

import torch
from torch import nn

from elmokit import ElmoModule

QUESTIONS = ["Who wrote this ?", "Where is Oslo ?", "Who came first ?", "Where did she go ?", "Who sings ?"]
KINDS = ["person", "place", "person", "place", "person"]


def main() -> None:
    """Fit the questions and print how far the biLM's weights moved."""
    torch.manual_seed(0)
    elmo = ElmoModule.from_pretrained(layers="top", trainable=True)  # or "average", a layer number, or [0, 1]
    output = nn.Linear(elmo.output_dim, 2)
    before = {name: weight.detach().clone() for name, weight in elmo.bilm.named_parameters()}
    optimizer = torch.optim.Adam(
        [
            {"params": elmo.bilm.parameters(), "lr": 1e-4},
            {"params": [weight for weight in elmo.mixes.parameters() if weight.requires_grad], "lr": 1e-2},
            {"params": output.parameters(), "lr": 1e-2},
        ]
    )
    sentences = [question.split() for question in QUESTIONS]
    gold = torch.tensor([("person", "place").index(kind) for kind in KINDS])
    elmo.train()
    for step in range(15):
        (vectors,), mask, _ = elmo(elmo.ids(sentences))
        scores = output(vectors.sum(dim=1) / mask.sum(dim=1, keepdim=True))
        loss = nn.functional.cross_entropy(scores, gold)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 7 == 0:
            print(f"step {step:>2}  loss {loss.item():.4f}")
    moved = max((weight - before[name]).abs().max().item() for name, weight in elmo.bilm.named_parameters())
    print(f"fitted: {(scores.argmax(-1) == gold).float().mean():.0%} of the questions")
    print(f"the biLM moved by up to {moved:.4f}")


if __name__ == "__main__":
    main()

"""Perplexity of a model as if its vocabulary held the first N words only, beside models of those words.

    python benchmarks/fewer_words.py MODEL N TEXT...

The words left out are unknown ones then: their probabilities are added to that of <UNK>, which is exact. Each sentence
is read from the warm state, as by ``elmokit perplexity``. Prints a Markdown table.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from torch import Tensor

from elmokit.initial_state import initial_state
from elmokit.io.text_files import read_sentences
from elmokit.nn.softmax import FullSoftmax
from elmokit.scoring.perplexity import perplexity
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.open import open_model


class FewerWords(FullSoftmax):
    """A softmax over all words that scores the first of them, and the others together as the unknown word."""

    def __init__(self, whole: FullSoftmax, vocabulary: Vocabulary) -> None:
        super().__init__(*whole.weight.shape)
        self.load_state_dict(whole.state_dict())
        self.n_words, self.unknown_id = len(vocabulary), vocabulary.unknown_id

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """As in the base class, for ids of the smaller vocabulary."""
        found = []
        for rows, ids in zip(torch.split(hidden, 256), torch.split(word_ids, 256), strict=True):
            logs = self.scores(rows).log_softmax(dim=1)
            rare = torch.cat([logs[:, self.unknown_id, None], logs[:, self.n_words :]], dim=1).logsumexp(dim=1)
            logs = logs[:, : self.n_words].index_copy(1, torch.tensor([self.unknown_id]), rare[:, None])
            found.append(-logs.gather(1, ids[:, None])[:, 0])
        return torch.cat(found)


def main() -> None:
    """Score and print."""
    name, n_words, texts = sys.argv[1], int(sys.argv[2]), [Path(text) for text in sys.argv[3:]]
    model = open_model(name)
    if not isinstance(model.softmax, FullSoftmax) or model.vocabulary is None:
        raise SystemExit(f"{name} has no full softmax.")
    vocabulary = Vocabulary(model.vocabulary.words[:n_words])
    fewer = dataclasses.replace(model, softmax=FewerWords(model.softmax, vocabulary), vocabulary=vocabulary)
    start = initial_state(model)
    print("| text | predictions | unknown words | forward | backward |\n|---|---|---|---|---|")
    for text in texts:
        found = perplexity(fewer, read_sentences(text), start=start)
        values = " | ".join(f"{value:.2f}" for value in found.per_direction)
        print(
            f"| {'/'.join(text.parts[-2:])} | {found.n_predictions:,} | {found.unknown_ratio:.1%} | {values} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

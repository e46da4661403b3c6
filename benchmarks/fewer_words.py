"""Compute the perplexity of a model as if its vocabulary had only its first N words.

    python benchmarks/fewer_words.py MODEL N TEXT...

The perplexity can then be compared with that of a model trained with those N words. All other words count as unknown:
their probabilities are added to that of <UNK>, which is exact. Each sentence starts from the model's fixed initial
state, as in ``elmokit evaluate perplexity``. The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from elmokit import open_model
from elmokit.embedding.start_state import start_state
from elmokit.engine.precision import Precision
from elmokit.lm.perplexity import perplexity
from elmokit.network.softmax_module import FullSoftmax
from elmokit.storage.text_files import read_sentences
from elmokit.text.vocabulary import Vocabulary


class TruncatedSoftmax(FullSoftmax):
    """A softmax over all words that scores the first ones, and adds the others to the unknown word."""

    def __init__(self, whole: FullSoftmax, vocabulary: Vocabulary) -> None:
        super().__init__(*whole.weight.shape)
        self.load_state_dict(whole.state_dict())
        self.n_words, self.unknown_id = len(vocabulary), vocabulary.unknown_id

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor, precision: Precision | None = None) -> Tensor:
        """Compute surprisals as the base class does, for ids of the smaller vocabulary."""
        chunks = []
        for rows, ids in zip(torch.split(hidden, 256), torch.split(word_ids, 256), strict=True):
            logs = self.scores(rows).log_softmax(dim=1)
            rare = torch.cat([logs[:, self.unknown_id, None], logs[:, self.n_words :]], dim=1).logsumexp(dim=1)
            logs = logs[:, : self.n_words].index_copy(1, torch.tensor([self.unknown_id]), rare[:, None])
            chunks.append(-logs.gather(1, ids[:, None])[:, 0])
        return torch.cat(chunks)


def main() -> None:
    """Score the texts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="path, URL or published name of a model with a full softmax")
    parser.add_argument("n_words", metavar="N", type=int, help="number of words to keep")
    parser.add_argument("texts", metavar="TEXT", nargs="+", type=Path, help="tokenized text, one sentence per line")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    softmax = model.softmax_module
    if not isinstance(softmax, FullSoftmax) or model.vocabulary is None:
        raise SystemExit(f"{arguments.model} has no full softmax. Give a model that was trained with one.")
    vocabulary = Vocabulary(model.vocabulary.words[: arguments.n_words])
    truncated = model.replace(softmax=TruncatedSoftmax(softmax, vocabulary), vocabulary=vocabulary)
    start = start_state(model)
    print("| text | predictions | unknown words | forward | backward |\n|---|---|---|---|---|")
    for text in arguments.texts:
        result = perplexity(truncated, read_sentences(text), start=start)
        values = " | ".join(f"{value:.2f}" for value in result.per_direction)
        print(
            f"| {'/'.join(text.parts[-2:])} | {result.n_predictions:,} | {result.unknown_ratio:.1%} | {values} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

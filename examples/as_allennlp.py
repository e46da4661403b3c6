"""Use flair's own ELMoEmbeddings, which imports AllenNLP, without AllenNLP.

pip install '.[flair]'
python examples/as_allennlp.py OPTIONS.json WEIGHTS.hdf5
"""

from __future__ import annotations

import sys

import torch
from flair.data import Sentence
from flair.embeddings import ELMoEmbeddings

import elmokit.compat.as_allennlp  # noqa: F401 (before ELMoEmbeddings is created, which imports allennlp)


def main() -> None:
    """Print similarities of "bank" in context."""
    options, weights = sys.argv[1:]
    embeddings = ELMoEmbeddings(options_file=options, weight_file=weights)
    texts = ("He lent the bank money .", "The bank raised its rate .", "The bank of the river is steep .")
    sentences = [Sentence(text.split()) for text in texts]
    embeddings.embed(sentences)
    money, rate, river = sentences[0][3].embedding, sentences[1][1].embedding, sentences[2][1].embedding
    print(f"money and rate:  {torch.cosine_similarity(money, rate, dim=0):.2f}")
    print(f"money and river: {torch.cosine_similarity(money, river, dim=0):.2f}")


if __name__ == "__main__":
    main()

"""Measure how far backends of lower precision drift: vectors, perplexity, parts of speech.

    python benchmarks/drift.py MODEL SENTENCES [--lines 400] [--conllu-train FILE --conllu-test FILE] [--train 2000]

For each value of ``ELMOKIT_BACKEND``, against ``reference``: the cosine of each token's top-layer vector
with its exact one, the largest difference in any layer, perplexity (if the model has a softmax) on SENTENCES, and the
accuracy of one linear probe per layer, trained on exact vectors and asked about these. Prints Markdown.
Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import os
from itertools import islice

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elmokit import Elmo, open_model
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.nn.kernels import backends
from elmokit.probes.tagged import TaggedSentence, read_conllu
from elmokit.scoring.perplexity import perplexity


def words_of(sentences: list[TaggedSentence]) -> list[list[str]]:
    """Their words."""
    return [sentence.words for sentence in sentences]


def probes(elmo: Elmo, train: list[TaggedSentence]) -> list[LogisticRegression]:
    """One classifier per layer, trained on the vectors of the requested backend."""
    tags = [tag for sentence in train for tag in sentence.tags]
    vectors = np.concatenate(elmo.embed(words_of(train)), axis=1)
    made = []
    for layer in vectors:
        made.append(make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, tol=1e-3, C=0.1)))
        made[-1].fit(layer, tags)
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sentences")
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--conllu-train")
    parser.add_argument("--conllu-test")
    parser.add_argument("--train", type=int, default=2000)
    args = parser.parse_args()
    model = open_model(args.model)
    sentences = [tokens for line in islice(read_lines(args.sentences), args.lines) if (tokens := split_tokens(line))]
    elmo = Elmo(model)
    os.environ[backends.VARIABLE] = "reference"
    exact = elmo.embed(sentences)
    fitted: list[LogisticRegression] = []
    test: list[TaggedSentence] = []
    if args.conllu_train and args.conllu_test:
        fitted = probes(elmo, list(islice(read_conllu(args.conllu_train), args.train)))
        test = list(read_conllu(args.conllu_test))
    tags = [tag for sentence in test for tag in sentence.tags]
    print(
        "| requested | backend | cosine: mean | lowest | largest difference | perplexity forward | backward "
        "| parts of speech, by layer |"
    )
    print("|---|---|---|---|---|---|---|---|")
    requests: tuple[backends.BackendRequest, ...] = ("reference", "float32", "bfloat16", "int8")
    for request in requests:
        os.environ[backends.VARIABLE] = request
        found = elmo.embed(sentences)
        ours, theirs = (np.concatenate([array[-1] for array in arrays]) for arrays in (found, exact))
        cosines = (ours * theirs).sum(1) / (np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1))
        worst = max(abs(a - b).max() for a, b in zip(found, exact, strict=True))
        scores = [""] * 2
        if model.softmax is not None and model.vocabulary is not None:
            result = perplexity(model, sentences, start=elmo.start_state(1))
            scores = [f"{value:.3f}" for value in result.per_direction]
        accuracies = ""
        if fitted:
            vectors = np.concatenate(elmo.embed(words_of(test)), axis=1)
            accuracies = ", ".join(f"{100 * p.score(v, tags):.2f}" for p, v in zip(fitted, vectors, strict=True))
        backend = backends.select_backend(torch.device("cpu"), request)
        cells = [request, backend, f"{cosines.mean():.6f}", f"{cosines.min():.6f}", f"{worst:.1e}", *scores, accuracies]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

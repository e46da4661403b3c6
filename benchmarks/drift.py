"""Measure the accuracy of lower-precision backends: vectors, perplexity, part-of-speech probes.

    python benchmarks/drift.py MODEL SENTENCES [--lines 400] [--conllu-train FILE --conllu-test FILE] [--train 2000]

MODEL may be ``random:PRESET``, for random weights of a preset's sizes. Each value of ``ELMOKIT_BACKEND`` is compared
with ``reference``. The script prints a Markdown table with: the cosine between each token's vector and its exact vector
in layer 0 and in the top layer, the largest difference in any layer, the perplexity of SENTENCES (if the model has a
softmax), and the accuracy of one linear probe per layer, trained on exact vectors and evaluated on those of the
backend. The probes need scikit-learn.
"""

from __future__ import annotations

import argparse
import os
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo, open_model
from elmokit.embedding.computer import Computer
from elmokit.engine.architecture import PRESETS
from elmokit.engine.precision import REQUESTS, VARIABLE
from elmokit.evaluation.tagged import TaggedSentence, read_conllu
from elmokit.lm.perplexity import perplexity
from elmokit.network.bilm import BiLM
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import read_lines
from elmokit.text.tokenize import split_tokens

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


def words_of(sentences: list[TaggedSentence]) -> list[list[str]]:
    """Return the words of tagged sentences."""
    return [sentence.words for sentence in sentences]


def fit_probes(elmo: Elmo, train: list[TaggedSentence]) -> list[Pipeline]:
    """Fit one classifier per layer to the vectors of the current backend."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tags = [tag for sentence in train for tag in sentence.tags]
    vectors = np.concatenate(elmo.embed(words_of(train)), axis=1)
    probes = []
    for layer in vectors:
        probes.append(make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, tol=1e-3, C=0.1)))
        probes[-1].fit(layer, tags)
    return probes


def random_model(preset: str) -> PretrainedBiLM:
    """Return a model without a softmax, with random weights of a preset's sizes."""
    bilm = BiLM(PRESETS[preset])
    bilm.reset_parameters(seed=0)
    return PretrainedBiLM.from_modules(bilm)


def cosines(ours: list[NDArray[np.float32]], exact: list[NDArray[np.float32]], layer: int) -> NDArray[np.float32]:
    """Return the cosine of each token's vector with its exact vector, in one layer."""
    x, y = (np.concatenate([layers[layer] for layers in arrays]) for arrays in (ours, exact))
    found: NDArray[np.float32] = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return found


def main() -> None:
    """Measure all backends and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="path, URL or published name, or random:PRESET")
    parser.add_argument("sentences", help="tokenized text, one sentence per line")
    parser.add_argument("--lines", type=int, default=400, help="number of lines to read  [default: 400]")
    parser.add_argument("--conllu-train", help="CoNLL-U file to train the probes on")
    parser.add_argument("--conllu-test", help="CoNLL-U file to evaluate the probes on")
    parser.add_argument("--train", type=int, default=2000, help="training sentences of the probes  [default: 2000]")
    args = parser.parse_args()
    is_random = args.model.startswith("random:")
    model = random_model(args.model.removeprefix("random:")) if is_random else open_model(args.model)
    sentences = [tokens for line in islice(read_lines(args.sentences), args.lines) if (tokens := split_tokens(line))]
    elmo = Elmo(model)
    os.environ[VARIABLE] = "reference"
    exact = elmo.embed(sentences)
    probes: list[Pipeline] = []
    test: list[TaggedSentence] = []
    if args.conllu_train and args.conllu_test:
        probes = fit_probes(elmo, list(islice(read_conllu(args.conllu_train), args.train)))
        test = list(read_conllu(args.conllu_test))
    tags = [tag for sentence in test for tag in sentence.tags]
    print(
        "| requested | backend | layer 0: mean cosine | lowest | top layer: mean cosine | lowest | largest difference "
        "| perplexity, forward | perplexity, backward | part-of-speech accuracy by layer |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for request in REQUESTS:
        os.environ[VARIABLE] = request
        approximate = elmo.embed(sentences)
        by_layer = [cosines(approximate, exact, layer) for layer in (0, -1)]
        largest = max(abs(a - b).max() for a, b in zip(approximate, exact, strict=True))
        scores = [""] * 2
        if model.softmax is not None and model.vocabulary is not None:
            result = perplexity(model, sentences, start=elmo.start_state)
            scores = [f"{value:.3f}" for value in result.per_direction]
        accuracies = ""
        if probes:
            vectors = np.concatenate(elmo.embed(words_of(test)), axis=1)
            accuracies = ", ".join(f"{100 * p.score(v, tags):.2f}" for p, v in zip(probes, vectors, strict=True))
        cells = [
            request,
            Computer(model).network.computation().kernels[1],
            *(f"{value:.6f}" for each in by_layer for value in (each.mean(), each.min())),
            f"{largest:.1e}",
            *scores,
            accuracies,
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

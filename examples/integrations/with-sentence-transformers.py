"""Train an ELMo on pairs of sentences with sentence-transformers, save it, and load it again.

pip install '.[sentence-transformers]'
python examples/integrations/with-sentence-transformers.py
"""

from __future__ import annotations

import tempfile

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

from elmokit.integrations.sentence_transformers import ElmoEmbeddings, ElmoPooling

PAIRS = [
    ("A man plays the guitar.", "Someone is playing a guitar.", 1.0),
    ("The shares fell sharply.", "Stock prices dropped.", 0.9),
    ("She is slicing an onion.", "A woman cuts a vegetable.", 0.8),
    ("A man plays the guitar.", "A man eats his lunch.", 0.1),
    ("The shares fell sharply.", "The child fell off the chair.", 0.0),
    ("She is slicing an onion.", "She is riding a horse.", 0.0),
]


def main() -> None:
    """Fit the pairs, and print the loss before and after."""
    elmo = ElmoEmbeddings()
    model = SentenceTransformer(modules=[elmo, ElmoPooling.from_elmo(elmo.elmo)], device="cpu")
    first, second, scores = (list(column) for column in zip(*PAIRS, strict=True))
    pairs = Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=20, learning_rate=3e-3, save_strategy="no", report_to="none", use_cpu=True
        )
        before = error(model, scores)
        SentenceTransformerTrainer(model, settings, pairs, loss=CosineSimilarityLoss(model)).train()
        print(f"mean error before: {before:.2f}, after: {error(model, scores):.2f}")
        model.save(f"{folder}/my-model")
        again = SentenceTransformer(f"{folder}/my-model", trust_remote_code=True, device="cpu")
    print(f"loaded again: {error(again, scores):.2f}")


def error(model: SentenceTransformer, scores: list[float]) -> float:
    """Return the mean difference of the cosines and the scores."""
    first, second, _ = zip(*PAIRS, strict=True)
    cosines = model.similarity_pairwise(model.encode(list(first)), model.encode(list(second)))
    return sum(abs(float(cosine) - score) for cosine, score in zip(cosines, scores, strict=True)) / len(scores)


if __name__ == "__main__":
    main()

"""Train a Keras model on the sentences of SST-5, with ``ElmoEmbedding`` or learned words (results/integrations.md).

    KERAS_BACKEND=torch python -m benchmarks.keras_sst5 train.txt dev.txt --layer elmo --epochs 2

The files hold one tree in brackets per line, as published. Every third training sentence is used, because the
file has the positive sentences first.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np

from benchmarks.sklearn_sst5 import read_trees
from elmokit.integrations.keras import ElmoEmbedding, encode_texts


def word_ids(sentences: list[list[str]], vocabulary: dict[str, int], n_tokens: int) -> np.ndarray:
    """Return the numbers of the words, ``(sentences, n_tokens)``: 0 on padding, 1 for words outside the vocabulary."""
    ids = np.zeros((len(sentences), n_tokens), np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = [vocabulary.get(word, 1) for word in sentence[:n_tokens]]
    return ids


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--layer", choices=["elmo", "words"], default="elmo")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)
    (train, train_labels), (dev, dev_labels) = (read_trees(path) for path in (arguments.train, arguments.dev))
    train, train_labels = train[::3], train_labels[::3]
    longest = max(map(len, train + dev))
    if arguments.layer == "elmo":
        inputs, embedding = keras.Input((None, 50), dtype="int32"), ElmoEmbedding()
        data, dev_data = encode_texts(train, longest), encode_texts(dev, longest)
    else:
        words = sorted({word for sentence in train for word in sentence})
        vocabulary = {word: number + 2 for number, word in enumerate(words)}
        inputs = keras.Input((None,), dtype="int32")
        embedding = keras.layers.Embedding(len(words) + 2, 384, mask_zero=True)
        data, dev_data = (word_ids(sentences, vocabulary, longest) for sentences in (train, dev))
    hidden = keras.layers.Bidirectional(keras.layers.LSTM(64))(keras.layers.Dropout(0.5)(embedding(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        model.fit(data, np.array(train_labels), batch_size=32, epochs=1, verbose=0)
        seconds = time.perf_counter() - started
        _, accuracy = model.evaluate(dev_data, np.array(dev_labels), verbose=0)
        print(f"{arguments.layer}, epoch {epoch + 1}: {100 * accuracy:.1f} % on dev, {seconds:.0f} s", flush=True)

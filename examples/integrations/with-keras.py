"""Train a Keras model on ELMo's vectors, save it and load it.

pip install '.[keras]'     and a backend: torch, jax or tensorflow
KERAS_BACKEND=torch python examples/integrations/with-keras.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

from elmokit.integrations.keras import ElmoEmbedding, encode_texts

TEXTS = {
    "The bank raised its rate.": 0,
    "The bank lent them money.": 0,
    "He went to the bank to pay a bill.": 0,
    "They sat on the bank of the river.": 1,
    "Trees grow along the bank.": 1,
    "The boat reached the bank.": 1,
}


def main() -> None:
    """Tell the banks that lend money from those of rivers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, 50), dtype="int32")  # what encode_texts returns
    embedding = ElmoEmbedding(name="elmo")
    pooled = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(pooled))
    model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])
    model.fit(encode_texts(list(TEXTS)), np.array(list(TEXTS.values())), epochs=20, verbose=0)
    print("weights of the layers:", keras.ops.softmax(embedding.scalars))

    with tempfile.TemporaryDirectory() as folder:
        # The file has the weights of the mix and of the classifier, and the name of the ELMo.
        path = Path(folder) / "model.keras"
        model.save(path)
        print(f"{path.stat().st_size / 1000:.0f} kB")
        loaded = keras.models.load_model(path)
    new = ["The bank pays interest.", "Fishermen sat on the bank."]
    for text, probability in zip(new, loaded.predict(encode_texts(new), verbose=0), strict=True):
        print(f"{probability[0]:.2f} {text}")


if __name__ == "__main__":
    main()

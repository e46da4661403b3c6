"""Add ELMo vectors to a table of the datasets library, and find the sentences that are most similar to one of them.

With Ray Data the same callable runs on a cluster (docs/how-to/integrations/batch.md).
"""

from __future__ import annotations

import datasets
import numpy as np

from elmokit.integrations.batch import Embed

datasets.disable_progress_bars()
texts = [
    "He sat on the bank of the river and watched the water .",
    "They walked along the shore of the lake .",
    "The bank raised its interest rate again .",
    "The central bank lowered the cost of loans .",
    "She plays the guitar in a band .",
]
table = datasets.Dataset.from_dict({"text": texts})

# One vector per sentence, whitened: good for similarity.
table = table.map(Embed(pooling="whitened"), batched=True, batch_size=1000)
vectors = np.array(table["vector"])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
for row in (vectors @ vectors[2]).argsort()[::-1][:3]:
    print(f"{vectors[row] @ vectors[2]:.2f}  {texts[row]}")

# One vector per token and layer: a column for each layer.
table = table.map(Embed(layers=[0, 2], dtype="float16"), batched=True, batch_size=1000)
print(table.column_names, np.array(table[0]["layer_2"]).shape)

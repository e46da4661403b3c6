"""Add ELMo sentence vectors to data frames of pandas and polars, and search in them.

pip install '.[dataframes]' pandas polars
python examples/integrations/with-dataframes.py
"""

from __future__ import annotations

import numpy as np
import pandas
import polars

from elmokit import SentenceEmbedder
from elmokit.integrations.dataframes import add_vectors, to_matrix

TEXTS = [
    "The bank raised its rate.",
    "Interest rates went up again.",
    "She sat on the bank of the river.",
    "They walked along the water.",
]

# The same call for both libraries. Opening the model once is enough for any number of frames.
embedder = SentenceEmbedder.from_pretrained()
frame = add_vectors(polars.DataFrame({"text": TEXTS}), embedder=embedder)
table = add_vectors(pandas.DataFrame({"text": TEXTS}, index=list("abcd")), embedder=embedder)
print(frame.schema)

# In polars a column is a matrix for NumPy; in pandas `to_matrix` reads it, without a copy.
vectors = frame["vector"].to_numpy()
assert np.array_equal(vectors, to_matrix(table["vector"]))

unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
table["similarity"] = unit @ unit[0]
print(table.sort_values("similarity", ascending=False)[["text", "similarity"]])

# Parquet keeps the type of the column, and each library reads the other's file.
table.to_parquet("vectors.parquet")
again = polars.read_parquet("vectors.parquet")
assert np.array_equal(to_matrix(again["vector"]), vectors)

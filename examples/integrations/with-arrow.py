"""Embed a text into Parquet, and search it: sentences with DuckDB, and a word in its sense with LanceDB.

Run it in a directory with ``sentences.txt``: one tokenized sentence per line.
"""

from __future__ import annotations

import tempfile

import duckdb
import lancedb
import polars
import pyarrow.parquet

from elmokit import Elmo, Layout, SentenceEmbedder, embed_file

elmo = Elmo.from_pretrained()

# One vector per sentence: a column `vector` of fixed-size lists.
embed_file(SentenceEmbedder(elmo), "sentences.txt", "sentences.parquet", overwrite=True)
nearest = duckdb.sql(
    """
    select array_to_string(b.tokens, ' ') as sentence, list_cosine_similarity(a.vector, b.vector) as similarity
    from 'sentences.parquet' a, 'sentences.parquet' b
    where a.id = 0 and b.id != a.id and len(b.tokens) > 0
    order by similarity desc
    limit 3
    """
)
print(nearest)

# One vector per token and layer: a column for each layer. Only the columns that you name are read.
embed_file(elmo, "sentences.txt", "tokens.parquet", Layout(dtype="float16"), overwrite=True)
table = polars.scan_parquet("tokens.parquet").select("tokens", "layer_1").explode("tokens", "layer_1").collect()
print(table.drop_nulls().with_columns(polars.col("layer_1").arr.get(0).alias("first number")).head())

# LanceDB finds the sentences in which a word has the same sense. The query is the vector of one word.
tokens = ["They", "had", "lunch", "on", "the", "bank", "of", "the", "river", "."]
(vectors,) = elmo.embed([tokens], layers=1)
with tempfile.TemporaryDirectory() as folder:
    index = lancedb.connect(folder).create_table("sentences", pyarrow.parquet.read_table("tokens.parquet"))
    search = index.search(vectors[tokens.index("bank")], vector_column_name="layer_1").distance_type("cosine")
    for row in search.select(["tokens", "_distance"]).limit(4).to_list():
        print(f"{row['_distance']:.2f}", " ".join(row["tokens"]))

"""Add one vector per sentence to a table of Spark.

    spark-submit examples/scale/embed_on_spark.py corpus.txt vectors.parquet

Spark runs ``embed`` in one process per core, on parts of the table, and repeats a part whose process or machine dies.
Each machine needs elmokit and the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession

from elmokit.integrations.batch import Embed


def embed(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Add a column of sentence vectors to each part of a table; the model is opened once per process."""
    embedder = Embed(pooling="sif", precision="int8")
    for frame in frames:
        yield frame.assign(vector=list(embedder({"text": frame["text"].tolist()})["vector"]))


if __name__ == "__main__":
    source, target = sys.argv[1:]
    spark = (
        SparkSession.builder.appName("elmokit")
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")  # Spark has one process per core already
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 1000)
        .getOrCreate()
    )
    table = spark.read.text(source).withColumnRenamed("value", "text")
    table.mapInPandas(embed, schema="text string, vector array<float>").write.parquet(target)
    spark.stop()

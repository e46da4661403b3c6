"""The libraries that each integration is tested with."""

from __future__ import annotations

import pytest

MODULES = {
    "arrow": ["pyarrow", "pandas", "polars", "duckdb"],
    "batch": ["pyarrow", "datasets"],
    "sklearn": ["sklearn", "nltk", "pandas"],
    "transformers": ["transformers", "minicons", "accelerate", "nltk"],
    "sentence-transformers": ["sentence_transformers", "accelerate", "datasets", "nltk"],
}
"""The modules that the tests, the example and the how-to page of an integration import."""


def need_host(host: str) -> None:
    """Skip the test if a library of the integration is not installed."""
    for module in MODULES[host]:
        pytest.importorskip(module)

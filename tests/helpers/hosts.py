"""The libraries that each integration is tested with."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

MODULES = {
    "arrow": ["pyarrow", "pandas", "polars", "duckdb", "lancedb"],
    "batch": ["pyarrow", "datasets"],
    "dataframes": ["pandas", "polars", "pyarrow", "nltk"],
    "flair": ["flair"],
    "sklearn": ["sklearn", "nltk", "pandas"],
    "huggingface-hub": ["huggingface_hub"],
    "onnx": ["onnx", "onnxruntime"],
    "keras": ["keras", "torch", "nltk"],
    "lm-eval": ["lm_eval", "datasets", "nltk"],
    "mcp": ["mcp", "nltk"],
    "transformers": ["transformers", "minicons", "accelerate", "nltk"],
    "sentence-transformers": ["sentence_transformers", "accelerate", "datasets", "nltk"],
    "spacy": ["spacy", "torch"],
}
"""The modules that the tests, the example and the how-to page of an integration import."""
ENTRY_POINTS = {"spacy": "spacy_architectures"}
"""The group of entry points by which a host finds elmokit."""


def need_host(host: str) -> None:
    """Skip the test if a library of the integration is not installed, or the host cannot find elmokit."""
    for module in MODULES[host]:
        pytest.importorskip(module)
    group = ENTRY_POINTS.get(host)
    if group is not None and not any(point.value.startswith("elmokit.") for point in entry_points(group=group)):
        pytest.skip(f"elmokit is not installed with its entry points for {host}", allow_module_level=True)

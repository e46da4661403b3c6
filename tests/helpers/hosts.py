"""The libraries that each integration is tested with."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

MODULES = {
    "arrow": ["pyarrow", "pandas", "polars", "duckdb", "lancedb"],
    "batch": ["pyarrow", "datasets"],
    "dataframes": ["pandas", "polars", "pyarrow"],
    "flair": ["flair"],
    "sklearn": ["sklearn", "pandas"],
    "huggingface-hub": ["huggingface_hub"],
    "onnx": ["onnx", "onnxruntime"],
    "keras": ["keras", "torch"],
    "lm-eval": ["lm_eval", "transformers", "accelerate"],
    "mcp": ["mcp"],
    "transformers": ["transformers", "minicons", "accelerate"],
    "sentence-transformers": ["sentence_transformers", "accelerate", "datasets"],
    "spacy": ["spacy", "torch"],
}
"""The modules that the tests, the example and the how-to page of an integration import."""
ENTRY_POINTS = {"spacy": "spacy_architectures"}
"""The group of entry points by which a host finds elmokit."""


def need_host(host: str) -> None:
    """Skip the test if a library of the integration is not installed, or the host cannot find elmokit."""
    for module in MODULES[host]:
        if find_spec(module) is None:
            pytest.skip(f"could not import {module!r}: No module named {module!r}", allow_module_level=True)
    group = ENTRY_POINTS.get(host)
    if group is not None and not any(point.value.startswith("elmokit.") for point in entry_points(group=group)):
        pytest.skip(f"elmokit is not installed with its entry points for {host}", allow_module_level=True)

"""Test the integrations, each with its own libraries in its own environment.

Run ``make integrations`` for all of them, or ``nox -s arrow`` for one.

Libraries of different hosts need different versions of the same packages, so one environment cannot have them all.
"""

from __future__ import annotations

import nox

HOSTS = {
    "arrow": ["pandas", "polars", "duckdb", "lancedb"],
    "batch": ["datasets", "ray[data]", "pyspark", "pandas"],
    "dataframes": ["pandas", "polars"],
    "flair": [],
    "huggingface-hub": [],
    "keras": ["keras>=3.10"],
    "lm-eval": ["lm-eval>=0.4.9", "accelerate"],
    "mcp": [],
    "onnx": ["onnxruntime"],
    "sentence-transformers": ["mteb"],
    "serve": ["openai", "pyarrow", "axe-playwright-python"],
    "sklearn": ["pandas", "polars"],
    "spacy": [],
    "transformers": ["minicons", "accelerate"],
}
"""What the tests of an integration need besides its extra."""

EXTRAS = {"dataframes": "arrow", "keras": "torch", "lm-eval": "transformers"}
"""The extra of a host whose name it does not have: its page is a recipe."""

OTHER_TESTS = {"serve": ["tests/serve/test_serve.py", "tests/serve/test_batcher.py"]}
"""Tests that need the extra and are elsewhere."""

TEST_TOOLS = ["pytest>=8", "hypothesis>=6.100", "torch>=2.6"]
"""``tests/conftest.py`` makes models with PyTorch, which not every host needs."""


def test_host(session: nox.Session) -> None:
    """Install elmokit with the extra of a host, and run the host's tests, example and how-to page."""
    host = session.name
    session.install("--constraint", "constraints.txt", f".[{EXTRAS.get(host, host)}]", *TEST_TOOLS, *HOSTS[host])
    # The names of examples and pages are those of the extras, but a test module's name has no hyphen.
    named = f"{host} or {host.replace('-', '_')}"
    session.run(
        "pytest",
        "tests/integrations",
        "tests/project/test_docs.py",
        *OTHER_TESTS.get(host, ()),
        "-k",
        named,
        *session.posargs,
        env={"KERAS_BACKEND": "torch"},
    )


for host in HOSTS:
    nox.session(test_host, name=host)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.syntax import nodes_of, tree_of


@pytest.fixture(scope="package", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """Forget the syntax trees afterwards: every later garbage collection would search their million nodes."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()

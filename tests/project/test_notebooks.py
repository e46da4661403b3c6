"""The notebooks run, and their stored outputs are those of a whole run from top to bottom."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

nbformat = pytest.importorskip("nbformat")

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = {"N_SENTENCES": 3000, "N_PREDICTIONS": 3000}
"""Small values for the cell that is tagged "parameters"."""


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> list[tuple[str, ...]]:
    """Return the kinds of a cell's outputs: the stream, or the formats of a value. Streams arrive in any pieces."""
    kinds = [(one.name,) if one.output_type == "stream" else tuple(sorted(one.data)) for one in cell.outputs]
    return list(dict.fromkeys(kinds))


def with_parameters(notebook: Any) -> Any:
    """Replace the values of the cell tagged "parameters", as papermill does."""
    for cell in code_cells(notebook):
        if "parameters" in cell.metadata.get("tags", []):
            for name, value in QUICK.items():
                cell.source, n_replaced = re.subn(rf"^{name} = [\d_]+", f"{name} = {value}", cell.source, flags=re.M)
                assert n_replaced == 1
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_one_whole_run(path: Path) -> None:
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert {"text/html", "image/png"} <= {kind for cell in cells for kinds in shown(cell) for kind in kinds}
    assert path.stat().st_size < 200_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# Warnings of Jupyter's own libraries are not errors.
@pytest.mark.filterwarnings("ignore")
def test_notebook_runs_and_shows_what_it_stores(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    # Not imported: `ProgressBar` takes a process that has imported it for a notebook.
    if find_spec("ipykernel") is None:
        pytest.skip("ipykernel is not installed")
    pytest.importorskip("matplotlib")
    notebook = with_parameters(read(path))
    stored = [shown(cell) for cell in code_cells(notebook)]
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    )
    client.execute()  # raises the error of a cell that fails
    assert [shown(cell) for cell in code_cells(notebook)] == stored

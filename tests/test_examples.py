"""The notebook of examples/: generated from its script, and executed from top to bottom."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = ["analysis"]
WIDEST = 20


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_script(name: str) -> None:
    script, notebook = jupytext.read(EXAMPLES / f"{name}.py"), nbformat.read(EXAMPLES / f"{name}.ipynb", 4)
    cells = [[(cell.cell_type, cell.source) for cell in each.cells] for each in (script, notebook)]
    assert cells[0] == cells[1], f"jupytext --to ipynb examples/{name}.py"
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.world
def test_the_notebook_of_an_analysis_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "analysis.ipynb", 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    figures = [data for data in shown if "image/svg+xml" in data]
    tables = [data["text/html"] for data in shown if "text/html" in data]
    assert len(figures) == 2
    assert len(tables) == 5
    # Before them stand at most two columns of the index.
    assert all(table.partition("</thead>")[0].count("<th>") <= WIDEST + 2 for table in tables)
    assert (tmp_path / "report.html").stat().st_size > 100_000

"""Patches: edits of calls that are written in many ways, and that git applies what was meant."""

import subprocess
from pathlib import Path

import pytest

from launcher.tune.patch import Argument, Statement, patch_of

BLOCK = "from x import (\n    y,\n)\n"
LINES = "d = DataLoader(\n    data,\n    num_workers=(\n        {}\n    ),\n)\n"
WORKERS = ("DataLoader", "num_workers", "2")


def written(folder: Path, source: str, *edits: tuple[int, str, str, str] | str) -> tuple[str, tuple[str, ...]]:
    """The source with the patch that `git apply` has applied, and the notes."""
    path = folder / "train.py"
    path.write_bytes(source.encode())
    listed = [
        Statement(path=path, code=edit)
        if isinstance(edit, str)
        else Argument(path=path, line=edit[0], callee=edit[1], argument=edit[2], value=edit[3])
        for edit in edits
    ]
    patch = patch_of(listed, folder)
    assert path.read_bytes() == source.encode()
    if patch.diff:
        (folder / "train.py.patch").write_bytes(patch.text.encode())
        subprocess.run(["git", "apply", "train.py.patch"], cwd=folder, check=True)
    return path.read_bytes().decode(), patch.notes


@pytest.mark.world
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("d = DataLoader(data)\n", "d = DataLoader(data, num_workers=2)\n", id="added"),
        pytest.param("d = DataLoader(data, 8, num_workers=0)\n", "d = DataLoader(data, 8, num_workers=2)\n", id="set"),
        pytest.param("d = DataLoader()\n", "d = DataLoader(num_workers=2)\n", id="no arguments"),
        pytest.param("d = DataLoader((data))\n", "d = DataLoader((data), num_workers=2)\n", id="brackets"),
        pytest.param("d = x.DataLoader(data, )\n", "d = x.DataLoader(data, num_workers=2, )\n", id="comma at the end"),
        pytest.param(
            "d = DataLoader(\n    data,  # so: (\n    # more\n)\n",
            "d = DataLoader(\n    data, num_workers=2,  # so: (\n    # more\n)\n",
            id="lines and comments",
        ),
        pytest.param(
            "é = DataLoader('é', 8)\n", "é = DataLoader('é', 8, num_workers=2)\n", id="more bytes than letters"
        ),
        pytest.param("d = DataLoader(a, 1, 0, s, b, 0)\n", "d = DataLoader(a, 1, 0, s, b, 2)\n", id="by position"),
        pytest.param("d = DataLoader(data)\r\nx\r\n", "d = DataLoader(data, num_workers=2)\r\nx\r\n", id="of Windows"),
        pytest.param("d = DataLoader(data)", "d = DataLoader(data, num_workers=2)", id="no line break at the end"),
        pytest.param(
            "d = DataLoader(**s, num_workers=0)\n", "d = DataLoader(**s, num_workers=2)\n", id="dict without it"
        ),
    ],
)
def test_argument_is_edited_in_its_call_alone(before: str, after: str, tmp_path: Path) -> None:
    assert written(tmp_path, before, (1, *WORKERS)) == (after, ())


@pytest.mark.world
@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param("d = DataLoader(data, **settings)\n", "the call takes its arguments from a dict", id="dict"),
        pytest.param("d = DataLoader(*args)\n", "the call takes its arguments from a list", id="list"),
        pytest.param("d, e = DataLoader(a), DataLoader(b)\n", "several calls of DataLoader on this line", id="two"),
        pytest.param("class D(DataLoader): pass\n", "no call of DataLoader on this line", id="no call"),
        pytest.param(
            "d = DataLoader(x for x in y)\n",
            "the call is written in a way that this program does not edit",
            id="generator",
        ),
    ],
)
def test_uncertain_call_is_named_and_left_alone(source: str, why: str, tmp_path: Path) -> None:
    after, notes = written(tmp_path, source, (1, *WORKERS))

    assert after == source
    assert len(notes) == 1
    assert notes[0].startswith("DataLoader(..., num_workers=2) at ")
    assert notes[0].endswith(f"train.py:1 is not in the patch: {why}")


@pytest.mark.world
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            f'"""Doc."""\nfrom __future__ import annotations\nimport torch\n{BLOCK}\nz = 1\nimport q\n',
            f'"""Doc."""\nfrom __future__ import annotations\nimport torch\n{BLOCK}S\n\nz = 1\nimport q\n',
            id="behind the block of imports",
        ),
        pytest.param(
            "from torch import nn\nnn.ReLU()\n", "from torch import nn\nimport torch\nS\nnn.ReLU()\n", id="torch"
        ),
        pytest.param("import torch.nn\n", "import torch.nn\nS\n", id="submodule binds torch"),
        pytest.param("import torch as t", "import torch as t\nimport torch\nS\n", id="other name"),
    ],
)
def test_statement_follows_the_imports(before: str, after: str, tmp_path: Path) -> None:
    code = "torch.set_num_threads(1)"

    assert written(tmp_path, before, code) == (after.replace("S\n", f"{code}\n"), ())


@pytest.mark.world
def test_several_edits_of_a_file_are_one_patch_that_applies_in_a_subfolder(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (folder := tmp_path / "sub").mkdir()
    source = f"import torch\n{LINES.format(0)}o = Adam(p)\n"

    after, notes = written(folder, source, (2, *WORKERS), "torch.x()", (8, "Adam", "foreach", "True"))

    assert after == f"import torch\ntorch.x()\n{LINES.format(2)}o = Adam(p, foreach=True)\n"
    assert notes == ()


def test_file_outside_of_the_folder_is_not_written(tmp_path: Path) -> None:
    (inside := tmp_path / "inside").mkdir()
    (path := tmp_path / "library.py").write_text("d = DataLoader(x)\n")

    edit = Argument(path=path, line=1, callee="DataLoader", argument="num_workers", value="2")
    patch = patch_of([edit], inside, notes=["first"])

    assert patch.diff == ""
    assert patch.notes[0] == "first"
    assert patch.text.endswith(
        "library.py:1 is not in the patch: its file is outside of this folder, or cannot be read\n"
    )

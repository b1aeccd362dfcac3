"""Bundles of schema 3 are read as on the day they were made.

`tests/bundles/runs` holds real ones: local, in a container, on a VM, imported, killed, out of memory.
`tests/bundles/expected` is what each command printed of them then; a later version may say more, never something else.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from workload.contract import bundle
from workload.contract.record import Status

BUNDLES = Path(__file__).parents[2] / "bundles"
KEPT, EXPECTED = BUNDLES / "runs", BUNDLES / "expected"
COMMANDS = ("summary", "roofline", "variance", "compare", "audit", "kernels", "report")
UNSEALED = "20261121T192808Z-local-cpu-shufflenet_v2_x0_5-b2-fp32-d9ea90"


def holds(expected: Any, printed: Any) -> bool:
    """Whether `printed` holds all of `expected`: further keys are allowed, and figures are equal but for rounding."""
    if isinstance(expected, dict):
        return isinstance(printed, dict) and all(
            key in printed and holds(expected[key], printed[key]) for key in expected
        )
    if isinstance(expected, list):
        same_length = isinstance(printed, list) and len(expected) == len(printed)
        return same_length and all(holds(*pair) for pair in zip(expected, printed, strict=True))
    if isinstance(expected, float):
        return bool(printed == pytest.approx(expected, rel=1e-6))
    return bool(printed == expected)


@pytest.fixture(autouse=True)
def in_a_folder_with_kept_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "kept")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [path.name for path in sorted(KEPT.iterdir()) if path.name != UNSEALED])
def test_every_sealed_bundle_is_whole(name: str) -> None:
    read = bundle.read(KEPT / name)
    assert read.document["run_id"] == name
    assert Status(read.document["status"]) is not Status.RUNNING


@pytest.mark.parametrize("command", [path.stem for path in sorted(EXPECTED.iterdir())])
def test_a_command_says_of_kept_bundles_what_it_said(command: str, analyze: Analyze) -> None:
    code, out, _ = analyze(command, "kept", "--format", "json")
    assert code == 0
    expected = json.loads((EXPECTED / f"{command}.json").read_text())
    printed = json.loads(out)
    if isinstance(expected, dict):
        # Tables that are newer than these bundles may stand beside those that were there.
        printed = {name: printed[name] for name in expected}
    assert len(printed) == len(expected)
    for wanted, got in zip(expected, printed, strict=True):
        assert holds(wanted, got), (wanted, got)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_kept_bundles_mix_with_new_ones(command: str, analyze: Analyze, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        make(tmp_path / "new", number)
    code, _, err = analyze(command, "kept", "new")
    assert code == 0, err
    assert UNSEALED in err, "the killed run is named"

"""Ctrl-C at chosen moments of `launch local --repeats 3`; at random ones in `benchmarks/interruptions.py`."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.interruptions import LOCAL, await_end, press, start
from tests.waiting import until
from workload.contract import bundle

pytestmark = [pytest.mark.world, pytest.mark.slow]

Moment = Callable[[Path, int], bool]


def trainer_imports_torch(_: Path, launcher: int) -> bool:
    return any("libtorch" in maps for maps in maps_of_group(launcher))


def measures(folder: Path, _: int) -> bool:
    return any("measured" in path.read_text() for path in folder.glob("out/*/steps.csv"))


def is_between_repeats(folder: Path, _: int) -> bool:
    return any(folder.glob("out/*/MANIFEST.json"))


def maps_of_group(group: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                found.append((process / "maps").read_text())
        except OSError:
            continue
    return found


def wait_for(moment: Moment, process: "subprocess.Popen[str]", folder: Path) -> None:
    deadline_s = time.monotonic() + 200
    while time.monotonic() < deadline_s and process.poll() is None:
        if moment(folder, process.pid):
            return
        time.sleep(0.01)
    process.kill()
    pytest.fail(f"the moment did not come: {process.communicate()[1]}")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("moment", "statuses"),
    [
        pytest.param(trainer_imports_torch, [()], id="the trainer imports torch"),
        # A step may be the last one, and so may be a run.
        pytest.param(measures, [("interrupted",), ("completed",)], id="a run is measured"),
        pytest.param(
            is_between_repeats,
            [("completed",), ("completed", "interrupted")],
            id="between two repeats",
            marks=pytest.mark.night(part="kills"),
        ),
    ],
)
def test_ctrl_c_keeps_what_was_measured(moment: Moment, statuses: list[tuple[str, ...]], tmp_path: Path) -> None:
    with start(tmp_path, *LOCAL, "--no-ceilings", "--iterations", "200") as process:
        wait_for(moment, process, tmp_path)
        press(process)
        ended = await_end(process, tmp_path)
    assert ended.faults == []
    assert ended.statuses in statuses
    assert "error: interrupted by Ctrl-C\n" in ended.stderr


def test_the_trainer_ends_in_order_when_launch_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, *LOCAL, "--no-ceilings", "--iterations", "100000") as process:
        wait_for(measures, process, tmp_path)
        process.kill()
    (folder,) = (tmp_path / "out").glob("[!.]*")
    until((folder / bundle.MANIFEST).exists)
    record = bundle.read(folder).document
    assert (record["status"], record["error"]) == (
        "interrupted",
        "interrupted: the process that started this run has ended",
    )

"""The exit code of a launch that says it has ended well follows from its bundles."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.synthetic_bundles import make
from launcher.jobs.run import _shortfall
from launcher.protocol.task import Task
from tests.launcher.backends.gcp.fake_vm import make_request
from workload.contract import bundle
from workload.contract.errors import ExitCode

NAME = "rooflaunch-t4-20261121-100000-0000aa"
# How many runs were asked for, how the bundles at home ended, and what comes of it.
CASES: dict[str, tuple[int, list[str], int, str]] = {
    "done": (1, ["completed"], 0, ""),
    "both": (2, ["completed", "completed"], 0, ""),
    "started again": (1, ["preempted", "completed"], 0, ""),
    "failed": (1, ["failed"], ExitCode.RUN_FAILED, f"'{NAME}': 0 of 1 run completed; {{first}}: broken off"),
    "one of two": (
        2,
        ["completed", "interrupted"],
        ExitCode.RUN_FAILED,
        f"'{NAME}': 1 of 2 runs completed; {{second}}: broken off",
    ),
    "too large": (
        1,
        ["out_of_memory"],
        ExitCode.OUT_OF_MEMORY,
        f"'{NAME}': 0 of 1 run completed; {{first}}: broken off",
    ),
    "one did not come": (2, ["completed"], ExitCode.BAD_BUNDLE, f"'{NAME}' made only 1 of 2 bundles"),
    "nothing": (1, [], ExitCode.BAD_BUNDLE, f"'{NAME}' made only 0 of 1 bundle"),
}


@pytest.mark.parametrize(("asked", "statuses", "code", "error"), CASES.values(), ids=list(CASES))
def test_the_bundles_say_what_is_done(asked: int, statuses: list[str], code: int, error: str, tmp_path: Path) -> None:
    bundles = [
        bundle.read(make(tmp_path, number, status=status, error=None if status == "completed" else "broken off"))
        for number, status in enumerate(statuses)
    ]
    request = make_request(NAME, "", {"device": "cpu", "repeats": str(asked)})
    failed = _shortfall(request, bundles)
    if failed is None:
        assert (code, error) == (0, "")
        return
    names = dict(zip(("first", "second"), (found.path.name for found in bundles), strict=False))
    assert (failed.exit_code, str(failed)) == (code, error.format(**names))
    assert failed.hint == f"launch logs {NAME}"


def test_runs_with_keys_are_counted_by_the_sweep() -> None:
    plain = make_request(NAME, "", {"device": "cpu"})
    [run] = plain.work.runs
    task = Task(job="night", runs=(replace(run, run_key="0" * 16),))
    assert _shortfall(replace(plain, task=task.to_json(run.spec)), []) is None

"""The exit code of a launch that says it has ended well follows from its bundles."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from launcher.jobs.launches import upload_of
from launcher.jobs.run import _shortfall
from launcher.protocol.records import Request
from launcher.protocol.task import Task
from tests.launcher.backends.gcp.fake_vm import make_request
from tests.launcher.told import Golden, told
from workload.contract import bundle
from workload.contract.spent import Spent

NAME = "rooflaunch-t4-20261121-100000-0000aa"


# How many runs were asked for, and how the bundles at home ended.
CASES: dict[str, tuple[int, list[str]]] = {
    "done": (1, ["completed"]),
    "both": (2, ["completed", "completed"]),
    "started again": (1, ["preempted", "completed"]),
    "failed": (1, ["failed"]),
    "one of two": (2, ["completed", "interrupted"]),
    "too large": (1, ["out_of_memory"]),
    "one did not come": (2, ["completed"]),
    "nothing": (1, []),
}


def test_bundles_decide_how_a_launch_ended_that_says_it_is_done(golden: Golden, tmp_path: Path) -> None:
    def ended(asked: int, statuses: list[str], folder: Path) -> None:
        bundles = [
            bundle.read(make(folder, number, status=status, error=None if status == "completed" else "broken off"))
            for number, status in enumerate(statuses)
        ]
        if failed := _shortfall(make_request(NAME, "", {"device": "cpu", "repeats": str(asked)}), bundles):
            raise failed

    cases = {name: partial(ended, *case, tmp_path / name) for name, case in CASES.items()}
    golden("shortfall.txt", told(cases))


def test_runs_with_keys_are_counted_by_the_sweep() -> None:
    plain = make_request(NAME, "", {"device": "cpu"})
    [run] = plain.work.runs
    task = Task(job="night", runs=(replace(run, run_key="0" * 16),))
    assert _shortfall(replace(plain, task=task.to_json(run.spec)), []) is None


ENDED = {"run_started": "2026-11-21T12:00:00Z", "run_ended": "2026-11-21T12:01:00Z"}
UPLOADED = {"uploaded": "2026-11-21T12:01:36Z", "finished": "2026-11-21T12:01:37Z"}


def request(**fields: Any) -> Request:
    plain = {"name": "a", "backend": "gcp", "launched_at": "2026-11-21T11:59:00Z", "store": "gs://b", "place": "gcp-t4"}
    return Request(**{**plain, "runtime": "docker", "limit_s": 600, "spec": {}, **fields})


@pytest.mark.parametrize(
    ("phases", "upload_s"),
    [
        ({**ENDED, **UPLOADED}, 36.0),
        ({**ENDED, **UPLOADED, "profile_ended": "2026-11-21T12:01:30Z"}, 6.0),
        ({**ENDED, "uploaded": "2026-11-21T12:01:36Z"}, 36.0),
        (ENDED, None),
        (UPLOADED, None),
        ({}, None),
        # The machine was taken away after its first end, and another one did the rest.
        ({**ENDED, **UPLOADED, "uploaded": "2026-11-21T13:00:00Z"}, None),
        ({**ENDED, **UPLOADED, "run_ended": "soon"}, None),
    ],
    ids=["a run", "profiled", "not finished", "not uploaded", "no run", "nothing", "resumed", "damaged"],
)
def test_upload(phases: dict[str, str], upload_s: float | None) -> None:
    listed = {"us-central1": {"usd_per_h": 0.9, "source": "a test", "read": "2026-11-20", "disk_usd_per_h": 0.1}}
    priced = upload_of(request(prices=listed), "us-central1-a", phases)
    assert priced == (Spent() if upload_s is None else Spent(seconds={"upload": upload_s}, usd=upload_s / 3600))
    assert upload_of(request(), "us-central1-a", phases).usd is None

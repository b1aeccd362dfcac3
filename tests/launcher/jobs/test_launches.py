"""The exit code of a launch that says it has ended well follows from its bundles."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from launcher.jobs import launches
from launcher.jobs.launches import LaunchState, upload_of
from launcher.jobs.run import _shortfall
from launcher.jobs.session import Session
from launcher.protocol.backend import Listing, Machine
from launcher.protocol.records import Request, Result, Task, request_object, result_object
from tests.launcher.backends.gcp.fake_vm import make_request
from tests.launcher.rented_vm import LAUNCHED_S, REQUEST
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spent import Spent
from workload.storage.folder import Folder
from workload.storage.store import StoredObject

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


MANY = 2000
RESULT = Result(exit_code=0, zone="us-central1-a", runs=[], phases={}, ended_at="2026-11-21T12:00:00Z").to_bytes()


class CountedFolder(Folder):
    """A store that counts what it is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads, self.lists = 0, 0

    def read(self, name: str, **limits: Any) -> bytes | None:
        self.reads += 1
        return super().read(name, **limits)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        self.lists += 1
        return super().objects(prefix)

    def folders(self, prefix: str) -> list[str]:
        self.lists += 1
        return super().folders(prefix)


class NoMachines:
    noun, place = "VM", "my-project"
    looks = 0

    def now_s(self) -> float:
        return LAUNCHED_S

    def look(self, _: object = None) -> Listing[Machine]:
        self.looks += 1
        return Listing()


def test_the_newest_are_shown_by_one_list_and_the_records_of_these_alone(tmp_path: Path) -> None:
    names = [f"rooflaunch-t4-20261121-{i // 3600:02d}{i // 60 % 60:02d}{i % 60:02d}-{i:06x}" for i in range(MANY)]
    for name in names:
        (tmp_path / "launches" / name).mkdir(parents=True)
        (tmp_path / result_object(name)).write_bytes(RESULT)
    for name in names[-launches.SHOWN :]:
        (tmp_path / request_object(name)).write_bytes(replace(REQUEST, name=name).to_bytes())
    store, machines = CountedFolder(tmp_path), NoMachines()
    listing = launches.list_launches(Session(machines=machines, store=store))  # type: ignore[arg-type] # what is asked
    assert [launch.seen.name for launch in listing] == names[: -launches.SHOWN - 1 : -1]
    assert {launch.state for launch in listing} == {LaunchState.DONE}
    assert (store.lists, store.reads, machines.looks) == (1, 2 * launches.SHOWN, 1)

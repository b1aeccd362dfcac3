"""States of launches, and their table, as `launch status` shows them; how one ended, by its bundles."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchmarks.synthetic_bundles import make
from launcher.jobs import launches
from launcher.jobs.launches import LaunchState, Seen, find, judge, render, render_one, upload_of
from launcher.jobs.run import _shortfall
from launcher.jobs.session import Session
from launcher.protocol.backend import Condition, Listing, Machine
from launcher.protocol.records import (
    Heartbeat,
    LaunchPhase,
    Request,
    Result,
    Task,
    request_object,
    result_object,
    status_object,
)
from tests.launcher.backends.gcp.fake_vm import make_request
from tests.launcher.rented_vm import LAUNCHED_S, MACHINE, NAME, REQUEST, ZONE
from tests.launcher.told import Golden, told
from workload.contract import bundle
from workload.contract.spent import Spent
from workload.contract.text import duration
from workload.storage.store import Store, StoredObject, UnreachableError


def machine(**changes: Any) -> Machine:
    return replace(MACHINE, **changes)


STOPPED = {"condition": Condition.STOPPED, "status": "TERMINATED"}


def stopped_at(seconds: float) -> Machine:
    return machine(**STOPPED, restarts=True, restarts_until_s=LAUNCHED_S + seconds + 900)


def at(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"2026-11-21T{12 + hours:02}:{rest // 60:02}:{rest % 60:02}.000+00:00"


def beat(seconds: float, *phases: LaunchPhase, line: str = "step 3 of 110") -> Heartbeat:
    told = {str(phase): at(seconds - 20) for phase in phases}
    return Heartbeat(at=at(seconds), zone=ZONE, phases=told, last_line=line)


def result(**changes: Any) -> Result:
    plain: dict[str, Any] = {
        "exit_code": 0,
        "zone": ZONE,
        "runs": ["20261121T120200Z-gcp-t4-us-central1-a-resnet18-b32-fp32-aaaaaa"],
        "phases": {LaunchPhase.BOOTED: at(40), LaunchPhase.FINISHED: at(300)},
        "ended_at": at(300),
        "usd": 0.045,
    }
    return Result(**plain | changes)


def seen(**changes: Any) -> Seen:
    """What is known of the launch: its request, and these changes."""
    return Seen(name=NAME, **{"request": REQUEST, **changes})


def on_vm(**changes: Any) -> Seen:
    return seen(**{"machine": machine(), **changes})


TRAINING = beat(200, LaunchPhase.RUN_STARTED)


# What is known of a launch, and after how many seconds it is looked at.
STATES: dict[str, tuple[Seen, float]] = {
    "just requested": (seen(), 60),
    "the launcher died": (seen(), 1201),
    "the VM is made": (seen(machine=machine(condition=Condition.STARTING, status="STAGING")), 60),
    "the VM boots": (on_vm(), 120),
    "never came up": (on_vm(), 2101),
    "it trains": (on_vm(heartbeat=TRAINING), 220),
    "it profiles": (on_vm(heartbeat=beat(200, LaunchPhase.RUN_ENDED, LaunchPhase.PROFILE_STARTED)), 220),
    "it uploads": (on_vm(heartbeat=beat(200, LaunchPhase.RUN_ENDED, line="uploading")), 220),
    "silent": (on_vm(heartbeat=TRAINING), 501),
    "stopped instead of deleted": (seen(machine=machine(**STOPPED)), 220),
    "stopped, and about to start again": (seen(machine=stopped_at(220)), 220 + 899),
    "stopped, and not started again": (seen(machine=stopped_at(220)), 220 + 900),
    "past its limit": (on_vm(heartbeat=beat(3890)), 3901),
    "done": (seen(result=result()), 400),
    "done, and the VM is still there": (seen(result=result(), machine=machine()), 400),
    "done, and the VM was stopped": (seen(result=result(), machine=machine(**STOPPED)), 400),
    "failed": (seen(result=result(exit_code=6, error="the loss is nan")), 400),
    "failed without a word": (seen(result=result(exit_code=6)), 400),
    "ran into its own limit": (seen(result=result(exit_code=6, timed_out=True)), 400),
    "preempted, and said so": (seen(result=result(exit_code=6, preempted=True, error="taken back")), 400),
    "gone without a result": (seen(heartbeat=beat(200)), 400),
    "gone at its limit": (seen(heartbeat=beat(200)), 3700),
    "its zone does not answer": (seen(heartbeat=TRAINING, unanswered=(ZONE,)), 900),
    "none of many zones answers": (seen(unanswered=("a", "b", "c", "d")), 900),
    "its zone does not answer, its bucket does": (seen(heartbeat=TRAINING, unanswered=(ZONE,)), 220),
    "done, in a zone that does not answer": (seen(result=result(), unanswered=(ZONE,)), 400),
    "nothing but a log": (Seen(name=NAME), 400),
    "a VM of another bucket": (Seen(name=NAME, machine=machine()), 400),
}


def judged(known: Seen, age_s: float) -> launches.Launch:
    return judge(known, LAUNCHED_S + age_s, was_preempted=lambda: False)


def test_state_of_a_launch_and_its_reason(golden: Golden) -> None:
    found = {name: judged(*case) for name, case in STATES.items()}
    golden("states.txt", "".join(f"{name}: {launch.state}: {launch.why}\n" for name, launch in found.items()))


def test_only_a_vm_that_vanished_is_asked_for_its_preemption() -> None:
    asked = []

    def was_preempted() -> bool:
        asked.append(1)
        return True

    gone = seen(heartbeat=beat(200))
    launch = judge(gone, LAUNCHED_S + 400, was_preempted=was_preempted)
    assert (launch.state, launch.why) == (LaunchState.PREEMPTED, "the cloud took the spot VM away")
    judge(replace(gone, machine=machine()), LAUNCHED_S + 220, was_preempted=was_preempted)
    judge(Seen(name=NAME, request=REQUEST), LAUNCHED_S + 4000, was_preempted=was_preempted)
    assert len(asked) == 1, "without a zone nobody can be asked"


def test_cost_so_far_is_that_of_the_vm_since_its_creation() -> None:
    running = seen(machine=machine())
    assert judged(running, 30 + 1800).usd == pytest.approx(0.27)
    assert judged(replace(running, result=result()), 0).usd == 0.045
    beside = {**next(iter(REQUEST.prices.values())), "disk_usd_per_h": 0.05, "address_usd_per_h": 0.01}
    whole = judged(replace(running, request=replace(REQUEST, prices={"us-central1": beside})), 30 + 1800)
    told = whole.to_json()
    assert (told["billed_from"], told["billed_to"]) == ("2026-11-21T12:00:30Z", "2026-11-21T12:30:30Z")
    assert str(whole.cost) == "0.300 USD, from 2026-11-21T12:00:30Z to 2026-11-21T12:30:30Z; without traffic and tax"
    elsewhere = replace(running, machine=machine(zone="asia-east1-c"))
    assert judged(elsewhere, 1800).usd is None, "no price, no figure"


NAMES = [
    "rooflaunch-t4-20261121-120000-3fa9c1",
    "rooflaunch-t4-20261121-115959-bbbbbb",
    "rooflaunch-l4-20261120-080000-3fa9c2",
]


class Objects:
    """The part of a store that reads, over a dict."""

    kind = "bucket"

    def __init__(self, found: dict[str, bytes], name: str = "my-bucket") -> None:
        self.found, self.name = found, name
        self.asked = 0

    def locate(self, name: str) -> str:
        return f"gs://{self.name}/{name}"

    def read(self, name: str, *, most_bytes: int = 0) -> bytes | None:
        self.asked += 1
        assert most_bytes >= 0
        return self.found.get(name)

    def folders(self, prefix: str) -> list[str]:
        self.asked += 1
        inner = (name.removeprefix(prefix) for name in self.found if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inner if "/" in name})

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        self.asked += 1
        names = sorted(name for name in self.found if name.startswith(prefix))
        return (StoredObject(name=name, bytes=1, crc32c="", version="1") for name in names)


def as_store(objects: Objects) -> Store:
    store: Any = objects
    return store  # type: ignore[no-any-return]


class Place:
    """Machines that are listed, of which none was preempted."""

    noun, place, calls = "VM", "my-project", Counter[str]()

    def __init__(self, there: Sequence[Machine], *unreachable: str, now_s: float = LAUNCHED_S) -> None:
        self.listing, self.time_s = Listing(there=tuple(there), unreachable=unreachable), now_s

    def now_s(self) -> float:
        return self.time_s

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        return self.listing if names is None else self.gone(names)

    def gone(self, names: Mapping[str, Sequence[str]]) -> Listing[Machine]:
        return Listing(there=tuple(Machine(name=name, zone="", condition=Condition.GONE) for name in names))


def session_of(place: Place, objects: Objects) -> Session:
    machines: Any = place
    return Session(machines=machines, store=as_store(objects))


@pytest.mark.parametrize("word", [NAMES[0], "3fa9c1", "bbbbbb", "rooflaunch-l4"])
def test_launch_is_found_by_a_start_or_an_end_of_its_name(word: str) -> None:
    [name] = [name for name in NAMES if name.startswith(word) or name.endswith(word)]
    assert find(word, NAMES) == name


def test_word_that_names_no_launch_or_several_is_refused(golden: Golden) -> None:
    words = ("rooflaunch-t4", "ffffff", "", "bbb", "$(reboot)", "20261121T120200Z-../../x")
    golden("find.txt", told({f"'{word}'": partial(find, word, NAMES) for word in words}))


MANY = [*NAMES, *(f"rooflaunch-t4-2026{day:04}-000000-000000" for day in range(1120, 101, -1))]


def test_list_shows_the_newest_and_every_vm() -> None:
    objects = Objects({request_object(name): replace(REQUEST, name=name).to_bytes() for name in NAMES})
    objects.found[request_object("rooflaunch-evil\n")] = b"{}"
    there = [machine(name=NAMES[2]), machine(name="rooflaunch-l4-20261119-080000-dddddd")]
    found = launches.list_launches(session_of(Place(there, now_s=LAUNCHED_S), objects), limit=1)
    assert [each.seen.name for each in found] == [NAMES[0], NAMES[2], "rooflaunch-l4-20261119-080000-dddddd"]


def test_list_of_many_launches_asks_for_the_records_of_the_newest_alone() -> None:
    names = sorted(MANY[3:], reverse=True)
    objects = Objects({result_object(name): result().to_bytes() for name in names})
    shown = launches.list_launches(session_of(Place([]), objects))
    assert [launch.seen.name for launch in shown] == names[: launches.SHOWN]
    assert objects.asked == 1 + 2 * launches.SHOWN


def test_an_unreadable_record_is_one_line_among_the_others() -> None:
    objects = Objects(
        {
            request_object(NAMES[0]): replace(REQUEST, name=NAMES[0]).to_bytes(),
            request_object(NAMES[1]): b"<",
            request_object(NAMES[2]): replace(REQUEST, name=NAMES[1]).to_bytes(),
        }
    )
    there = [machine(name=NAMES[2])]
    found = launches.list_launches(session_of(Place(there, now_s=LAUNCHED_S + 60), objects))
    assert [(each.state, each.why) for each in found] == [
        (LaunchState.REQUESTED, "no VM yet"),
        (
            LaunchState.UNREADABLE,
            "not a readable request of a launch: no JSON (Expecting value: line 1 column 1 (char 0))",
        ),
        (LaunchState.UNREADABLE, f"its request belongs to '{NAMES[1]}'; the VM exists"),
    ]


def test_a_list_with_a_gap_loses_no_launch() -> None:
    requests = {name: replace(REQUEST, name=name, zones=[zone]) for name, zone in zip(NAMES, "aab", strict=True)}
    objects = Objects({request_object(name): request.to_bytes() for name, request in requests.items()})
    listed = Place([machine(name=NAMES[0])], "a", now_s=LAUNCHED_S + 60)
    shown = launches.list_launches(session_of(listed, objects))
    assert shown.unreachable == ("a",)
    states = {launch.seen.name: launch.state for launch in shown}
    assert [states[name] for name in NAMES] == [LaunchState.STARTING, LaunchState.UNKNOWN, LaunchState.REQUESTED]


def test_a_zone_that_does_not_tell_of_preemptions_hides_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects({request_object(NAME): replace(REQUEST, zones=[ZONE]).to_bytes()})
    objects.found[status_object(NAME)] = beat(200).to_bytes()

    def no_answer(_: object) -> NoReturn:
        raise UnreachableError("Compute Engine cannot be reached", hint="later")

    place = Place([], now_s=LAUNCHED_S + 400)
    monkeypatch.setattr(place, "gone", no_answer)
    [launch] = launches.list_launches(session_of(place, objects))
    assert (launch.state, launch.why) == (LaunchState.LOST, "the VM is gone and left no result")


def test_table_of_launches_and_a_launch_named_in_detail(golden: Golden) -> None:
    running = seen(request=replace(REQUEST, spot=True), machine=machine(), heartbeat=beat(200, line="step 3"))
    ended = Seen(name=NAMES[2], result=result(exit_code=6, error="a\x1b[2Jb\nc"))
    texts = [render([judged(each, 230) for each in (running, ended)], LAUNCHED_S + 230)]
    booted = seen(machine=machine(), heartbeat=beat(200, LaunchPhase.BOOTED))
    for known, age_s in ((booted, 230), (seen(result=result()), 400)):
        texts.append(render_one(judged(known, age_s), as_store(Objects({})), LAUNCHED_S + age_s, "launch {}".format))
    golden("status.txt", "\n\n".join(texts) + "\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h 00 min"), (200000, "2 d 7 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


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


def test_upload() -> None:
    listed = {"us-central1": {"usd_per_h": 0.9, "source": "a test", "read": "2026-11-20", "disk_usd_per_h": 0.1}}
    for phases, upload_s in (
        ({**ENDED, **UPLOADED}, 36.0),
        ({**ENDED, **UPLOADED, "profile_ended": "2026-11-21T12:01:30Z"}, 6.0),
        ({**ENDED, "uploaded": "2026-11-21T12:01:36Z"}, 36.0),
        *((dict[str, str](lacking), None) for lacking in (ENDED, UPLOADED, {})),
        # The machine was taken away after its first end, and another one did the rest.
        ({**ENDED, **UPLOADED, "uploaded": "2026-11-21T13:00:00Z"}, None),
        ({**ENDED, **UPLOADED, "run_ended": "soon"}, None),
    ):
        priced = upload_of(request(prices=listed), "us-central1-a", phases)
        assert priced == (Spent() if upload_s is None else Spent(seconds={"upload": upload_s}, usd=upload_s / 3600))
        assert upload_of(request(), "us-central1-a", phases).usd is None

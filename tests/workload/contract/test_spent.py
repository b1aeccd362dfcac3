"""Where the time of a run went: real bundles with sums by hand, and run.json as a damaged or foreign one may be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workload.contract import bundle
from workload.contract.record import CeilingsRecord, Cost, GapSeconds, Record, Spec, Status, Timing
from workload.contract.record import read as read_document
from workload.contract.spent import PARTS, Spent

ROOT = Path(__file__).parents[3]
PHASES = {"start": 0.0, "prepare": 4.0, "environment": 5.0, "setup": 5.5, "warmup": 6.0, "measured": 7.0, "end": 9.0}
PLAIN = {"imports": 4.0, "prepare": 1.5, "environment": 0.5, "warmup": 1.0, "steps": 2.0}


def a_run(timing: Timing | None = None) -> Record:
    spec = Spec(model="resnet18", batch_size=1)
    return Record(run_id="a", status=Status.COMPLETED, spec=spec, timing=timing or Timing(phases=PHASES))


def a_bundle(name: str) -> Record:
    [folder] = ROOT.glob(name)
    return bundle.read_record(folder)


# The rented machine's runs do not tell when the charged time began: the boot is unknown, and so is its cost.
RUNS = "tests/bundles/runs"
RENTED, CHARGED = f"{RUNS}/20261121T192751Z*", {"billed_to": "2026-11-21T19:28:30Z", "usd": 0.006}
WITHOUT_PHASES = ("20261121T192808Z*", "20261121T193013Z*", "20261121T193028Z*", "20261121T193002Z*")


def test_real_runs(golden: Callable[[str, str], None]) -> None:
    """Of our trainer, on a rented machine, out of memory, and of a script whose ceilings come after its steps."""
    rented, script = a_bundle(RENTED), a_bundle("tests/bundles/scripts/20261122T031751Z*")
    fresh = replace(script, ceilings=CeilingsRecord(elapsed_s=3.0, age_s=0.0))
    first, later = (
        replace(rented, cost=Cost(billed_from=f"2026-11-21T19:{start}Z", billed_s=seconds, **CHARGED))
        for start, seconds in (("27:50", 40.0), ("28:00", 30.0))
    )
    runs = {
        "our trainer": Spent.of(a_bundle("analysis/example/20261121T183111Z*")),
        "a rented machine": Spent.of(rented),
        # Booted 19:27:50.391, docker_ready .438, image_pulled .462.
        "its first run, charged from 19:27:50": Spent.of(first),
        # The machine had booted.
        "a later run, charged from 19:28:00": Spent.of(later),
        "out of memory": Spent.of(a_bundle(f"{RUNS}/20261121T192729Z*")),
        "a script with pauses": Spent.of(script),
        "a script whose ceilings were measured beside it": Spent.of(fresh, whole_s=10.0),
        **{
            f"no phases: {name}": Spent.of(a_bundle(f"tests/bundles/runs/{name}"), whole_s=3.0)
            for name in WITHOUT_PHASES
        },
    }
    text = ""
    for title, spent in runs.items():
        assert (spent.to_json() is None) == (not spent.runs)
        parts = "".join(f"  {part} {seconds:.6f} s\n" for part, seconds in spent.seconds.items())
        text += f"## {title}\n{spent.text()}\n{parts}{spent.wall_s:.6f} s, {spent.usd} USD, {spent.runs}\n\n"
    golden("spent.txt", text)


@pytest.mark.parametrize(("start", "rest"), [(None, "outside"), ("fresh", "outside"), ("forked", "imports")])
def test_the_rest_of_a_fork_is_the_wait_for_its_server(start: str | None, rest: str) -> None:
    run = a_run()
    run = replace(run, environment=replace(run.environment, start=start))
    expected = {**PLAIN, rest: PLAIN.get(rest, 0.0) + 3.0}
    assert Spent.of(run, whole_s=12.0).seconds == pytest.approx(expected)
    assert Spent.of(run).seconds == pytest.approx(PLAIN)


@pytest.mark.parametrize(
    ("timing", "changed"),
    [
        ({}, {}),
        ({"interpreter_s": 0.25}, {"imports": 4.25}),
        (
            {"phases": {**PHASES, "settle": 5.25, "ceilings_again": 8.75}},
            {"cooling": 0.25, "environment": 0.25, "steps": 1.75, "ceilings": 0.25},
        ),
        ({"phases": {**PHASES, "of_tomorrow": 8.0}}, {"steps": 1.0, "other": 1.0}),
        ({"phases": {**PHASES, "warmup": 20.0, "measured": 30.0}}, {"prepare": 4.5, "warmup": 0.0, "steps": 0.0}),
        ({"phases": {**PHASES, "end": None}}, dict.fromkeys(PLAIN, 0.0)),
        ({"phases": {"end": 5.0}}, dict.fromkeys(PLAIN, 0.0)),
        ({"gaps": {"validation": GapSeconds(seconds=5.0)}}, {"gaps": 2.0, "steps": 0.0}),
    ],
    ids=["plain", "interpreter", "cooled", "newer", "after the end", "no end", "only an end", "impossible gaps"],
)
def test_phases(timing: dict[str, Any], changed: dict[str, float]) -> None:
    spent = Spent.of(a_run(timing=Timing(**{"phases": PHASES, **timing})))
    assert spent.seconds == pytest.approx({part: value for part, value in {**PLAIN, **changed}.items() if value})


def test_the_launcher_knows_the_end_of_the_process() -> None:
    spent = Spent.of(a_run(), whole_s=10.0)
    assert spent.seconds == pytest.approx({**PLAIN, "outside": 1.0})
    assert spent.text() == (
        "steps 20 % of 10 s (1 run); imports 40 %, set-up 15 %, warm-up 10 %, launcher and exit 10 %, environment 5 %"
    )
    assert Spent.of(a_run(), whole_s=8.0) == Spent.of(a_run()), "a clock that was set back"


def test_sums() -> None:
    once = Spent(seconds={"steps": 1.0, "boot": 3.0}, usd=0.02, runs=1)
    total = Spent.total([once, Spent(), once, Spent(seconds={"upload": 2.0}, usd=0.01)])
    assert total == Spent(seconds={"steps": 2.0, "boot": 6.0, "upload": 2.0}, usd=pytest.approx(0.05), runs=2)
    assert total.to_json() == {
        "runs": 2,
        "wall_s": 10.0,
        "usd": pytest.approx(0.05),
        "steps_s": 2.0,
        "upload_s": 2.0,
        "boot_s": 6.0,
    }
    assert total.text() == "steps 20 % of 10 s and 0.05 USD (2 runs); boot 6 s (0.03 USD), upload 2 s (0.01 USD)"
    assert Spent.total([once, replace(once, usd=None)]).usd is None
    assert Spent.total([]) == Spent()


def test_small_parts_are_left_out_of_the_text_alone() -> None:
    spent = Spent(seconds={"steps": 2000.0, "imports": 20.0, "environment": 21.0}, runs=3)
    assert spent.text() == "steps 98 % of 34 min (3 runs); environment 1 %"
    assert set(spent.shares()) == {"steps", "imports", "environment"}
    assert Spent(seconds={"steps": 2.0}, runs=1).text() == "steps 100 % of 2 s (1 run)"


def test_shares_add_up_and_every_part_has_a_name() -> None:
    spent = Spent.of(a_run(), whole_s=10.0)
    assert sum(spent.shares().values()) == pytest.approx(1.0)
    assert len(set(PARTS.values())) == len(PARTS)


def test_largest_figures_of_a_foreign_run_json_give_no_error() -> None:
    phases = {"start": 0.0, "measured": 1e30, "finish": 1e30, "end": 1e30}
    document = {
        "schema_version": 3,
        "run_id": "a",
        "status": "completed",
        "spec": {"model": "m", "batch_size": 1},
        "timing": {"phases": phases, "interpreter_s": 1e30},
        "cost": {
            "billed_from": "0001-01-01T00:00:00Z",
            "billed_to": "9999-12-31T00:00:00Z",
            "billed_s": 0,
            "usd": 1e30,
        },
    }
    assert Spent.of(read_document(document).record).text().startswith("steps 0 % of ")

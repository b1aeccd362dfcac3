"""Where the time of a run went: real bundles with sums by hand, and run.json as a damaged or foreign one may be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workload.contract import bundle
from workload.contract.ranks import Ranks
from workload.contract.record import (
    CeilingsRecord,
    Cost,
    GapSeconds,
    Record,
    ScriptFacts,
    Spec,
    Status,
    StepSeconds,
    Timing,
)
from workload.contract.record import read as read_document
from workload.contract.spent import Spent, whole_script, work_rows

ROOT = Path(__file__).parents[3]
PHASES = {"start": 0.0, "prepare": 4.0, "environment": 5.0, "setup": 5.5, "warmup": 6.0, "measured": 7.0, "end": 9.0}
PLAIN = {"imports": 4.0, "prepare": 1.5, "environment": 0.5, "warmup": 1.0, "steps": 2.0}


def a_run(timing: Timing | None = None) -> Record:
    spec = Spec(model="resnet18", batch_size=1)
    return Record(run_id="a", status=Status.COMPLETED, spec=spec, timing=timing or Timing(phases=PHASES))


def a_bundle(name: str) -> Record:
    [folder] = ROOT.glob(name)
    return bundle.read_record(folder)


def trained(words: str = "", *, unit: str = "images", length: float | None = None, **changes: Any) -> Record:
    """A script's run of 20 steps in 10 s, 32 of the unit each, on a machine for 0.72 USD per hour."""
    script = ScriptFacts(argv=("train.py", *words.split()), unit=unit, dataset_samples=length)
    spec = Spec(model="train.py", batch_size=32, script=script, **changes)
    timing = Timing(measured_s=10.0, images=640, images_per_s=64.0, step_s=StepSeconds(n=20, median=0.4))
    cost = Cost(usd_per_h=0.72)
    return Record(run_id="a", status=Status.COMPLETED, spec=spec, timing=timing, cost=cost)


# Ten sequences of 64 tokens.
SEQUENCES = replace(
    trained(unit="tokens", length=500), timing=Timing(measured_s=10.0, images=640, images_per_s=64.0, samples=10)
)
WORK: dict[str, tuple[Record, dict[str, str]]] = {
    "nothing is known": (trained(), {"time": "1 million images: 4.34 h, 3.1 USD"}),
    "tokens": (trained(unit="tokens"), {"time": "1 billion tokens: 181 d, 3125 USD"}),
    "tokens of sequences of unknown number": (
        trained(unit="tokens", length=500),
        {"time": "1 billion tokens: 181 d, 3125 USD"},
    ),
    "tokens of sequences": (SEQUENCES, {"epoch": "32,000 tokens: 8.33 min, 0.1 USD"}),
    "an epoch": (trained(length=50_000), {"epoch": "50,000 images: 13 min, 0.16 USD"}),
    "an amount decides": (trained(length=50_000, samples=2e6), {"time": "2 million images: 8.68 h, 6.2 USD"}),
    "a short epoch": (trained(length=10), {"epoch": "10 images: 156 ms, less than 0.0001 USD"}),
    "no price": (replace(trained(length=6400), cost=None), {"epoch": "6,400 images: 100 s"}),
    "our trainer": (
        Record(
            run_id="a",
            status=Status.COMPLETED,
            spec=Spec(model="resnet18", batch_size=32, dataset_images=9456),
            timing=Timing(images_per_s=4.0),
        ),
        {"epoch": "9,456 images: 39.4 min"},
    ),
    "two devices": (
        replace(trained(length=6400, devices=2), cost=None, ranks=Ranks(number=2, images_per_s=128.0)),
        {"epoch": "6,400 images: 50 s"},
    ),
    "two devices without a common rate": (replace(trained(length=6400, devices=2), ranks=Ranks(number=2)), {}),
}
# Half a second a step; 6,400 images in 100 s.
WHOLE = {
    "--epochs 90": "epochs=90 of its arguments: 2.5 h, 1.8 USD",
    "--lr 0.1 --num-epochs=3": "num-epochs=3 of its arguments: 5 min, 0.06 USD",
    "--num_train_epochs 0.5 --max_steps -1": "num_train_epochs=0.5 of its arguments: 50 s, 0.01 USD",
    "config/train.py --max_iters=600000": "max_iters=600000 of its arguments: 3.47 d, 60 USD",
    # Which of the two ends the training differs between frameworks.
    "--epochs 3 --max-steps 100": None,
    "--epochs all": None,
    "--epochs 0": None,
    "--epochs 1e999": None,
    "--warmup-epochs 5": None,
    "": None,
}


@pytest.mark.parametrize(("record", "expected"), WORK.values(), ids=WORK)
def test_time_and_cost_of_the_users_own_amount_of_work(record: Record, expected: dict[str, str]) -> None:
    assert dict(work_rows([record])) == expected


@pytest.mark.parametrize(("words", "expected"), WHOLE.items())
def test_time_and_cost_of_the_whole_script_by_its_own_argument(words: str, expected: str | None) -> None:
    shown = dict(work_rows([trained(words, length=6400)]))
    assert shown.get("whole script") == (expected and f"{expected}; training steps only")


def test_epochs_of_data_of_unknown_length_are_no_answer_and_steps_are_one() -> None:
    assert whole_script(trained("--epochs 90")) is None
    assert whole_script(trained("--max-steps 100")) == ("max-steps=100", 50.0)


def test_several_runs_have_an_interval_and_one_price() -> None:
    runs = [replace(trained(length=6400), timing=Timing(images_per_s=rate)) for rate in (50.0, 64.0, 80.0)]
    assert dict(work_rows(runs, lambda times_s: (min(times_s), max(times_s)))) == {
        "epoch": "6,400 images: 100 s (80 to 128), 0.02 USD"
    }
    free = [*runs[:2], replace(runs[2], cost=None)]
    assert dict(work_rows(free)) == {"epoch": "6,400 images: 100 s"}


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

import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.synthetic_bundles import make
from launcher.sweep import matrix, start
from launcher.sweep.drive import SweepPorts, drive
from launcher.sweep.outcome import SweepOutcome
from launcher.sweep.places import LOCAL, Place, PlacePlan, Sweep
from launcher.sweep.start import Asked
from launcher.sweep.until import Until
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract.errors import UsageError
from workload.contract.spec import Precision

FILE = Path("night.toml")
TEXT = '[matrix]\nprecision = ["fp32", "bf16"]\nbatch_size = [8, 16]\n[[on]]\nbackend = "local"\nruntime = "process"\n'
NOW = datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC)
PORTS = SweepPorts(backend=lambda _: pytest.fail("nobody is asked"), is_terminal=lambda: False, ask=str)


def whole() -> matrix.Matrix:
    return matrix.read(tomllib.loads(TEXT), file=FILE, environment={}, config_folder=None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((None, None, None, None), None),
        (("1%", None, None, None), Until(share=0.01)),
        (("0.05", None, None, 8), Until(share=0.05, most=8)),
        (
            (None, "2%", "precision=fp32", None),
            Until(share=0.02, baseline={"precision": Precision.FP32}),
        ),
    ],
    ids=["none", "throughput", "at most", "ratio"],
)
def test_when_to_stop(words: tuple[str | None, str | None, str | None, int | None], expected: Until | None) -> None:
    assert start.until_of(*words) == expected


BOTH = "--until-ratio and --baseline need each other"
BOTH_HINT = "--until-ratio 2% --baseline precision=fp32"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("1%", "2%", "a=b", None), "--until and --until-ratio cannot be combined", "one of the two"),
        ((None, "2%", None, None), BOTH, BOTH_HINT),
        (("1%", None, "precision=fp32", None), BOTH, BOTH_HINT),
        (
            (None, None, None, 5),
            "--max-repeats limits the blocks that --until adds; got 5 without it",
            "repeats = 5 in the matrix, or --until 1%",
        ),
        (("2", None, None, None), "--until must be a share such as 1%; got '2'", "--until 1%"),
    ],
    ids=["both rules", "no baseline", "no ratio", "nothing to bound", "no share"],
)
def test_rules_that_contradict(
    words: tuple[str | None, str | None, str | None, int | None], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        start.until_of(*words)
    assert (str(refused.value), refused.value.hint) == (message, hint)


@pytest.mark.parametrize("usd", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_sum(usd: float) -> None:
    with pytest.raises(UsageError, match="--max-cost must be a positive sum in USD; got "):
        start.require_sum(usd)
    assert start.require_sum(2.5) == 2.5
    assert start.require_sum(None) is None


def test_a_plan_says_until_when_blocks_are_added(tmp_path: Path) -> None:
    asked = Asked(file=FILE, output=tmp_path, until=Until(share=0.02, most=9))
    plan = start.planned(asked, whole(), offline=True, now=lambda: NOW)
    assert plan.notes[-1] == f"blocks are added until {asked.until}"


def test_a_baseline_that_nothing_is_compared_with_is_refused(tmp_path: Path) -> None:
    asked = Asked(file=FILE, output=tmp_path, until=Until(share=0.02, baseline={"precision": Precision.TF32}))
    with pytest.raises(UsageError, match="no two configurations of the matrix differ in the baseline's options alone"):
        start.planned(asked, whole(), offline=True, now=lambda: NOW)


def test_a_fresh_sweep_is_named_by_its_time(tmp_path: Path) -> None:
    plan = start.planned(Asked(file=FILE, output=tmp_path, fresh=True), whole(), offline=True, now=lambda: NOW)
    assert plan.sweep.name == "night-20261121-142530"


def test_damaged_bundles_are_set_aside_before_the_first_run(tmp_path: Path) -> None:
    plan = plan_of(Place(name="here", backend=LOCAL), configurations_of(), 1)
    plan = replace(plan, done=frozenset(run.run_key for run in plan.runs))
    sweep = Sweep(name="night", repeats=1, seed=0, places=(plan,))
    damaged, mended = (make(tmp_path, number) for number in range(2))
    (damaged / "steps.csv").unlink()
    outcome = drive(sweep, output=tmp_path, ports=PORTS, damaged=[damaged.name, mended.name, "gone"])
    assert (outcome.exit_code, outcome.places[0].done) == (0, 1)
    assert [path.name for path in (tmp_path / ".damaged").iterdir()] == [damaged.name]
    assert mended.is_dir()
    assert not damaged.exists()


def test_it_is_driven_as_it_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[tuple[object, dict[str, object]]] = []
    outcome = SweepOutcome(name="night", places=(), output=tmp_path, exit_code=0, seconds=1.0)

    def drive(sweep: object, **words: object) -> SweepOutcome:
        driven.append((sweep, words))
        return outcome

    monkeypatch.setattr(start, "drive", drive)
    asked = Asked(file=FILE, output=tmp_path, until=Until(share=0.02), max_cost_usd=3.0, max_time_s=60)
    plan = start.planned(asked, whole(), offline=True, now=lambda: NOW)
    assert start.go(asked, plan, PORTS) is outcome
    [(sweep, words)] = driven
    grow = words.pop("grow")
    assert sweep == plan.sweep
    assert words == {
        "output": tmp_path,
        "until": asked.until,
        "max_cost_usd": 3.0,
        "max_time_s": 60,
        "ports": PORTS,
        "damaged": (),
    }
    assert callable(grow)
    grown: PlacePlan = grow(plan.sweep.places[0], 5)
    assert ([run.block for run in grown.runs[::4]], grown.runs[:12]) == ([1, 2, 3, 4, 5], plan.sweep.places[0].runs)

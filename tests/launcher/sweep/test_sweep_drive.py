from dataclasses import replace
from pathlib import Path

from benchmarks.synthetic_bundles import make
from launcher.sweep.drive import drive
from launcher.sweep.places import LOCAL, Place, Sweep
from tests.launcher.sweep.sweeps import configurations_of, plan_of


def test_damaged_bundles_are_set_aside_before_the_first_run(tmp_path: Path) -> None:
    plan = plan_of(Place(name="here", backend=LOCAL), configurations_of(), 1)
    plan = replace(plan, done=frozenset(run.run_key for run in plan.runs))
    sweep = Sweep(name="night", repeats=1, seed=0, places=(plan,))
    damaged, mended = (make(tmp_path, number) for number in range(2))
    (damaged / "steps.csv").unlink()
    outcome = drive(sweep, output=tmp_path, damaged=[damaged.name, mended.name, "gone"])
    assert (outcome.exit_code, outcome.places[0].done) == (0, 1)
    assert [path.name for path in (tmp_path / ".damaged").iterdir()] == [damaged.name]
    assert mended.is_dir()
    assert not damaged.exists()

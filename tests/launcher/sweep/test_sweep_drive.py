import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.synthetic_bundles import make
from launcher.sweep.drive import drive, lock_held, lock_path
from launcher.sweep.places import LOCAL, Place, Sweep
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract.errors import UsageError

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from launcher.sweep.drive import lock_held
with lock_held(Path(sys.argv[1]), "night"):
    print("held", flush=True)
    sys.stdin.read()
"""


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


@pytest.mark.world
def test_one_process_at_a_time_works_on_a_sweep_in_a_folder(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"'night' in '{tmp_path}': process {holder.pid} on ") as refused:
            lock_held(tmp_path, "night").__enter__()
        assert refused.value.hint == "wait for it or end it, or -o ANOTHER_FOLDER"
        holder.kill()
    with lock_held(tmp_path, "night") as earlier:
        assert earlier.startswith(f"process {holder.pid} on ")


def test_a_lock_stays_in_its_folder_and_is_no_link(tmp_path: Path) -> None:
    path, notes = lock_path(tmp_path, "../../etc/x"), tmp_path / "notes.txt"
    assert path.parent == tmp_path
    notes.write_text("kept")
    path.symlink_to(notes)
    with pytest.raises(UsageError, match=r"the sweep's lock .* cannot be opened"):
        lock_held(tmp_path, "../../etc/x").__enter__()
    assert notes.read_text() == "kept"

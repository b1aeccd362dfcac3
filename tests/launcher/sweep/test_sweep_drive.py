import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.synthetic_bundles import make
from launcher.sweep.drive import drive, lock_held, lock_path
from launcher.sweep.places import LOCAL, Place, Sweep
from launcher.sweep.rented import Collector
from launcher.sweep.shared import Progress, Workers
from launcher.sweep.work import PlaceWork
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract.errors import UsageError
from workload.contract.record import Status
from workload.storage.address import open_store
from workload.storage.inventory import SealedRun, upload

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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("", b"", None),
        # The list of a folder has no checksums: fetching the bundle shows it.
        ("log.txt", b"M", "log.txt arrived damaged 2 times"),
    ],
    ids=["whole", "a changed byte"],
)
def test_a_damaged_bundle_in_the_store_settles_no_run(
    name: str, content: bytes, said: str | None, tmp_path: Path
) -> None:
    plan = plan_of(Place(name="t4", backend=LOCAL), configurations_of(), 1)
    [run] = plan.runs
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    made = make(tmp_path / "made", run_key=run.run_key)
    upload(store, made)
    stored = tmp_path / "store/runs" / made.name
    if name:
        whole = (stored / name).read_bytes()
        (stored / name).write_bytes(content + whole[1:] if said and "arrived" in said else content)
    work, progress, workers = PlaceWork(plan, known={}), Progress(), Workers(1)
    home = Collector(work, store, tmp_path / "results", progress, workers)
    home.fetch_sealed()
    lines = progress.take_lines()
    workers.close()
    assert work.status(run.run_key) is (Status.COMPLETED if said is None else None)
    assert len(work.open_tasks()) == (0 if said is None else 1)
    assert (tmp_path / "results" / made.name / "MANIFEST.json").is_file() is (said is None)
    if said is None:
        assert lines == []
    else:
        [line] = lines
        assert f"{stored} is damaged, so its run is repeated: {said}" in line[1]


@pytest.mark.parametrize("is_here", [False, True])
def test_a_failed_bundle_that_the_store_labels_as_a_completed_run_settles_no_run(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(Place(name="t4", backend=LOCAL), configurations_of(), 1)
    [run] = plan.runs
    (tmp_path / "store").mkdir()
    store, output = open_store(str(tmp_path / "store")), tmp_path / "results"
    made = make(output if is_here else tmp_path / "made", spec__model="vgg16", status="failed", run_key="of another")
    upload(store, made)
    labelled = SealedRun(run_id=made.name, status="completed", run_key=run.run_key)
    monkeypatch.setattr("launcher.sweep.rented.sealed_runs", lambda *_, **__: [labelled])
    work, progress, workers = PlaceWork(plan, known={}), Progress(), Workers(1)
    home = Collector(work, store, output, progress, workers)
    home.fetch_sealed()
    home.fetch_sealed()
    workers.close()
    assert work.status(run.run_key) is None
    [line] = progress.take_lines()
    assert line[1].endswith("so its run is repeated: its label status is 'completed', and run.json says 'failed'")

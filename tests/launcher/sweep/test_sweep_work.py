"""What is asked of a place and what has come of it, without a machine; one process at a time works on a sweep."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from launcher.protocol.records import TaskRun
from launcher.sweep.drive import drive, lock_held, lock_path
from launcher.sweep.places import LOCAL, Place, Sweep, Until
from launcher.sweep.rented import Collector
from launcher.sweep.shared import Progress, Workers
from launcher.sweep.work import LOG_HINT, Ended, PlaceWork, configuration_text, existing_runs, rate_text, too_large_text
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract.errors import UsageError
from workload.contract.record import JobPlace, Record, Spec, Status, Timing
from workload.contract.spent import Spent
from workload.stats.design import Run
from workload.storage.address import open_store
from workload.storage.inventory import SealedRun, upload

HERE = Place(name="here", backend=LOCAL)
PATH = Path("/results/run")


def work_of(blocks: int = 2, *, known: dict[str, Ended] | None = None, **changes: Any) -> PlaceWork:
    plan = plan_of(HERE, configurations_of(model=["resnet18", "resnet50"], batch_size=[1, 8]), blocks)
    return PlaceWork(plan, known=known or {}, **changes)


def record_of(
    run: TaskRun, status: Status = Status.COMPLETED, *, rate: float = 100.0, error: str | None = None
) -> Record:
    timing = Timing(started_at="2026-11-21T12:00:00Z", images_per_s=rate if status is Status.COMPLETED else None)
    spec = Spec(model=run.spec.model, batch_size=run.spec.batch_size)
    return Record(run_id="run", status=status, run_key=run.run_key, spec=spec, timing=timing, error=error)


def keys(runs: Any) -> list[str]:
    return [run.run_key for run in runs]


def test_time_is_that_of_the_runs_of_this_process() -> None:
    phases = {"start": 0.0, "measured": 4.0, "end": 6.0}
    work = work_of()
    first, second, third = work.runs[:3]
    known = work_of(known={first.run_key: Ended(status=Status.COMPLETED)})
    for each in (work, known):
        for run, status in ((first, Status.COMPLETED), (second, Status.OUT_OF_MEMORY), (third, Status.FAILED)):
            record = record_of(run, status)
            each.take(replace(record, timing=replace(record.timing, phases=phases)), PATH, 10.0)
            each.take(record, PATH, 99.0)
    assert work.spent == Spent(seconds={"steps": 4.0, "imports": 8.0, "outside": 8.0}, runs=2)
    assert known.spent == Spent(seconds={"steps": 2.0, "imports": 4.0, "outside": 4.0}, runs=1)
    assert work_of().spent == Spent()


@pytest.mark.parametrize(
    ("status", "is_done", "is_failed"),
    [
        (Status.COMPLETED, True, False),
        (Status.OUT_OF_MEMORY, True, False),
        (Status.FAILED, False, True),
        (Status.INTERRUPTED, False, False),
        (Status.PREEMPTED, False, False),
        (Status.TIMED_OUT, False, False),
    ],
    ids=str,
)
def test_how_a_run_ended_says_whether_it_is_tried_again(status: Status, is_done: bool, is_failed: bool) -> None:
    work = work_of()
    run = work.runs[0]
    assert work.take(record_of(run, status, error="the loss is nan"), PATH) == run
    left = run.run_key in keys(run for task in work.open_tasks() for run in task.runs)
    assert left is not (is_done or is_failed)
    assert [(one.run, one.why, one.hint, one.code) for one in work.failures] == (
        [(run, "the loss is nan", LOG_HINT, 6)] if is_failed else []
    )
    # What failed has no answer: the next start tries it again.
    assert (run in (*work.not_begun, *(failure.run for failure in work.failures))) is not is_done
    assert work.new_runs == int(is_done)


def test_a_bundle_of_another_sweep_is_none_of_ours() -> None:
    work = work_of()
    assert work.take(record_of(TaskRun(spec=work.runs[0].spec, run_key="0" * 16)), PATH) is None
    assert work.take(record_of(TaskRun(spec=work.runs[0].spec)), PATH) is None
    assert work.done == 0


def test_larger_batches_of_what_ran_out_of_memory_are_left_out_also_at_the_next_start() -> None:
    work = work_of()
    small = next(run for run in work.runs if run.spec.model == "resnet50" and run.spec.batch_size == 1)
    larger = [run for run in work.runs if run.spec.model == "resnet50" and run.spec.batch_size == 8]
    work.take(record_of(small, Status.OUT_OF_MEMORY), PATH)
    assert sorted(work.too_large) == sorted(keys(larger))
    assert work.done == 1 + len(larger)
    open_keys = keys(run for task in work.open_tasks() for run in task.runs)
    assert not set(open_keys) & set(keys(larger))
    assert (
        too_large_text(work.too_large[larger[0].run_key]) == "batch 1 of the same configuration ran out of memory here"
    )
    again = work_of(known={small.run_key: Ended(status=Status.OUT_OF_MEMORY)})
    assert again.too_large == work.too_large


def test_blocks_are_done_when_nothing_of_them_is_left() -> None:
    work = work_of()
    first = [run for run in work.runs if run.block == 1]
    for run in first[:-1]:
        work.take(record_of(run), PATH)
    assert (work.counts()["blocks_done"], work.blocks) == (0, 2)
    work.take(record_of(first[-1]), PATH)
    assert (work.counts()["blocks_done"], work.blocks) == (1, 2)


def test_a_run_that_is_in_the_store_is_done_before_it_is_here() -> None:
    work = work_of()
    run = work.runs[0]
    work.settle(run.run_key, Status.COMPLETED)
    assert work.status(run.run_key) is Status.COMPLETED
    assert work.figures == []
    assert work.take(record_of(run, rate=7.0), PATH) == run
    assert work.figures == [Run(figure=7.0, configuration=run.spec, block=1, position=None)]


def test_the_position_of_a_run_is_what_its_bundle_says() -> None:
    """A matrix that was edited meanwhile had another order."""
    work = work_of()
    run = work.runs[0]
    job = JobPlace(name="night", block=run.block, position=float(run.position + 1))
    work.take(replace(record_of(run), job=job), PATH)
    assert [one.position for one in work.figures] == [run.position + 1]


RATES = (100.0, 100.2, 99.9, 100.1, 99.8, 100.1, 99.9, 100.0)


def test_until_adds_blocks_up_to_its_looks_and_stops_when_the_intervals_are_narrow() -> None:
    work = work_of(7, until=Until(share=0.05))
    for run in work.runs:
        work.take(record_of(run, rate=RATES[run.block - 1]), PATH)
    assert work.add_blocks() == 1
    assert {run.block for task in work.open_tasks() for run in task.runs} == {8}
    for run in work.runs:
        work.take(record_of(run, rate=RATES[run.block - 1]), PATH)
    assert work.add_blocks() == 0
    assert work.decision is not None
    assert work.decision.is_narrow
    assert work.decision.reason.startswith("every interval is within +-5 % after 8 blocks")


def test_until_ends_at_the_most_blocks_and_where_blocks_bring_nothing_new() -> None:
    work = work_of(3, until=Until(share=0.001, most=4))
    for run in work.runs:
        work.take(record_of(run, rate=100.0 + 10 * run.block), PATH)
    assert work.add_blocks() == 1
    # The fourth block failed as a whole: more of it would too.
    assert work.add_blocks() == 0
    for run in work.runs:
        work.take(record_of(run, rate=100.0 + 10 * run.block), PATH)
    assert work.add_blocks() == 0
    assert work.decision is not None
    assert not work.decision.is_narrow
    assert work.decision.is_done


def test_a_run_is_called_by_its_configuration() -> None:
    work = work_of()
    run = next(run for run in work.runs if run.spec.batch_size == 8 and run.spec.model == "resnet18")
    assert configuration_text(run, work.plan) == "resnet18, batch_size 8"


def test_the_rate_of_several_devices_is_that_of_each() -> None:
    for devices, text in ((None, ""), (1, ""), (2, " on each of 2 devices")):
        spec, timing = Spec(model="m", batch_size=1, devices=devices), Timing(images_per_s=250.0)
        assert rate_text(Record(run_id="a", status=Status.COMPLETED, spec=spec, timing=timing)) == f"250 images/s{text}"


def test_a_key_counts_where_one_of_its_runs_is_completed_or_out_of_memory(tmp_path: Path) -> None:
    statuses = ("completed", "out_of_memory", "failed", "interrupted", "preempted", "timed_out")
    keys_of = [*((f"{number:016x}", status) for number, status in enumerate(statuses)), ("0" * 16, "failed")]
    names = [make(tmp_path, number, status=status, run_key=key).name for number, (key, status) in enumerate(keys_of)]
    found = existing_runs(tmp_path)
    assert {key: run.run_id for key, run in found.by_key.items()} == {"0" * 16: names[0], f"{1:016x}": names[1]}
    assert len(found.runs) == 7


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
        ("run.json", b"{", "run.json has 1 bytes, the manifest says "),
        # The list of a folder has no checksums: fetching the bundle shows it.
        ("log.txt", b"M", "log.txt arrived damaged 2 times"),
    ],
    ids=["whole", "truncated", "a changed byte"],
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

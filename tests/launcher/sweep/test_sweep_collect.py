"""Bundles in the store of a place: what comes home, and what a damaged one means for its run."""

from pathlib import Path

import pytest

from benchmarks.synthetic_bundles import make
from launcher.sweep.rented import Collector
from launcher.sweep.places import LOCAL, Place
from launcher.sweep.shared import Progress, Workers
from launcher.sweep.work import PlaceWork
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract.record import Status
from workload.storage.address import open_store
from workload.storage.inventory import SealedRun
from workload.storage.upload import upload


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
        assert f"{stored} is damaged, so its run is repeated: {said}" in line.text


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
    assert line.text.endswith("so its run is repeated: its label status is 'completed', and run.json says 'failed'")

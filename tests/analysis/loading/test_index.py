import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.loading import index
from analysis.loading.index import FILE, FOLDER, load_bundles
from benchmarks.synthetic_bundles import make
from workload.contract import bundle

pytestmark = pytest.mark.usefixtures("of_few_bundles_too")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were read in full, by name."""
    seen: list[str] = []
    real = bundle.read

    def spy(folder: Path, **options: Any) -> bundle.Bundle:
        seen.append(folder.name)
        return real(folder, **options)

    monkeypatch.setattr(index.bundle, "read", spy)
    return seen


def runs(root: Path, **options: Any) -> list[str]:
    table, problems = load_bundles(root, **options)
    assert problems == []
    return [str(path) for path in table["path"].to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != FOLDER)


def test_second_look_reads_nothing(results: Path, reads: list[str]) -> None:
    first = load_bundles(results)[0]
    assert reads == names(results)
    reads.clear()
    assert load_bundles(results)[0].equals(first)
    assert reads == []
    assert first["model"].to_pylist() == ["resnet18"] * 3
    assert [len(steps) for steps in first["_steps"].to_pylist()] == [110] * 3


def test_added_changed_and_removed_bundles_are_noticed(results: Path, reads: list[str]) -> None:
    runs(results)
    reads.clear()
    added = make(results, 7)
    changed, removed, kept = (results / name for name in names(results)[:3])
    record = json.loads((changed / "run.json").read_text())
    bundle.write_document(changed, {**record, "spec": {**record["spec"], "model": "vgg16"}})
    bundle.seal(changed)
    shutil.rmtree(removed)
    table = load_bundles(results)[0]
    assert sorted(reads) == sorted([added.name, changed.name])
    assert dict(zip(table["path"].to_pylist(), table["model"].to_pylist(), strict=True)) == {
        str(changed): "vgg16",
        str(kept): "resnet18",
        str(added): "resnet18",
    }
    reads.clear()
    assert runs(results) == [str(results / name) for name in names(results)]
    assert reads == []


@pytest.mark.parametrize("name", ["steps.csv", "telemetry.csv", "run.json", "MANIFEST.json"])
def test_changed_source_is_read_again_and_found_out(results: Path, name: str) -> None:
    runs(results)
    victim = results / names(results)[1]
    (victim / name).write_text("{}")
    table, problems = load_bundles(results)
    assert table.num_rows == 2
    assert [problem.path for problem in problems] == [str(victim)]
    # Put right again, it counts again.
    shutil.rmtree(victim)
    make(results, 1)
    assert len(runs(results)) == 3


def test_change_that_keeps_size_time_and_inode_is_found_by_verify_alone(results: Path) -> None:
    runs(results)
    path = results / names(results)[0] / "steps.csv"
    before = path.stat()
    text = path.read_bytes()
    with path.open("r+b") as file:
        file.write(text.replace(b"warmup", b"warmux"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(runs(results)) == 3
    table, problems = load_bundles(results, verify=True)
    assert table.num_rows == 2
    assert [str(problem) for problem in problems] == [
        f"{path.parent}: damaged: steps.csv was changed after the run: its sha256 differs"
    ]
    # And from then on the index knows.
    assert load_bundles(results)[0].num_rows == 2


def older(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({index.VERSION_KEY: b"0"}), path)


def without_a_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["model"]), path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "older version": older,
    "other columns": without_a_column,
    "another table": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "no Parquet": lambda path: path.write_text("PAR1" * 100),
    "bytes in the middle": lambda path: path.write_bytes(
        path.read_bytes()[:500] + b"\0" * 500 + path.read_bytes()[1000:]
    ),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_unusable_index_is_rebuilt_without_a_word(results: Path, damage: Callable[[Path], object]) -> None:
    whole = load_bundles(results)[0]
    damage(results / FOLDER / FILE)
    assert load_bundles(results)[0].equals(whole)


@pytest.mark.parametrize("broken", ["mkdir", "open", "replace"])
def test_folder_that_cannot_be_written_works_without(
    results: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    real_open = Path.open
    refusing_open = lambda path, mode="r", *rest, **more: (  # noqa: E731
        refuse() if "x" in mode else real_open(path, mode, *rest, **more)
    )
    monkeypatch.setattr(Path, broken, refusing_open if broken == "open" else refuse)
    for _ in range(2):
        assert len(runs(results)) == 3
    monkeypatch.undo()
    leftovers = [path.name for path in (results / FOLDER).iterdir()] if (results / FOLDER).exists() else []
    assert leftovers == []


def test_moved_folder_shows_its_new_path(results: Path, reads: list[str]) -> None:
    runs(results)
    reads.clear()
    moved = results.rename(results.with_name("archive"))
    assert runs(moved) == [str(moved / name) for name in names(moved)]
    assert reads == []


def test_problems_have_a_path_and_a_reason(results: Path) -> None:
    incomplete, damaged, newer, foreign = (make(results, number) for number in range(10, 14))
    (incomplete / "MANIFEST.json").unlink()
    (damaged / "telemetry.csv").unlink()
    for name in ("MANIFEST.json", "run.json"):
        path = newer / name
        path.write_text(path.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    bundle.write_document(foreign, {"schema": "ours"})
    bundle.seal(foreign)
    (results / "plots" / "more").mkdir(parents=True)
    (results / "plots" / "a.png").write_text("")
    (results / "plots" / "more" / "b.png").write_text("")
    (results / "empty").mkdir()
    (results / ".cache").mkdir()
    (results / ".cache" / "c").write_text("")
    (results / "notes.txt").write_text("")
    table, problems = load_bundles(results)
    assert table.num_rows == 3
    assert {Path(problem.path).name: problem.reason for problem in problems} == {
        incomplete.name: (
            "incomplete: no MANIFEST.json, because the run did not end by itself; its steps so far are in steps.csv"
        ),
        damaged.name: "damaged: telemetry.csv is missing",
        newer.name: "has bundle schema 4; this version reads schema 3",
        foreign.name: "run.json has no usable run_id",
        "plots": "not a rooflaunch bundle: it has neither MANIFEST.json nor run.json",
    }
    # They are looked at again each time: whoever repairs one need not touch its manifest.
    (damaged / "telemetry.csv").write_bytes(make(results.with_name("other"), 11).joinpath("telemetry.csv").read_bytes())
    assert load_bundles(results)[0].num_rows == 4


def test_file_outside_the_manifest_is_not_read(results: Path) -> None:
    folder = make(results, 20)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest["files"] = [row for row in manifest["files"] if row["name"] != "steps.csv"]
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    table, problems = load_bundles(results)
    assert problems == []
    assert table[index.REMARKS].to_pylist()[-1] == [
        "steps.csv is not in MANIFEST.json: it was not verified and is not read"
    ]
    lengths = {Path(row["path"]).name: len(row["_steps"]) for row in table.to_pylist()}
    assert lengths[folder.name] == 0
    assert set(lengths.values()) == {0, 110}


def test_steps_that_cannot_be_make_a_problem_instead_of_a_row(results: Path) -> None:
    folder = results / names(results)[1]
    steps = folder / "steps.csv"
    steps.write_text(steps.read_text().replace("\n20,measured,", "\n19,measured,"))
    bundle.seal(folder)
    table, problems = load_bundles(results)
    assert table["path"].to_pylist() == [str(results / names(results)[number]) for number in (0, 2)]
    assert [str(problem) for problem in problems] == [
        f"{folder}: cannot be: steps.csv row 21: step must grow from row to row; got 19"
    ]
    # And again from the index.
    assert load_bundles(results) == (table, problems)


def test_links_are_followed_and_loops_end(results: Path, tmp_path: Path) -> None:
    (results / "loop").symlink_to(results)
    elsewhere = make(tmp_path / "elsewhere", 30)
    (results / "linked").symlink_to(elsewhere.parent)
    paths = {Path(path).resolve() for path in load_bundles(results)[0]["path"].to_pylist()}
    assert paths == {*(results / name for name in names(results) if name not in ("loop", "linked")), elsewhere}


def test_folder_name_that_is_no_text(tmp_path: Path) -> None:
    folder = make(tmp_path / "results", 1)
    try:
        folder.rename(Path(os.fsdecode(os.fsencode(folder.parent) + b"/\xff-run")))
    except OSError:
        pytest.skip("this file system has text names only")
    for _ in range(2):
        table, problems = load_bundles(tmp_path / "results")
        assert problems == []
        assert table["path"].to_pylist() == [f"{tmp_path}/results/\\udcff-run"]


def _keep_an_index_of_few() -> None:
    index.FEWEST = 1


def _look_and_count(root: Path) -> int:
    return load_bundles(root)[0].num_rows


@pytest.mark.slow
@pytest.mark.world
def test_processes_at_once_never_see_half_an_index(results: Path) -> None:
    with ProcessPoolExecutor(3, get_context("spawn"), _keep_an_index_of_few) as pool:
        counts = list(pool.map(_look_and_count, [results] * 6))
        for number in range(40, 44):
            make(results, number)
            counts += pool.map(_look_and_count, [results] * 6)
    assert counts == [3] * 6 + [4] * 6 + [5] * 6 + [6] * 6 + [7] * 6
    assert [path.name for path in (results / FOLDER).iterdir()] == [FILE]
    assert pq.read_table(results / FOLDER / FILE).num_rows == 7

import json
from pathlib import Path

from launcher.sweep import existing_runs
from workload.storage.inventory import SealedRun

NAME = "20261121T142530Z-gcp-t4-us-central1-a-resnet18-b32-fp32-{:06x}"


def make_manifest(results: Path, number: int, **labels: str) -> str:
    """A bundle as far as a list of manifests needs it."""
    folder = results / NAME.format(number)
    folder.mkdir(parents=True)
    files = [{"name": f"{name}.csv", "bytes": 1000, "sha256": 64 * "0", "crc32c": "AAAAAA=="} for name in "abcd"]
    (folder / "MANIFEST.json").write_text(json.dumps({"schema_version": 2, "labels": labels, "files": files}))
    return folder.name


def test_a_key_counts_where_its_run_is_completed_or_out_of_memory(tmp_path: Path) -> None:
    statuses = ("completed", "out_of_memory", "failed", "interrupted", "preempted", "timed_out")
    names = [
        make_manifest(tmp_path, number, status=status, run_key=f"{number:016x}", job="night")
        for number, status in enumerate(statuses)
    ]
    make_manifest(tmp_path, 9, status="completed")
    found = existing_runs.look(tmp_path)
    assert found.by_key == {
        f"{number:016x}": SealedRun(
            run_id=names[number], status=statuses[number], run_key=f"{number:016x}", job="night"
        )
        for number in (0, 1)
    }
    assert len(found.runs) == 7


def test_a_failed_run_does_not_hide_the_completed_one_of_its_key(tmp_path: Path) -> None:
    for number, status in enumerate(("failed", "completed", "failed")):
        make_manifest(tmp_path, number, status=status, run_key="00ff")
    assert existing_runs.look(tmp_path).by_key["00ff"].run_id == NAME.format(1)

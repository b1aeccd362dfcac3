import errno
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.told import told
from workload.bundle import main as verify
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, RunFailedError, UsageError
from workload.contract.record import JobPlace, Record, Spec, Status, Timing
from workload.contract.record_sections import ProfileResult

STEPS = "step,loss\n0,6.9\n1,6.8\n"
RUN = Record(run_id="run-1", status=Status.COMPLETED, spec=Spec(model="resnet18", batch_size=4))


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = bundle.create(tmp_path, "run-1")
    (folder / "steps.csv").write_text(STEPS)
    (folder / "ncu").mkdir()
    (folder / "ncu" / "command.txt").write_text("ncu\n")
    bundle.write_record(folder, RUN)
    bundle.seal(folder)
    return folder


@pytest.mark.parametrize("times", [1, 2])
def test_a_damaged_bundle_is_set_aside(times: int, tmp_path: Path) -> None:
    for number in range(times):
        folder = tmp_path / "results" / "run-1"
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(str(number))
        place = bundle.set_aside(folder)
        assert (place.parent, folder.exists()) == (tmp_path / "results/.damaged", False)
    assert sorted(path.read_text() for path in (tmp_path / "results/.damaged").glob("run-1*/log.txt")) == [
        str(number) for number in range(times)
    ]


def test_a_damaged_bundle_that_cannot_be_moved(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / bundle.DAMAGED).touch()
    with pytest.raises(UsageError) as refused:
        bundle.set_aside(tmp_path / "run-1")
    target = tmp_path / bundle.DAMAGED / "run-1"
    message = f"the damaged bundle '{tmp_path / 'run-1'}' cannot be moved to '{target}': File exists"
    assert (str(refused.value), refused.value.hint) == (message, "-o ANOTHER_FOLDER")


def test_run_id_is_safe_and_unique() -> None:
    now = datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC)
    made = {
        bundle.make_run_id(now=now, place="GCP/t4 us..a", model="resnet18", batch_size=32, precision="fp32")
        for _ in range(20)
    }
    assert len(made) == 20
    assert all(re.fullmatch(r"20261121T142530Z-gcp-t4-us\.\.a-resnet18-b32-fp32-[0-9a-f]{6}", name) for name in made)


def test_sealed_bundle_reads_back(sealed: Path) -> None:
    read_back = bundle.read(sealed)
    assert (read_back.document["schema_version"], read_back.record) == (3, RUN)
    assert [file.name for file in read_back.files] == ["ncu/command.txt", "run.json", "steps.csv"]
    assert read_back.steps() == [{"step": "0", "loss": "6.9"}, {"step": "1", "loss": "6.8"}]


def test_a_manifest_says_how_its_run_ended(sealed: Path) -> None:
    assert json.loads((sealed / "MANIFEST.json").read_text())["labels"] == {"status": "completed"}
    job = JobPlace(name="night", task=1, block=2, position=3)
    timing = Timing(phases={"start": 0.0, "end": 31.4567})
    bundle.reseal(sealed, replace(RUN, status=Status.OUT_OF_MEMORY, run_key="00ff", job=job, timing=timing))
    labels = json.loads((sealed / "MANIFEST.json").read_text())["labels"]
    assert labels == {"status": "out_of_memory", "run_key": "00ff", "job": "night", "seconds": "31.5"}


def test_a_manifest_has_size_and_checksum_of_each_file(sealed: Path) -> None:
    rows = {row["name"]: row for row in json.loads((sealed / "MANIFEST.json").read_text())["files"]}
    # What the package google-crc32c gives for b"ncu\n".
    assert (rows["ncu/command.txt"]["bytes"], rows["ncu/command.txt"]["crc32c"]) == (4, "Q3nPlQ==")


DAMAGES: dict[str, tuple[str, str | bytes | None]] = {
    "a file is missing": ("steps.csv", None),
    "a file is shorter": ("steps.csv", "x"),
    "a file differs": ("steps.csv", STEPS.replace("6.8", "6.7")),
    **{
        f"the manifest is {content[:40]!r}": ("MANIFEST.json", content)
        for content in (
            *("{", "[]", b"\xff", "[" * 100_000, '{"schema_version": 3}'),
            *(f'{{"schema_version": 3, "files": {rows}}}' for rows in ("[3]", "[]")),
            *(f'{{"schema_version": {version}, "files": []}}' for version in ("2", "4", "0", '"1"', "true", "null")),
        )
    },
}


def test_damaged_bundles_in_words(sealed: Path, golden: Callable[[str, str], None]) -> None:
    texts = []
    for title, (name, content) in DAMAGES.items():
        path, before = sealed / name, (sealed / name).read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        texts.append(told(title, lambda: bundle.read(sealed)))
        path.write_bytes(before)
    manifest = json.loads((sealed / "MANIFEST.json").read_text())
    for name in ("../outside", "/etc/passwd", "a/../../b", "a\\..\\b"):
        manifest["files"][0]["name"] = name
        (sealed / "MANIFEST.json").write_text(json.dumps(manifest))
        texts.append(told(f"the manifest names {name!r}", lambda: bundle.read(sealed)))
    page = re.sub(r"(is not readable JSON): .*", r"\1: …", "".join(texts))
    golden("damaged_bundles.txt", page.replace(str(sealed), "/results/run-1"))


def test_no_manifest_is_incomplete_and_anything_else_foreign(sealed: Path, tmp_path: Path) -> None:
    (sealed / "MANIFEST.json").unlink()
    with pytest.raises(BundleError, match=r"incomplete: no MANIFEST.json, .* its steps so far are in steps.csv"):
        bundle.read(sealed)
    for foreign in (tmp_path, tmp_path / "absent", sealed / "steps.csv"):
        with pytest.raises(BundleError, match="not a rooflaunch bundle: it has neither"):
            bundle.read(foreign)


def test_half_a_row_of_a_killed_run_is_left_out(sealed: Path) -> None:
    (sealed / "steps.csv").write_text("step,loss\n0,6.9\n1,6.")
    assert bundle.read_steps(sealed) == [{"step": "0", "loss": "6.9"}]
    (sealed / "steps.csv").write_text("")
    assert bundle.read_steps(sealed) == []


@pytest.mark.parametrize("make", [lambda folder: bundle.create(folder, "run-1"), bundle.make_output])
def test_output_that_cannot_be_written(make: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "results"
    with pytest.raises(UsageError) as caught:
        make(folder)
    assert str(caught.value) == f"output folder '{folder}' cannot be written: Not a directory"
    in_container = "in a container: docker run --user $(id -u):$(id -g)"
    assert caught.value.hint == f"-o FOLDER, with a folder that you may write; {in_container}"


def test_output_may_be_there_a_bundle_may_not(tmp_path: Path) -> None:
    for _ in range(2):
        bundle.make_output(tmp_path / "my" / "results")
    assert (tmp_path / "my" / "results").is_dir()
    assert bundle.create(tmp_path, "run-1") == tmp_path / "run-1"
    with pytest.raises(UsageError, match=f"^output folder '{tmp_path}' cannot be written: File exists$"):
        bundle.create(tmp_path, "run-1")


@pytest.fixture
def killed(sealed: Path) -> Path:
    """Bundle of a run that `kill -9` ended in its second step."""
    (sealed / "MANIFEST.json").unlink()
    bundle.write_record(sealed, replace(RUN, status=Status.RUNNING, notes=("a",)))
    (sealed / "steps.csv").write_text("step,loss\n0,6.9\n1,6.")
    return sealed


def test_bundle_of_a_killed_run_is_closed_with_its_steps(killed: Path) -> None:
    bundle.seal_unfinished(killed, Status.OUT_OF_MEMORY, "killed at 512m")
    read_back = bundle.read(killed)
    assert read_back.record == replace(RUN, status=Status.OUT_OF_MEMORY, error="killed at 512m", notes=("a",))
    assert read_back.steps() == [{"step": "0", "loss": "6.9"}]
    assert [file.name for file in read_back.files] == ["ncu/command.txt", "run.json", "steps.csv"]


def test_complete_bundle_is_not_closed_again(sealed: Path) -> None:
    before = {path: path.read_bytes() for path in sealed.iterdir() if path.is_file()}
    bundle.seal_unfinished(sealed, Status.FAILED, "too late")
    assert {path: path.read_bytes() for path in sealed.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "is not a rooflaunch bundle: it has neither MANIFEST.json nor run.json"),
        ("{", "is damaged: run.json is not readable JSON"),
        ('{"schema_version": 2}', "has bundle schema 2; this version reads schema 3"),
        ('{"schema_version": 3, "run_id": "run-1"}', "cannot be used: run.json has no usable status"),
    ],
)
def test_what_is_no_bundle_yet_is_not_closed(record: str | None, message: str, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / "run.json").write_text(record)
    with pytest.raises(BundleError, match=re.escape(f"'{tmp_path}' {message}")):
        bundle.seal_unfinished(tmp_path, Status.FAILED, "killed")
    assert not (tmp_path / "MANIFEST.json").exists()


def test_reseal_takes_in_what_has_come_since(sealed: Path) -> None:
    (sealed / "ncu" / "kernels.csv").write_text("ID\n")
    bundle.reseal(sealed, replace(bundle.read(sealed).record, profile=ProfileResult(status="completed")))
    read_back = bundle.read(sealed)
    assert read_back.document["profile"] == {"status": "completed"}
    assert [file.name for file in read_back.files] == ["ncu/command.txt", "ncu/kernels.csv", "run.json", "steps.csv"]


def test_reseal_that_breaks_off_leaves_an_incomplete_bundle(sealed: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float values"):
        bundle.reseal(sealed, replace(RUN, timing=Timing(measured_s=float("nan"))))
    with pytest.raises(BundleError, match=r"incomplete: no MANIFEST\.json"):
        bundle.read(sealed)


def test_full_disk_says_that_the_bundle_is_incomplete(tmp_path: Path) -> None:
    incomplete = pytest.raises(RunFailedError, match=r"No space left on device while writing .* bundle is incomplete")
    with incomplete, bundle.guarded_writes(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), bundle.guarded_writes(tmp_path):
        raise PermissionError(errno.EPERM, "not ours to explain")


def test_record_is_replaced_whole_or_not_at_all(sealed: Path) -> None:
    before = (sealed / "run.json").read_text()
    with pytest.raises(ValueError, match="Out of range float values"):
        bundle.write_document(sealed, {"images_per_s": float("nan")})
    assert (sealed / "run.json").read_text() == before
    assert not list(sealed.glob("*.tmp"))


def test_the_command_verifies(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([str(sealed)]) == 0
    assert capsys.readouterr().out == "run-1: completed, 3 files verified\n"
    (sealed / "run.json").unlink()
    assert verify([str(sealed), str(sealed)]) == ExitCode.BAD_BUNDLE
    assert "error: " in capsys.readouterr().err
    assert verify([]) == ExitCode.NOTHING_TO_DO
    assert verify(["--verify", "results"]) == ExitCode.USAGE
    assert capsys.readouterr().err.endswith(
        "error: there is no option '--verify'\nhint: python -m workload.bundle --help\n"
    )
    assert verify(["-h"]) == verify(["--help"]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("usage: python -m workload.bundle [-h] BUNDLE...\n")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ROW = st.fixed_dictionaries({"name": JSON, "bytes": JSON, "sha256": JSON, "crc32c": JSON}) | JSON


def _manifest(rows: object) -> bytes:
    return json.dumps({"schema_version": 3, "files": rows}).encode()


@given(st.binary(max_size=200) | st.lists(ROW, max_size=3).map(_manifest))
def test_any_manifest_is_refused_not_tripped_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "MANIFEST.json").write_bytes(content)
    with pytest.raises(BundleError):
        bundle.read(folder)


def test_a_run_gets_its_place_in_a_job_and_keeps_all_else(sealed: Path) -> None:
    """Even a key that only a newer trainer knows is kept."""
    newer = {**bundle.read(sealed).document, "of_tomorrow": 1}
    bundle.write_document(sealed, newer)
    bundle.seal(sealed)

    bundle.place_in_job(sealed, JobPlace(name="duel-00002a", variant="B", block=2, position=3))

    placed = bundle.read(sealed)
    job = {"name": "duel-00002a", "task": None, "block": 2, "position": 3, "variant": "B"}
    assert placed.document == {**newer, "job": job}
    assert placed.record.job == JobPlace(**job)
    assert json.loads((sealed / "MANIFEST.json").read_text())["labels"]["job"] == "duel-00002a"

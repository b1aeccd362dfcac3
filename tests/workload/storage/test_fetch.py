"""Fetching of bundles from a bucket: what is copied, refused and repaired, and the command `analyze fetch`."""

import errno
import io
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import fetch as command
from tests.workload.storage.bundles import make_bundle
from tests.workload.storage.fake_gcs import NAME, FakeStorage
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, InterruptedRunError, NothingToDoError, ToolError, UsageError
from workload.contract.tables import TableFormat
from workload.storage import fetch
from workload.storage import gcs as bucket
from workload.storage.address import parse_source
from workload.storage.fetch import FetchedRun, FetchReport, FetchState
from workload.storage.store import UnreachableError

RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000aa"
OTHER_RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000bb"
FILES = ["MANIFEST.json", "ncu/kernels.csv", "run.json", "steps.csv"]
STEPS = b"step,phase\n0,warmup\n1,measured\n"
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(run_id)`: the folder of a real, small, complete bundle, apart from where bundles are fetched to."""

    def make(run_id: str = RUN) -> Path:
        return make_bundle(tmp_path / "made", run_id, {"steps.csv": STEPS, "ncu/kernels.csv": b"ID,Kernel Name\n"})

    return make


@pytest.fixture
def stored(storage: FakeStorage, make: Make) -> FakeStorage:
    """The bucket with one complete run."""
    storage.put_folder(make())
    return storage


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results"


def fetch_all(storage: FakeStorage, output: Path, **options: Any) -> FetchReport:
    return fetch.fetch(storage.opened(), parse_source(f"gs://{NAME}"), output, jobs=2, **options)


def only(report: FetchReport) -> FetchedRun:
    assert report.error is None
    (outcome,) = report.outcomes
    return outcome


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# Fetching


@pytest.mark.parametrize(
    ("damage", "asked_for"),
    [
        (lambda folder: (folder / "steps.csv").write_bytes(STEPS[:-1]), ["MANIFEST.json", "steps.csv"]),
        (lambda folder: (folder / "steps.csv").write_bytes(STEPS[:-2] + b"?\n"), ["MANIFEST.json", "steps.csv"]),
        (lambda folder: (folder / "run.json").unlink(), ["MANIFEST.json", "run.json"]),
        (lambda folder: (folder / "MANIFEST.json").unlink(), ["MANIFEST.json"]),
        (lambda folder: (folder / "MANIFEST.json").write_text("{}"), ["MANIFEST.json"]),
    ],
    ids=["cut", "changed", "gone", "no manifest", "other manifest"],
)
def test_a_damaged_bundle_is_repaired(
    stored: FakeStorage, output: Path, damage: Callable[[Path], None], asked_for: list[str]
) -> None:
    fetch_all(stored, output)
    stored.asked_for()
    damage(output / RUN)
    assert only(fetch_all(stored, output)).state is FetchState.FETCHED
    assert stored.asked_for() == asked_for
    bundle.read(output / RUN)


def test_a_run_complete_here_and_incomplete_there_stays(stored: FakeStorage, output: Path) -> None:
    fetch_all(stored, output)
    del stored.objects[f"runs/{RUN}/MANIFEST.json"]
    assert only(fetch_all(stored, output, incomplete=True)) == FetchedRun(
        run_id=RUN, state=FetchState.SKIPPED, reason="complete on this machine, not in the bucket"
    )
    bundle.read(output / RUN)


def test_runs_come_in_parallel(storage: FakeStorage, make: Make, output: Path) -> None:
    both_are_there = threading.Barrier(2, timeout=60)
    for run_id in (RUN, OTHER_RUN):
        storage.put_folder(make(run_id))
        storage.before[f"runs/{run_id}/MANIFEST.json"] = both_are_there.wait  # type: ignore[assignment]
    assert fetch_all(storage, output).count(FetchState.FETCHED) == 2


def manifest_of(folder: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads((folder / "MANIFEST.json").read_text())
    change(document)
    return json.dumps(document).encode()


def add_file(name: Any, **other: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"].append(document["files"][0] | {"name": name} | other)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_file("../evil"), "damaged in the bucket: MANIFEST.json names '../evil': leaves its folder"),
        (add_file("/evil"), "damaged in the bucket: MANIFEST.json names '/evil': an absolute path"),
        (
            add_file("MANIFEST.json"),
            "damaged in the bucket: MANIFEST.json names 'MANIFEST.json': a name that the fetch itself uses",
        ),
        (add_file("absent"), "damaged in the bucket: absent is missing"),
        (add_file(7), "damaged in the bucket: MANIFEST.json does not list its files"),
        (add_file("run.json", bytes=True), "damaged in the bucket: MANIFEST.json does not list its files"),
        (add_file("run.json", colour="red"), "damaged in the bucket: MANIFEST.json does not list its files"),
        (
            lambda document: document["files"].clear(),
            "damaged in the bucket: MANIFEST.json lists no run.json",
        ),
        (
            lambda document: document["files"][0].update(bytes=3),
            "damaged in the bucket: ncu/kernels.csv has 15 bytes, the manifest says 3",
        ),
        (
            lambda document: document["files"][0].update(crc32c="AAAAAA=="),
            "damaged in the bucket: ncu/kernels.csv was changed after the run: its crc32c differs",
        ),
        (
            lambda document: document["files"][0].update(sha256="0" * 64),
            "ncu/kernels.csv arrived damaged 2 times",
        ),
        (
            lambda document: document.update(schema_version=99),
            "MANIFEST.json has bundle schema 99; this version reads schema 3",
        ),
        (lambda document: document.clear(), "damaged in the bucket: MANIFEST.json has no schema_version"),
        (
            lambda document: document.update(schema_version=True),
            "damaged in the bucket: MANIFEST.json has no schema_version",
        ),
        (
            lambda document: document.update(schema_version=0),
            "damaged in the bucket: MANIFEST.json has no schema_version",
        ),
        (lambda document: document.pop("files"), "damaged in the bucket: MANIFEST.json does not list its files"),
    ],
)
def test_a_run_that_its_manifest_does_not_describe_is_refused(
    storage: FakeStorage, make: Make, output: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    folder = make()
    storage.put_folder(folder)
    storage.put_folder(make(OTHER_RUN))
    storage.put(f"runs/{RUN}/MANIFEST.json", manifest_of(folder, change))
    refused, fetched = fetch_all(storage, output).outcomes
    assert (refused.state, refused.reason) == (FetchState.REFUSED, reason)
    assert not (output / RUN / "MANIFEST.json").exists()
    assert fetched == FetchedRun(run_id=OTHER_RUN, state=FetchState.FETCHED, files=4, bytes=fetched.bytes)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not readable JSON"),
        (b"{", "is not readable JSON"),
        (b"\xff", "is not readable JSON"),
        (b"[" * 100_000, "is not readable JSON"),
        (b"[]", "has no schema_version"),
        (b'{"schema_version": 3, "files": 7}', "does not list its files"),
        (b'{"schema_version": 3, "files": ["run.json"]}', "does not list its files"),
    ],
)
def test_a_manifest_of_anything_else(stored: FakeStorage, output: Path, content: bytes, why: str) -> None:
    stored.put(f"runs/{RUN}/MANIFEST.json", content)
    assert only(fetch_all(stored, output)).reason == f"damaged in the bucket: MANIFEST.json {why}"


def test_a_run_whose_record_nobody_can_read_is_refused(storage: FakeStorage, make: Make, output: Path) -> None:
    folder = make()
    (folder / "run.json").write_text("{}")
    bundle.seal(folder)
    storage.put_folder(folder)
    assert only(fetch_all(storage, output)).reason == "damaged in the bucket: run.json has no schema_version"
    assert not (output / RUN / "MANIFEST.json").exists()


def test_a_manifest_that_would_fill_the_memory(
    storage: FakeStorage, make: Make, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make()
    storage.put_folder(folder)
    size = (folder / "MANIFEST.json").stat().st_size
    monkeypatch.setattr(fetch, "MAX_DOCUMENT_BYTES", size - 1)
    assert only(fetch_all(storage, output)).reason == f"damaged in the bucket: MANIFEST.json has {size} bytes"
    monkeypatch.setattr(fetch, "MAX_DOCUMENT_BYTES", size)
    assert only(fetch_all(storage, output)).state is FetchState.FETCHED


def test_an_object_that_grows_on_the_way_fills_no_disk(stored: FakeStorage, output: Path) -> None:
    name = f"runs/{RUN}/steps.csv"

    def more() -> None:
        held = stored.objects[name]
        held.content = STEPS + b"x" * 100_000

    stored.before[name] = more
    assert only(fetch_all(stored, output)).reason == "steps.csv arrived damaged 2 times"
    assert not (output / RUN / "MANIFEST.json").exists()


def test_many_bundles_are_listed_once_and_each_file_is_asked_for_once(
    storage: FakeStorage, make: Make, output: Path
) -> None:
    for number in range(20):
        storage.put_folder(make(f"20261121T1425{number:02}Z-a-b-0000aa"))
    listings: list[str] = []
    list_blobs = storage.list_blobs

    def counted(bucket: str, **options: Any) -> Any:
        listings.append(options["prefix"])
        return list_blobs(bucket, **options)

    storage.list_blobs = counted  # type: ignore[method-assign]
    assert fetch_all(storage, output).count(FetchState.FETCHED) == 20
    assert listings == ["runs/"]
    assert len(storage.downloads) == 20 * len(FILES)
    assert fetch_all(storage, output).count(FetchState.SKIPPED) == 20
    assert len(storage.downloads) == 20 * len(FILES), "what is here is compared by the list alone"


def test_a_file_is_downloaded_again_if_its_connection_breaks(stored: FakeStorage, output: Path) -> None:
    name = f"runs/{RUN}/steps.csv"
    stored.break_after[name] = [10]
    assert only(fetch_all(stored, output)).state is FetchState.FETCHED
    assert stored.downloads.count(name) == 2
    assert (output / RUN / "steps.csv").read_bytes() == STEPS


def test_a_bucket_that_goes_away_ends_the_fetch_and_the_next_one_continues(stored: FakeStorage, output: Path) -> None:
    name = f"runs/{RUN}/steps.csv"
    stored.break_after[name] = [10, 0]
    report = fetch_all(stored, output)
    assert report.outcomes == ()
    assert isinstance(report.error, UnreachableError)
    assert report.error.report() == (
        "error: bucket 'bucket' cannot be reached at https://storage.googleapis.com: Connection reset by peer\n"
        "hint: check the network and its proxy (curl -I https://storage.googleapis.com), then run again"
    )
    assert not (output / RUN / "MANIFEST.json").exists()
    stored.downloads.clear()
    outcome = only(fetch_all(stored, output))
    assert name in stored.downloads
    assert names_in(output / RUN) == FILES
    assert outcome.state is FetchState.FETCHED
    bundle.read(output / RUN)


@pytest.mark.parametrize("gone", [False, True])
def test_an_object_that_changes_meanwhile_is_noticed(stored: FakeStorage, output: Path, gone: bool) -> None:
    name = f"runs/{RUN}/steps.csv"
    stored.before[name] = lambda: stored.objects.pop(name, None) if gone else stored.put(name, STEPS)  # type: ignore[func-returns-value]
    outcome = only(fetch_all(stored, output))
    assert (outcome.state, outcome.reason) == (FetchState.REFUSED, f"'{name}' changed while it was copied")
    assert not (output / RUN / "MANIFEST.json").exists()


def test_a_server_without_preconditions_is_not_trusted(storage: FakeStorage) -> None:
    storage.put("runs/a/x", b"new")
    found = next(iter(storage.opened().objects("runs/")))
    blob = storage.bucket(NAME).blob("runs/a/x")
    blob.download_to_file = lambda *_, **__: setattr(blob, "generation", int(found.version) + 1)
    storage.bucket = lambda _: type("B", (), {"blob": lambda *_: blob})()  # type: ignore[method-assign]
    with pytest.raises(BundleError, match=r"^'runs/a/x' changed while it was copied$"):
        storage.opened().download(found, io.BytesIO())


# The disk


def test_a_full_disk_ends_the_fetch(storage: FakeStorage, make: Make, output: Path) -> None:
    storage.put_folder(make())
    storage.put_folder(make(OTHER_RUN))

    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage.before[f"runs/{RUN}/steps.csv"] = fill
    report = fetch_all(storage, output)
    assert isinstance(report.error, ToolError)
    assert report.error.report() == (
        f"error: No space left on device while writing '{output / RUN}'\nhint: free some space, or use -o "
        "FOLDER on another disk; the same command continues"
    )
    assert not (output / RUN / "MANIFEST.json").exists()


def test_a_run_whose_place_is_taken_is_refused_alone(storage: FakeStorage, make: Make, output: Path) -> None:
    storage.put_folder(make())
    storage.put_folder(make(OTHER_RUN))
    output.mkdir()
    (output / RUN).write_text("a file")
    refused, fetched = fetch_all(storage, output).outcomes
    assert (refused.state, refused.reason) == (
        FetchState.REFUSED,
        f"'{output / RUN}' cannot be written: File exists",
    )
    assert fetched.state is FetchState.FETCHED
    assert (output / RUN).read_text() == "a file"


def test_an_output_that_is_a_file(stored: FakeStorage, output: Path) -> None:
    output.write_text("a file")
    with pytest.raises(UsageError, match=f"^output folder '{output}' cannot be written: File exists$"):
        fetch_all(stored, output)


def test_an_interruption_stops_the_workers(storage: FakeStorage, make: Make, output: Path) -> None:
    storage.put_folder(make())
    storage.put_folder(make(OTHER_RUN))

    def interrupt(done: int, total: int, count: int) -> None:
        if total:
            raise InterruptedRunError(f"{done}/{total}", hint=f"{count}")

    with pytest.raises(InterruptedRunError, match=r"^[01]/2$"):
        fetch_all(storage, output, on_progress=interrupt)
    assert not [each for each in threading.enumerate() if each.name.endswith("(work)")]


def test_a_bug_in_a_worker_keeps_its_traceback(stored: FakeStorage, output: Path) -> None:

    def fail() -> None:
        raise ZeroDivisionError

    stored.before[f"runs/{RUN}/steps.csv"] = fail
    with pytest.raises(ZeroDivisionError):
        fetch_all(stored, output)


# The command


@pytest.fixture
def run(storage: FakeStorage, output: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(bucket, "connect", lambda *_, **__: storage.opened())
    return lambda **options: command.run_fetch(**{"source": f"gs://{NAME}", "output": output, **options})


def test_the_table(
    storage: FakeStorage, make: Make, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put_folder(make("run-a"))
    storage.put_folder(make("run-bb"), without=["MANIFEST.json"])
    assert run() == ExitCode.DONE
    sent = sum(len(each.content) for name, each in storage.objects.items() if "run-a" in name)
    first = capsys.readouterr()
    assert first.out == (
        f"fetched     run-a   4 files, {sent} B\nincomplete  run-bb                  no MANIFEST.json: the run "
        f"is still going on, or was interrupted; --incomplete fetches it\n\nfetched 1 ({sent} B), skipped 0, "
        f"incomplete 1, refused 0: gs://bucket/runs/ -> {output}\n"
    )
    del storage.objects["runs/run-bb/run.json"], storage.objects["runs/run-bb/steps.csv"]
    del storage.objects["runs/run-bb/ncu/kernels.csv"]
    assert run() == ExitCode.DONE
    assert capsys.readouterr().out == (
        f"fetched 0 (0 B), skipped 1, incomplete 0, refused 0: gs://bucket/runs/ -> {output}\n"
    )


def test_an_interrupted_command_says_that_it_can_be_given_again(
    storage: FakeStorage, make: Make, run: Callable[..., int]
) -> None:
    storage.put_folder(make("run-a"))
    storage.before["runs/run-a/steps.csv"] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(InterruptedRunError) as caught:
        run()
    assert caught.value.report() == ("error: interrupted by Ctrl-C\nhint: the same command continues where it stopped")


def test_incomplete_runs_alone_are_nothing_to_do(
    storage: FakeStorage, make: Make, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put_folder(make("run-bb"), without=["MANIFEST.json"])
    with pytest.raises(NothingToDoError) as caught:
        run()
    assert caught.value.report() == (
        "error: no complete run below gs://bucket/runs/; 1 run without MANIFEST.json\n"
        f"hint: wait until the other fetch has ended, or analyze fetch gs://bucket/runs/ -o {output} --incomplete"
    )
    assert capsys.readouterr().out.startswith("incomplete  run-bb")
    assert run(incomplete=True) == ExitCode.DONE
    storage.put_folder(make("run-a"))
    assert run() == ExitCode.DONE


def test_refused_names_are_quoted_and_make_the_exit_code(
    storage: FakeStorage, make: Make, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put_folder(make("run-a"))
    run()
    capsys.readouterr()
    storage.put("runs/run-a/\x1b]0;evil")
    assert run() == ExitCode.BAD_BUNDLE
    assert capsys.readouterr().out.splitlines()[0] == "refused  'runs/run-a/\\x1b]0;evil'    a control character"


def test_json(
    storage: FakeStorage, make: Make, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put_folder(make("run-a"))
    storage.put("runs/../evil")
    assert run(output_format=TableFormat.JSON) == ExitCode.BAD_BUNDLE
    sent = sum(len(each.content) for name, each in storage.objects.items() if "run-a" in name)
    assert json.loads(capsys.readouterr().out) == {
        "source": "gs://bucket/runs/",
        "output": str(output),
        "counts": {"fetched": 1, "skipped": 0, "incomplete": 0, "refused": 0},
        "bytes": sent,
        "runs": [{"run_id": "run-a", "state": "fetched", "files": 4, "bytes": sent, "reason": ""}],
        "refused_names": [{"name": "runs/../evil", "reason": "leaves its folder"}],
        "error": None,
    }


def test_nothing_there(run: Callable[..., int]) -> None:
    with pytest.raises(NothingToDoError) as caught:
        run(source=f"gs://{NAME}/p")
    assert caught.value.report() == (
        "error: no run below gs://bucket/p/runs/\nhint: gcloud storage ls 'gs://bucket/**/MANIFEST.json'"
    )


def test_what_ended_the_fetch_is_raised_after_the_table(
    storage: FakeStorage, make: Make, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    storage.put_folder(make("run-a"))
    storage.break_after["runs/run-a/steps.csv"] = [0, 0]
    with pytest.raises(UnreachableError):
        run()
    assert capsys.readouterr().out.startswith("fetched 0 (0 B), skipped 0")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal() -> None:
    clock = iter([0.0, 0.0, 2.0])
    screen = Terminal()
    bar = command.Bar(stream=screen, now=lambda: next(clock))
    bar.update(0, 0, 0)
    assert screen.getvalue().rstrip() == f"\rfetch [{'.' * 30}] looking for runs"
    screen.truncate(0)
    screen.seek(0)
    bar.update(50, 200, 3_400_000)
    shown = screen.getvalue()
    assert shown.startswith("\rfetch [#######.......................] 50/200 runs, 3.4 MB, 1.7 MB/s")
    bar.finish()
    assert screen.getvalue() == shown + "\r\033[K"


def test_lines_elsewhere() -> None:
    clock = iter([0.0, 9.9, 9.9, 10.0, 10.0, 10.0, 19.9, 19.9])
    lines = io.StringIO()
    bar = command.Bar(stream=lines, now=lambda: next(clock))
    for done in (1, 2, 3):
        bar.update(done, 3, 1000 * done)
    bar.finish()
    assert lines.getvalue() == "fetch 2/3 runs, 2.0 kB, 200 B/s\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (2_000_000_000, "2.0 GB")]
)
def test_size(count: int, text: str) -> None:
    assert command.size(count) == text

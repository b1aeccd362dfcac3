"""What a fetch copies, refuses and repairs, from a folder whose downloads are watched; and `analyze fetch`."""

import errno
import io
import json
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import fetch as command
from tests.workload.storage.bundles import STEPS, make_bundle
from workload.contract import bundle
from workload.contract.errors import ExitCode, InterruptedRunError, NothingToDoError, ToolError, UsageError
from workload.contract.tables import TableFormat
from workload.storage import address, fetch
from workload.storage.address import parse_source
from workload.storage.fetch import FetchedRun, FetchReport, FetchState
from workload.storage.folder import Folder
from workload.storage.store import Sink, StoredObject, UnreachableError

RUN, OTHER_RUN = "run-a", "run-bb"
FILES = {"steps.csv": STEPS, "ncu/kernels.csv": b"ID,Kernel Name\n"}
NAMES = ["MANIFEST.json", "ncu/kernels.csv", "run.json", "steps.csv"]


class Watched(Folder):
    """A folder of runs; `before["RUN/FILE"]` runs before that file's downloads. `downloads`: names, since `asked`.

    `damaged`: how many of the next downloads of a file bring other bytes.
    """

    def __init__(self, root: Path) -> None:
        (root / "runs").mkdir(parents=True)
        super().__init__(root)
        self.root, self.source = root, parse_source(str(root))
        self.before: dict[str, Callable[[], object]] = {}
        self.damaged: dict[str, int] = {}
        self.downloads: list[str] = []

    def download(self, listed: StoredObject, sink: Sink) -> None:
        name = listed.name.removeprefix("runs/")
        self.downloads.append(name)
        self.before.get(name, lambda: None)()
        if self.damaged.get(name):
            self.damaged[name] -= 1
            sink.write(b"?" * listed.bytes)
        else:
            super().download(listed, sink)

    def asked(self) -> list[str]:
        asked = sorted(name.partition("/")[2] for name in self.downloads)
        self.downloads.clear()
        return asked


def make(stored: Watched, run_id: str) -> Path:
    """A complete run in the store; its folder."""
    return make_bundle(stored.root / "runs", run_id, FILES)


@pytest.fixture
def stored(tmp_path: Path) -> Watched:
    """A store with one complete run."""
    store = Watched(tmp_path / "store")
    make(store, RUN)
    return store


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results"


def fetch_all(stored: Watched, output: Path, **options: Any) -> FetchReport:
    return fetch.fetch(stored, stored.source, output, jobs=2, **options)


def only(report: FetchReport) -> FetchedRun:
    assert report.error is None
    (outcome,) = report.outcomes
    return outcome


def is_complete(output: Path) -> bool:
    return (output / RUN / "MANIFEST.json").exists()


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


# Fetching


@pytest.mark.parametrize(
    ("damage", "asked"),
    [
        (lambda folder: (folder / "steps.csv").write_bytes(STEPS[:-1]), ["MANIFEST.json", "steps.csv"]),
        (lambda folder: (folder / "steps.csv").write_bytes(STEPS[:-2] + b"?\n"), ["MANIFEST.json", "steps.csv"]),
        (lambda folder: (folder / "run.json").unlink(), ["MANIFEST.json", "run.json"]),
        (lambda folder: (folder / "MANIFEST.json").unlink(), ["MANIFEST.json"]),
        (lambda folder: (folder / "MANIFEST.json").write_text("{}"), ["MANIFEST.json"]),
    ],
    ids=["cut", "changed", "gone", "no manifest", "other manifest"],
)
def test_damaged_bundle_is_repaired(
    stored: Watched, output: Path, damage: Callable[[Path], None], asked: list[str]
) -> None:
    fetch_all(stored, output)
    stored.asked()
    damage(output / RUN)
    assert only(fetch_all(stored, output)).state is FetchState.FETCHED
    assert stored.asked() == asked
    bundle.read(output / RUN)


def test_run_complete_here_and_incomplete_there_stays(stored: Watched, output: Path) -> None:
    fetch_all(stored, output)
    (stored.root / f"runs/{RUN}/MANIFEST.json").unlink()
    assert only(fetch_all(stored, output, incomplete=True)) == FetchedRun(
        run_id=RUN, state=FetchState.SKIPPED, reason="complete on this machine, not in the folder"
    )
    bundle.read(output / RUN)


def test_runs_are_fetched_in_parallel(stored: Watched, output: Path) -> None:
    make(stored, OTHER_RUN)
    both_are_there = threading.Barrier(2, timeout=60)
    for run_id in (RUN, OTHER_RUN):
        stored.before[f"{run_id}/MANIFEST.json"] = both_are_there.wait
    assert fetch_all(stored, output).count(FetchState.FETCHED) == 2


def test_many_bundles_are_listed_once_and_each_file_is_asked_for_once(
    stored: Watched, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(19):
        make(stored, f"run-{number}")
    listings: list[str] = []
    objects = stored.objects
    monkeypatch.setattr(stored, "objects", lambda prefix: listings.append(prefix) or objects(prefix))  # type: ignore[func-returns-value]
    assert fetch_all(stored, output).count(FetchState.FETCHED) == 20
    assert listings == ["runs/"]
    assert len(stored.downloads) == 20 * len(NAMES)
    assert fetch_all(stored, output).count(FetchState.SKIPPED) == 20
    assert len(stored.downloads) == 20 * len(NAMES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda document: document.clear(), "damaged in the folder: MANIFEST.json has no schema_version"),
        (lambda document: document["files"][0].update(sha256="0" * 64), "ncu/kernels.csv arrived damaged 2 times"),
    ],
)
def test_run_that_its_manifest_does_not_describe_is_refused_alone(
    stored: Watched, output: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    """`test_inventory.py` has all that may be wrong with a manifest."""
    make(stored, OTHER_RUN)
    path = stored.root / f"runs/{RUN}/MANIFEST.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    refused, fetched = fetch_all(stored, output).outcomes
    assert (refused.state, refused.reason) == (FetchState.REFUSED, reason)
    assert not is_complete(output)
    assert fetched == FetchedRun(run_id=OTHER_RUN, state=FetchState.FETCHED, files=4, bytes=fetched.bytes)


def test_run_whose_record_nobody_can_read_is_refused(stored: Watched, output: Path) -> None:
    folder = stored.root / "runs" / RUN
    (folder / "run.json").write_text("{}")
    bundle.seal(folder)
    assert only(fetch_all(stored, output)).reason == "damaged in the folder: run.json has no schema_version"
    assert not is_complete(output)


def test_manifest_that_would_fill_the_memory_is_refused(
    stored: Watched, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (stored.root / f"runs/{RUN}/MANIFEST.json").stat().st_size
    monkeypatch.setattr(fetch, "MAX_DOCUMENT_BYTES", size - 1)
    assert only(fetch_all(stored, output)).reason == f"damaged in the folder: MANIFEST.json has {size} bytes"
    monkeypatch.setattr(fetch, "MAX_DOCUMENT_BYTES", size)
    assert only(fetch_all(stored, output)).state is FetchState.FETCHED


@pytest.mark.parametrize("name", ["steps.csv", "MANIFEST.json"])
@pytest.mark.parametrize("times", [1, 2])
def test_broken_connection_is_tried_once_more_before_the_fetch_ends(
    stored: Watched, output: Path, times: int, name: str
) -> None:
    left = [UnreachableError("away", hint="wait")] * times
    stored.before[f"{RUN}/{name}"] = lambda: raising(left.pop())() if left else None
    report = fetch_all(stored, output)
    assert stored.downloads.count(f"{RUN}/{name}") == 2
    if times == 1:
        assert only(report).state is FetchState.FETCHED
    else:
        assert (report.outcomes, str(report.error), is_complete(output)) == ((), "away", False)
        assert only(fetch_all(stored, output)).state is FetchState.FETCHED
    bundle.read(output / RUN)


@pytest.mark.parametrize("name", ["steps.csv", "MANIFEST.json"])
@pytest.mark.parametrize("times", [1, 2])
def test_what_arrives_damaged_is_fetched_once_more(stored: Watched, output: Path, times: int, name: str) -> None:
    stored.damaged[f"{RUN}/{name}"] = times
    outcome = only(fetch_all(stored, output))
    assert outcome.reason == ("" if times == 1 else f"{name} arrived damaged 2 times")
    assert outcome.state is (FetchState.FETCHED if times == 1 else FetchState.REFUSED)
    assert is_complete(output) == (times == 1)


@pytest.mark.parametrize("is_gone", [False, True])
def test_object_that_changes_during_the_fetch_is_refused(stored: Watched, output: Path, is_gone: bool) -> None:
    path = stored.root / f"runs/{RUN}/steps.csv"

    def change() -> None:
        path.unlink()
        if not is_gone:
            path.write_bytes(STEPS * 1000)

    stored.before[f"{RUN}/steps.csv"] = change
    outcome = only(fetch_all(stored, output))
    assert (outcome.state, outcome.reason) == (
        FetchState.REFUSED,
        f"'runs/{RUN}/steps.csv' changed while it was copied",
    )
    assert not is_complete(output)


# The disk


def test_full_disk_ends_the_fetch(stored: Watched, output: Path) -> None:
    make(stored, OTHER_RUN)
    stored.before[f"{RUN}/steps.csv"] = raising(OSError(errno.ENOSPC, "No space left on device"))
    report = fetch_all(stored, output)
    assert isinstance(report.error, ToolError)
    assert report.error.report() == (
        f"error: No space left on device while writing '{output / RUN}'\nhint: free some space, or use -o "
        "FOLDER on another disk; the same command continues"
    )
    assert not is_complete(output)


def test_run_whose_place_is_taken_is_refused_alone(stored: Watched, output: Path) -> None:
    make(stored, OTHER_RUN)
    output.mkdir()
    (output / RUN).write_text("a file")
    refused, fetched = fetch_all(stored, output).outcomes
    assert (refused.state, refused.reason) == (FetchState.REFUSED, f"'{output / RUN}' cannot be written: File exists")
    assert fetched.state is FetchState.FETCHED
    assert (output / RUN).read_text() == "a file"


def test_output_that_is_a_file_is_refused(stored: Watched, output: Path) -> None:
    output.write_text("a file")
    with pytest.raises(UsageError, match=f"^output folder '{output}' cannot be written: File exists$"):
        fetch_all(stored, output)


def test_interruption_stops_the_workers(stored: Watched, output: Path) -> None:
    make(stored, OTHER_RUN)

    def interrupt(done: int, total: int, count: int) -> None:
        if total:
            raise InterruptedRunError(f"{done}/{total}", hint=f"{count}")

    with pytest.raises(InterruptedRunError, match=r"^[01]/2$"):
        fetch_all(stored, output, on_progress=interrupt)
    assert not [each for each in threading.enumerate() if each.name.endswith("(work)")]


def test_bug_in_a_worker_keeps_its_traceback(stored: Watched, output: Path) -> None:
    stored.before[f"{RUN}/steps.csv"] = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        fetch_all(stored, output)


# The command


@pytest.fixture
def run(stored: Watched, output: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(address, "open_store", lambda *_, **__: stored)
    return lambda **options: command.run_fetch(**{"source": str(stored.root), "output": output, **options})


def make_incomplete(stored: Watched) -> None:
    (make(stored, OTHER_RUN) / "MANIFEST.json").unlink()


def bytes_of(stored: Watched) -> int:
    return sum(path.stat().st_size for path in (stored.root / "runs" / RUN).rglob("*") if path.is_file())


def test_table_has_a_line_for_each_run_that_is_new(
    stored: Watched, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    make_incomplete(stored)
    assert run() == ExitCode.DONE
    sent = f"{bytes_of(stored) / 1000:.1f} kB"
    incomplete = "no MANIFEST.json: the run is still going on, or was interrupted; --incomplete fetches it"
    place = f"{stored.root}/runs/ -> {output}"
    assert capsys.readouterr().out == (
        f"fetched     run-a   4 files, {sent}\nincomplete  run-bb                   {incomplete}\n\n"
        f"fetched 1 ({sent}), skipped 0, incomplete 1, refused 0: {place}\n"
    )
    for name in NAMES[1:]:
        (stored.root / "runs" / OTHER_RUN / name).unlink()
    assert run() == ExitCode.DONE
    assert capsys.readouterr().out == f"fetched 0 (0 B), skipped 1, incomplete 0, refused 0: {place}\n"


def test_interrupted_command_says_that_it_can_be_given_again(stored: Watched, run: Callable[..., int]) -> None:
    stored.before[f"{RUN}/steps.csv"] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(InterruptedRunError) as caught:
        run()
    assert caught.value.report() == "error: interrupted by Ctrl-C\nhint: the same command continues where it stopped"


def test_incomplete_runs_alone_are_nothing_to_do(
    stored: Watched, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (stored.root / f"runs/{RUN}/MANIFEST.json").unlink()
    with pytest.raises(NothingToDoError) as caught:
        run()
    place = f"{stored.root}/runs/"
    assert caught.value.report() == (
        f"error: no complete run below {place}; 1 run without MANIFEST.json\n"
        f"hint: wait until the other fetch has ended, or analyze fetch {place} -o {output} --incomplete"
    )
    assert capsys.readouterr().out.startswith(f"incomplete  {RUN}")
    assert run(incomplete=True) == ExitCode.DONE
    make(stored, OTHER_RUN)
    assert run() == ExitCode.DONE


def test_refused_names_are_quoted_and_make_the_exit_code(
    stored: Watched, output: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"runs/{RUN}/\x1b]0;evil"
    (stored.root / name).touch()
    assert run(output_format=TableFormat.JSON) == ExitCode.BAD_BUNDLE
    sent = bytes_of(stored)
    assert json.loads(capsys.readouterr().out) == {
        "source": f"{stored.root}/runs/",
        "output": str(output),
        "counts": {"fetched": 1, "skipped": 0, "incomplete": 0, "refused": 0},
        "bytes": sent,
        "runs": [{"run_id": RUN, "state": "fetched", "files": 4, "bytes": sent, "reason": ""}],
        "refused_names": [{"name": name, "reason": "a control character"}],
        "error": None,
    }
    assert run() == ExitCode.BAD_BUNDLE
    assert capsys.readouterr().out.splitlines()[0] == f"refused  'runs/{RUN}/\\x1b]0;evil'    a control character"


def test_empty_place_is_nothing_to_do(stored: Watched, run: Callable[..., int]) -> None:
    shutil.rmtree(stored.root / "runs" / RUN)
    with pytest.raises(NothingToDoError) as caught:
        run()
    search = f"find {stored.root} -name MANIFEST.json"
    assert caught.value.report() == f"error: no run below {stored.root}/runs/\nhint: {search}"


def test_what_ended_the_fetch_is_raised_after_the_table(
    stored: Watched, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    stored.before[f"{RUN}/steps.csv"] = raising(UnreachableError("away", hint="wait"))
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

"""`analyze fetch`: copy bundles from a bucket or a folder, with a progress bar, a table and an exit code."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from analysis.commands.shared import OutputOption
from workload.contract.errors import ExitCode, InterruptedRunError, NothingToDoError
from workload.contract.invocation import Group
from workload.contract.operating_system import CAUSES
from workload.contract.process import handled_by
from workload.contract.program import FormatOption, option
from workload.contract.tables import TableFormat, plain
from workload.contract.text import counted, size

if TYPE_CHECKING:
    from workload.storage.fetch import FetchReport

EXAMPLES = """\b
Examples:
  analyze fetch gs://BUCKET/PREFIX -o results
  analyze fetch s3://BUCKET/PREFIX/runs/RUN_ID
"""
BAR_WIDTH = 30
LINE_EVERY_S = 10.0
# Number of bundles copied at a time. A bundle of four files takes five requests, each 2 ms of this machine's time and
# some 40 ms of waiting: 2,000 bundles took 64 s with 8 at a time, and take 16 s with 32.
AT_A_TIME = 32


def run_fetch(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="gs://…, s3://…, ssh://… or a folder in which runs/RUN_ID/ are, or one run"
        ),
    ],
    output: OutputOption = Path("results"),
    incomplete: Annotated[bool, option("--incomplete", "copy runs without MANIFEST.json too", Group.RESULTS)] = False,
    replace: Annotated[bool, option("--replace", "overwrite complete bundles that differ here", Group.OUTPUT)] = False,
    at_a_time: Annotated[
        int,
        option(
            "--at-a-time --jobs",
            "how many runs are copied at the same time",
            Group.RESULTS,
            min=1,
            max=256,
            metavar="N",
            show_default=True,
        ),
    ] = AT_A_TIME,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Copy bundles from Cloud Storage, S3 or a folder: only what is new, every file compared with its manifest."""
    # Imported here, because `analyze --help` needs no store.
    from workload.storage import fetch as fetching
    from workload.storage.address import open_store, parse_source

    place = parse_source(source)
    with _stoppable():
        store = open_store(place.address, probe=place.prefix, jobs=at_a_time)
        bar = Bar()
        report = fetching.fetch(
            store, place, output, incomplete=incomplete, replace=replace, jobs=at_a_time, on_progress=bar.update
        )
        bar.finish()
    if not report.outcomes and not report.refused and not report.error:
        raise NothingToDoError(f"no run below {place}", hint=place.search())
    if output_format is TableFormat.TABLE:
        print(render(report))
    else:
        print(plain(report.to_json(), output_format, rows_of="runs"))
    if report.error:
        raise report.error
    if report.refused or report.count(fetching.FetchState.REFUSED):
        return ExitCode.BAD_BUNDLE
    if not incomplete and report.count(fetching.FetchState.INCOMPLETE) == len(report.outcomes):
        again = shlex.join(["analyze", "fetch", str(place), "-o", str(output), "--incomplete"])
        raise NothingToDoError(
            f"no complete run below {place}; {counted(len(report.outcomes), 'run')} without MANIFEST.json",
            hint=f"wait until the other fetch has ended, or {again}",
        )
    return ExitCode.DONE


def render(report: "FetchReport") -> str:
    """A line for each run and refused name, except runs that were already present, and the totals."""
    from workload.storage.fetch import FetchState

    rows = [
        (each.state.value, each.run_id, f"{each.files} files, {size(each.bytes)}" if each.files else "", each.reason)
        for each in report.outcomes
        if each.state is not FetchState.SKIPPED or each.reason
    ]
    # `ascii` quotes the name, because the name may contain control sequences for a terminal.
    rows += [("refused", ascii(each.name), "", each.reason) for each in report.refused]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    refused = report.count(FetchState.REFUSED) + len(report.refused)
    counts = [
        f"fetched {report.count(FetchState.FETCHED)} ({size(sum(each.bytes for each in report.outcomes))})",
        f"skipped {report.count(FetchState.SKIPPED)}",
        f"incomplete {report.count(FetchState.INCOMPLETE)}",
        f"refused {refused}",
    ]
    return "\n".join([*lines, *([""] if lines else []), f"{', '.join(counts)}: {report.source} -> {report.output}"])


class Bar:
    """Progress on stderr: a bar on a terminal, otherwise a line every ten seconds."""

    def __init__(self, *, stream: TextIO = sys.stderr, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._started_s = self._shown_s = now()

    def update(self, done: int, total: int, count: int) -> None:
        """Show `done` of `total` runs, and `count`, the bytes so far."""
        elapsed_s = self._now() - self._started_s
        rate = f", {size(int(count / elapsed_s))}/s" if count and elapsed_s > 0 else ""
        text = f"{done}/{total} runs, {size(count)}{rate}" if total else "looking for runs"
        if self._stream.isatty():
            filled = BAR_WIDTH * done // max(total, 1)
            width = shutil.get_terminal_size().columns - 1
            line = f"fetch [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}"
            self._write(f"\r{line[:width]:<{width}}")
        elif self._now() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = self._now()
            self._write(f"fetch {text}\n")

    def finish(self) -> None:
        """Erase the bar before the table is printed."""
        if self._stream.isatty():
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise `InterruptedRunError` on a signal; complete bundles stay, and the same command fetches the rest."""

    def stop(number: int, _: object) -> NoReturn:
        raise InterruptedRunError(CAUSES[number], hint="the same command continues where it stopped")

    with handled_by(stop):
        yield

"""`analyze fetch`, `import` and `export`: bundles from a store, from files of other programs, and to other programs."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from analysis.commands.shared import (
    OutputOption,
    PeaksOption,
    ResultsArgument,
    VerifyOption,
    load,
    print_problems,
    use_peaks,
)
from workload.contract.errors import ExitCode, InterruptedRunError, NothingToDoError, RooflaunchError
from workload.contract.invocation import Group, examples
from workload.contract.operating_system import CAUSES
from workload.contract.process import handled_by
from workload.contract.program import FormatOption, option
from workload.contract.tables import TableFormat, plain
from workload.contract.text import counted, printable, size

if TYPE_CHECKING:
    from analysis.importing import UserFacts
    from workload.storage.fetch import FetchReport

EXAMPLES = examples("analyze fetch gs://BUCKET/PREFIX -o results", "analyze fetch s3://BUCKET/PREFIX/runs/RUN_ID")
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

    def __init__(
        self, verb: str = "fetch", *, stream: TextIO = sys.stderr, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._verb, self._stream, self._now = verb, stream, now
        self._started_s = self._shown_s = now()

    def update(self, done: int, total: int, count: int | None = None) -> None:
        """Show `done` of `total` runs, and `count`, the bytes so far, if they are counted."""
        elapsed_s = self._now() - self._started_s
        rate = f", {size(int(count / elapsed_s))}/s" if count and elapsed_s > 0 else ""
        amount = "" if count is None else f", {size(count)}{rate}"
        text = f"{done}/{total} runs{amount}" if total else "looking for runs"
        if self._stream.isatty():
            filled = BAR_WIDTH * done // max(total, 1)
            width = shutil.get_terminal_size().columns - 1
            line = f"{self._verb} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}"
            self._write(f"\r{line[:width]:<{width}}")
        elif self._now() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = self._now()
            self._write(f"{self._verb} {text}\n")

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


IMPORT_EXAMPLES = examples(
    "analyze import train.log --model resnet50 --batch-size 256",
    "analyze import ncu.csv --model resnet50 --batch-size 64 --precision fp32 --profile-steps 4",
)


def import_files(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="logs of training runs, traces of torch.profiler, output of ncu or nsys"
        ),
    ],
    model: Annotated[
        str | None, option("--model", "the model, if the file does not name it", Group.MODEL, metavar="M")
    ] = None,
    batch_size: Annotated[
        int | None, option("--batch-size", "samples per step, if the file does not give it", Group.MODEL, metavar="N")
    ] = None,
    precision: Annotated[
        str | None, option("--precision", "precision of the run, if known", Group.MODEL, metavar="fp32|tf32|amp|bf16")
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", 'the device, for example "Tesla T4"', Group.PLACE, metavar="NAME")
    ] = None,
    profile_steps: Annotated[
        int | None, option("--profile-steps", "training steps in a profile, if known", Group.MEASURING, metavar="N")
    ] = None,
    driver: Annotated[
        str | None, option("--driver", "version of the GPU's driver, if known", Group.PLACE, metavar="V")
    ] = None,
    torch: Annotated[str | None, option("--torch", "version of PyTorch, if known", Group.PLACE, metavar="V")] = None,
    dataset: Annotated[
        str | None, option("--dataset", "the data set, for example cifar10", Group.MODEL, metavar="NAME")
    ] = None,
    image_size: Annotated[
        int | None,
        option("--image-size", "width and height of its images in pixels, if known", Group.MODEL, metavar="N"),
    ] = None,
    gpu_index: Annotated[
        int | None, option("--gpu-index", "which GPU of a trace with several", Group.PLACE, metavar="N")
    ] = None,
    peaks: PeaksOption = None,
    output: OutputOption = Path("results"),
) -> int:
    """Make bundles of other people's logs and profiles; prints the folder of each, and what was left out of it."""
    from analysis.importing import UserFacts, of_runs

    use_peaks(peaks)
    user = UserFacts(
        model=model,
        batch_size=batch_size,
        precision=precision,
        gpu=gpu,
        profile_steps=profile_steps,
        driver=driver,
        torch=torch,
        dataset=dataset,
        image_size=image_size,
        device=gpu_index,
    )
    refused, present = list[tuple[Path, RooflaunchError]](), list[NothingToDoError]()
    runs = of_runs(files)
    for file, *beside in runs:
        try:
            _import(file, user, output, beside)
        except NothingToDoError as error:
            present.append(error)
        except RooflaunchError as error:
            if len(runs) == 1:
                raise
            refused.append((file, error))
            print(error.report(), file=sys.stderr, flush=True)
    # Files that were imported before are listed; they are an error only if every file was imported before.
    if len(present) == len(runs):
        raise present[0]
    for known in present:
        print(f"note       {printable(str(known))}", file=sys.stderr)
    if refused:
        names = ", ".join(printable(str(file)) for file, _ in refused)
        print(f"left out   {len(refused)} of {counted(len(files), 'file')}: {names}", file=sys.stderr)
        return refused[0][1].exit_code
    return ExitCode.DONE


def _import(file: Path, user: "UserFacts", output: Path, beside: Sequence[Path]) -> None:
    from analysis.importing import import_file

    folders = import_file(file, user, output=output, beside=beside)
    for folder in folders:
        print(printable(str(folder)), flush=True)
    for note in _notes(folders):
        print(f"note       {printable(str(file))}: {printable(note)}", file=sys.stderr, flush=True)


def _notes(folders: Sequence[Path]) -> list[str]:
    """Sentences on omissions and decisions in the bundles of one file.

    If the file has several runs, each sentence ends with the number of runs to which it applies.
    """
    from workload.contract import bundle

    notes: dict[str, int] = {}
    for folder in folders:
        record = bundle.read_record(folder)
        ignored = record.imported.ignored if record.imported else None
        columns = [f"columns that are not read: {', '.join(ignored)}"] if ignored else []
        for note in [*(record.notes or ()), *columns]:
            notes[note] = notes.get(note, 0) + 1
    return [note if len(folders) == 1 else f"{note} ({counted(count, 'run')})" for note, count in notes.items()]


EXPORT_EXAMPLES = examples(
    "analyze export results --to tensorboard --into runs",
    "analyze export results --to mlflow --into http://localhost:5000",
)


class Tool(StrEnum):
    """Names of `analysis.exporting.TOOLS`, repeated because the command line needs them without pandas."""

    MLFLOW = "mlflow"
    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


def export(
    *,
    results: ResultsArgument,
    to: Annotated[Tool, option("--to", "the program", Group.OUTPUT)],
    into: Annotated[
        str | None,
        option(
            "--into",
            "URI of MLflow's server, project of W&B, folder of TensorBoard (default: MLFLOW_TRACKING_URI; "
            "WANDB_PROJECT or rooflaunch; runs)",
            Group.OUTPUT,
            metavar="PLACE",
        ),
    ] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Write runs to MLflow, Weights & Biases or TensorBoard: settings, figures, steps, machine, commit, the bundle.

    A run that is there is skipped. Intervals (..._low, ..._high) are over the runs of a configuration in RESULTS at the
    time of the export. TensorBoard keeps no files, and gets the path of the bundle.
    """
    from analysis import exporting

    loaded = load(results, verify=verify, peaks=peaks)
    with _stoppable():
        target = exporting.TOOLS[to](into)
        bar, runs = Bar("export", stream=sys.stderr), exporting.contents(loaded)
        outcomes, error = exporting.export(runs, target, on_progress=lambda done: bar.update(done, len(loaded.runs)))
        bar.finish()
    counts = {state: list(outcomes.values()).count(state) for state in ("exported", "skipped", "failed")}
    if output_format is TableFormat.TABLE:
        lines = [f"{state:<8}  {run_id}" for run_id, state in outcomes.items() if state != "skipped"]
        total = f"{', '.join(f'{state} {number}' for state, number in counts.items())}: {target.where}"
        print("\n".join(map(printable, [*lines, *([""] if lines else []), total])))
    else:
        rows = [{"run_id": run_id, "state": state} for run_id, state in outcomes.items()]
        print(plain({"where": target.where, **counts, "runs": rows}, output_format, rows_of="runs"))
    print_problems(loaded.problems)
    if error:
        raise error
    return ExitCode.DONE

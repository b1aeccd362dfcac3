"""Costs around the steps: starts, sweeps, duels, help, reports, loading. Each row: median, range, CPU seconds, goal.

python benchmarks/around_the_step.py [PART...] [--times 5]      all parts take about two hours, `run local help` minutes

Commands run in a temporary folder with this Python. `PYTHONPATH=ANOTHER_CHECKOUT` measures that checkout's code.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import load_bundles
import paired
import report
import synthetic_bundles

from tests.analysis.readers.traces import kineto_traces

# One run: 0.35 s of steps on two cores.
RUN = ("--cpu", "--model", "squeezenet1_1", "--batch-size", "8", "--image-size", "64", "--iterations", "10")
NO_CEILINGS = "--no-ceilings"
TRAIN = (sys.executable, "-m", "workload", "train", *RUN)
LAUNCH, ANALYZE = (sys.executable, "-m", "launcher"), (sys.executable, "-m", "analysis")
TYPER = (sys.executable, "-c", "import typer")
SWEEP_RUNS, BLOCKS, DUEL_RUNS = 18, 3, 32
NOT_DECIDABLE = 13
REPORTED, LOADED = 2_000, 10_000
# A step of the made trace has 25 events: 239,000 events in 60 MB.
TRACE_STEPS = 9_560
MATRIX = """name = "around"
repeats = {repeats}
[defaults]
model = "squeezenet1_1"
batch_size = 8
image_size = 64
iterations = 10
ceilings = {ceilings}
[matrix]
{matrix}
[[on]]
backend = "local"
device = "cpu"
runtime = "process"
"""
# Six configurations whose steps take about as long; the seven of one block differ in the seed alone.
SIX = 'optimizer = ["sgd", "adam", "adamw"]\nchannels_last = [false, true]'
FORKED_RUNS = 7
# A small process that measures a command: Linux counts the memory of the parent as memory of the child.
WATCH = """
import json, os, subprocess, sys, time
began_s = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
wall_s, cpu_s = time.perf_counter() - began_s, usage.ru_utime + usage.ru_stime
print(json.dumps([wall_s, cpu_s, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)]))
"""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Resources of a command and its descendants: wall and CPU seconds, and the largest memory of one process."""

    wall_s: float
    cpu_s: float
    peak_bytes: int

    def beyond(self, other: "Spent", *, per: int) -> "Spent":
        """Resources beyond those of `other`, divided by `per`."""
        wall_s, cpu_s = (self.wall_s - other.wall_s) / per, (self.cpu_s - other.cpu_s) / per
        return Spent(wall_s=wall_s, cpu_s=cpu_s, peak_bytes=self.peak_bytes)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: what was measured, its goal in words, and what each time took."""

    what: str
    goal: str
    spent: list[Spent]

    def text(self) -> str:
        """Median and range of the wall seconds, median of CPU seconds and of the largest memory."""
        wall = sorted(one.wall_s for one in self.spent)
        cpu_s, peak = median(one.cpu_s for one in self.spent), median(one.peak_bytes for one in self.spent)
        times = f"{median(wall):8.2f} s  ({wall[0]:.2f} to {wall[-1]:.2f}, n={len(wall)})"
        return f"{self.what:<46}{times:<38}{cpu_s:8.2f} s CPU {peak / 1e6:6.0f} MB   {self.goal}"


def spend(command: Sequence[str], folder: Path, *, code: int = 0) -> Spent:
    """Run the command in `folder`, which must exit with `code`."""
    watch = [sys.executable, "-I", "-S", "-c", WATCH, *command]
    done = subprocess.run(watch, cwd=folder, capture_output=True, text=True, check=True)
    wall_s, cpu_s, peak_bytes, ended = json.loads(done.stdout)
    if ended != code:
        sys.exit(f"{' '.join(command)} ended with {ended}:\n{done.stderr[-2000:]}")
    return Spent(wall_s=wall_s, cpu_s=cpu_s, peak_bytes=peak_bytes)


def fresh(folder: Path, name: str = "results") -> Path:
    """Empty folder below `folder`."""
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir()
    return folder / name


# --- parts


def run(folder: Path, times: int) -> Iterator[Row]:
    """A run by the trainer, without ceilings, whose time depends on how busy the machine is, and with them."""
    alone = (*TRAIN, NO_CEILINGS)
    yield Row(what="a run", goal="<= 5 s", spent=[spend(alone, fresh(folder)) for _ in range(times)])
    yield Row(
        what="a run that measures the ceilings", goal="", spent=[spend(TRAIN, fresh(folder)) for _ in range(times)]
    )


def local(folder: Path, times: int) -> Iterator[Row]:
    """The same by `launch local`, without ceilings."""
    command = (*LAUNCH, "local", *RUN, NO_CEILINGS, "--runtime", "process")
    yield Row(what="launch local", goal="<= 5.5 s", spent=[spend(command, fresh(folder)) for _ in range(times)])


def _sweep(folder: Path, matrix: str, repeats: int, *, ceilings: bool = False) -> Spent:
    place = fresh(folder)
    text = MATRIX.format(matrix=matrix, repeats=repeats, ceilings=str(ceilings).lower())
    (place / "around.toml").write_text(text)
    return spend((*LAUNCH, "sweep", "around.toml"), place)


def forked(folder: Path, times: int) -> Iterator[Row]:
    """A run of a sweep that is not its first: seven runs of one block, without a sweep of one."""
    spent = []
    for _ in range(times):
        one = _sweep(folder, "seed = [0]", 1)
        more = _sweep(folder, f"seed = {list(range(FORKED_RUNS))}", 1)
        spent.append(more.beyond(one, per=FORKED_RUNS - 1))
    yield Row(what="a later run of a sweep", goal="<= 1.2 s", spent=spent)


def sweep(folder: Path, times: int) -> Iterator[Row]:
    """A sweep of six configurations in three blocks, with ceilings in each block."""
    spent = [_sweep(folder, SIX, BLOCKS, ceilings=True) for _ in range(times)]
    yield Row(what=f"a sweep of {SWEEP_RUNS} such runs", goal="<= 35 s", spent=spent)


def duel(folder: Path, times: int) -> Iterator[Row]:
    """A duel of equal sides, too short to decide about 0.1 %."""
    command = (*LAUNCH, "duel", *RUN, "--same-within", "0.1%", "--max-runs", str(DUEL_RUNS), "--", "---")
    spent = [spend(command, fresh(folder), code=NOT_DECIDABLE) for _ in range(times)]
    yield Row(what=f"a duel of {DUEL_RUNS} runs", goal="<= 132 s", spent=spent)


def help_text(folder: Path, times: int) -> Iterator[Row]:
    """`launch --help`, importing typer, and their ratio in pairs."""
    helped, imported = (*LAUNCH, "--help"), TYPER
    spend(helped, folder), spend(imported, folder)
    yield Row(what="launch --help", goal="", spent=[spend(helped, folder) for _ in range(times)])
    yield Row(what="importing typer", goal="", spent=[spend(imported, folder) for _ in range(times)])
    ratios = paired.measure(lambda: spend(helped, folder).cpu_s, lambda: spend(imported, folder).cpu_s, pairs=3 * times)
    print(f"{paired.report('launch --help / importing typer, CPU seconds', ratios)}   <= 2.0", flush=True)


def reported(folder: Path, times: int) -> Iterator[Row]:
    """`analyze report` on synthetic bundles, without and with an index."""
    results = folder / "reported"
    synthetic_bundles.make_many(report.make, results, range(REPORTED))
    command = (*ANALYZE, "report", str(results), "-o", "report.html")
    yield from with_and_without_index(command, results, times, f"analyze report on {REPORTED:,} bundles", (12, 4))


def load(folder: Path, times: int) -> Iterator[Row]:
    """`analysis.load` of synthetic bundles, without and with an index."""
    results = folder / "loaded"
    synthetic_bundles.make_many(synthetic_bundles.make, results, range(LOADED))
    command = (sys.executable, "-c", load_bundles.LOAD, str(results))
    yield from with_and_without_index(command, results, times, f"analysis.load of {LOADED:,} bundles", (7, 1.3))


def with_and_without_index(
    command: Sequence[str], results: Path, times: int, what: str, goals_s: tuple[float, float]
) -> Iterator[Row]:
    """Rows of a command that reads `results`: without the index of the folder, and again with it."""
    first, again = [], []
    for _ in range(times):
        shutil.rmtree(results / ".analysis", ignore_errors=True)
        for spent in (first, again):
            spent.append(spend(command, results.parent))
    yield Row(what=f"{what}, first", goal=f"<= {goals_s[0]:g} s", spent=first)
    yield Row(what="the same again", goal=f"<= {goals_s[1]:g} s", spent=again)


def trace(folder: Path, times: int) -> Iterator[Row]:
    """`analyze import` of a trace of a GPU's steps."""
    file = folder / "trace.json"
    events = [event for number in range(TRACE_STEPS) for event in kineto_traces.step(number, 1e6 + 1000.0 * number)]
    file.write_text(kineto_traces.document(events, deviceProperties=[kineto_traces.V100]))
    what = f"a trace of {file.stat().st_size / 1e6:.0f} MB ({len(events):,} events)"
    command = (*ANALYZE, "import", str(file), "--model", "resnet50", "--batch-size", "4", "-o", "results")
    spent = [spend(command, fresh(folder).parent) for _ in range(times)]
    yield Row(what=what, goal="not worse: 3.7 s, 276 MB", spent=spent)


PARTS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "run": run,
    "local": local,
    "forked": forked,
    "sweep": sweep,
    "duel": duel,
    "help": help_text,
    "report": reported,
    "load": load,
    "trace": trace,
}


def main() -> None:
    """Print a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    # Without compiled files, a start would mostly compile our packages.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, load average {load_average} before", flush=True)
    for name in given.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for row in PARTS[name](Path(folder), given.times):
                print(row.text(), flush=True)


if __name__ == "__main__":
    main()

"""Ctrl-C at random moments of `launch local --repeats 3`: every time 130, and what was measured is kept.

    python benchmarks/interruptions.py 60 [--seed 0] [--sweep] [--alone | --kill]

Each time SIGINT goes to the whole process group, as from a terminal, or with --alone to `launch` only. The moments are
uniform over the time that an uninterrupted launch takes, from 0.3 s on; one that comes after the end is drawn again.
Exits with 1 where a launch ended in another way, left a bundle unsealed or a process running, or printed a traceback.
With --kill `launch` gets SIGKILL, and a process of its that runs 15 s later is the fault. With --sweep it is `launch
sweep` with forked runs: two configurations in three blocks. A killed sweep is run again, and has to end with each of
its runs done once.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode

ROOT = Path(__file__).parents[1]
TINY = ["--image-size", "32", "--batch-size", "2", "--warmup", "2", "--iterations", "20"]
LOCAL = ["local", "--runtime", "process", "--cpu", *TINY, "--repeats", "3", "-o", "out"]
SWEEP = ["sweep", "matrix.toml", "-o", "out"]
SWEEP_RUNS = 6
MATRIX = """name = "interrupted"
repeats = 3
[defaults]
image_size = 32
batch_size = 2
warmup = 2
ceilings = false
[matrix]
iterations = [20, 30]
[[on]]
backend = "local"
device = "cpu"
runtime = "process"
"""
END_LIMIT_S = 120
# What docs/bundle.md promises.
OUTLIVED_LIMIT_S = 15.0
# Before our first line runs, Ctrl-C is answered by Python itself.
STARTED_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Result of an interrupted launch: its exit code and stderr, its bundles, and whether a process survived."""

    code: int
    stderr: str
    statuses: tuple[str, ...]
    unsealed: tuple[Path, ...]
    survivors: bool

    @property
    def faults(self) -> list[str]:
        """Faults of this result, in words."""
        return [
            *([f"exit code {self.code}"] if self.code != ExitCode.INTERRUPTED else []),
            *(["traceback"] if "Traceback" in self.stderr else []),
            *(f"not sealed: {folder.name}" for folder in self.unsealed),
            *(["a process still runs"] if self.survivors else []),
        ]


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start `launch` with these words in a new process group, with its output in `folder`."""
    (folder / "matrix.toml").write_text(MATRIX)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def press(process: "subprocess.Popen[str]", *, alone: bool = False) -> None:
    """Send SIGINT, as Ctrl-C does, to the whole group or to `launch` alone."""
    (os.kill if alone else os.killpg)(process.pid, signal.SIGINT)


def await_end(process: "subprocess.Popen[str]", folder: Path) -> Ended:
    """Wait for the end of an interrupted launch, and kill the processes that are left of its group."""
    _, stderr = process.communicate(timeout=END_LIMIT_S)
    survivors = True
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        survivors = False
    statuses, unsealed = [], []
    for path in sorted((folder / "out").glob("2*")):
        try:
            statuses.append(str(bundle.read(path).record.status))
        except BundleError:
            unsealed.append(path)
    # A shell says 130 of a process that SIGINT ended.
    code = 128 - process.returncode if process.returncode < 0 else process.returncode
    return Ended(code=code, stderr=stderr, statuses=tuple(statuses), unsealed=tuple(unsealed), survivors=survivors)


def interrupt_after(delay_s: float, words: Sequence[str], *, alone: bool) -> Ended | None:
    """Start a launch and interrupt it after `delay_s`; None if it had ended by then."""
    with tempfile.TemporaryDirectory() as name, start(Path(name), *words) as process:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=delay_s)
            return None
        press(process, alone=alone)
        return await_end(process, Path(name))


def outlived_s(delay_s: float, words: Sequence[str]) -> float | None:
    """Seconds for which processes of a launch outlive it, killed after `delay_s`; None if it had ended by then.

    Raises `AssertionError` if a sweep that is run again does not end with each of its runs.
    """
    with tempfile.TemporaryDirectory() as name, start(Path(name), *words) as process:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=delay_s)
            return None
        began_s = time.monotonic()
        process.kill()
        process.wait()
        while _has_processes(process.pid) and time.monotonic() - began_s < END_LIMIT_S:
            time.sleep(0.05)
        took_s = time.monotonic() - began_s
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if words == SWEEP:
            _resume(Path(name))
        return took_s


def _resume(folder: Path) -> None:
    """Run a sweep again; all its runs have to be done then, each once."""
    with start(folder, *SWEEP) as process:
        _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    keys = []
    for path in (folder / "out").glob("2*"):
        with suppress(BundleError):
            record = bundle.read(path).record
            keys += [record.run_key] if record.status == "completed" else []
    assert len(keys) == len(set(keys)) == SWEEP_RUNS, keys


def _has_processes(group: int) -> bool:
    """Whether a process group has members other than zombies, whose parent may be slow to see them."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(words[2]) == group and words[0] != "Z":
                return True
    return False


def measure_kills(count: int, seed: int, words: Sequence[str]) -> int:
    """Kill `count` launches; return how many left a process for longer than `OUTLIVED_LIMIT_S`."""
    limit_s, moments = duration_s(words), random.Random(seed)
    took: list[float] = []
    while len(took) < count:
        delay_s = moments.uniform(STARTED_S, limit_s)
        if (each_s := outlived_s(delay_s, words)) is not None:
            took.append(each_s)
            print(f"killed after {delay_s:6.2f} s: the last process ended {each_s:5.2f} s later", flush=True)
    late = sum(each_s > OUTLIVED_LIMIT_S for each_s in took)
    print(f"\n{count - late} of {count} ended within {OUTLIVED_LIMIT_S:g} s; the last after {max(took):.1f} s")
    return late


def duration_s(words: Sequence[str]) -> float:
    """Seconds that a launch takes if nobody interrupts it."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name, start(Path(name), *words) as process:
        process.communicate()
        assert process.returncode == 0, "the launch itself fails"
    return time.monotonic() - began_s


def measure(
    count: int, seed: int, *, alone: bool, words: Sequence[str] = LOCAL, show: Callable[[str], None] = print
) -> int:
    """Interrupt `count` launches; return how many ended with a fault."""
    limit_s, moments, bad = duration_s(words), random.Random(seed), 0
    left: Counter[str] = Counter()
    show(f"an uninterrupted launch takes {limit_s:.1f} s\n{'after':>8}  code  bundles")
    done = 0
    while done < count:
        delay_s = moments.uniform(STARTED_S, limit_s)
        ended = interrupt_after(delay_s, words, alone=alone)
        if ended is None:
            continue
        done += 1
        bad += bool(ended.faults)
        left[", ".join(ended.statuses) or "none"] += 1
        kept, faults = ", ".join(ended.statuses) or "none", "; ".join(ended.faults)
        show(f"{delay_s:6.2f} s  {ended.code:4}  {kept}  {faults}".rstrip())
    show(f"\n{count - bad} of {count} ended with 130, every bundle sealed, nothing left running")
    for statuses, number in sorted(left.items()):
        show(f"  {number:3} left {statuses}")
    return bad


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="SIGINT to `launch` alone")
    parser.add_argument("--kill", action="store_true", help="SIGKILL to `launch` alone")
    parser.add_argument("--sweep", action="store_true", help="`launch sweep` in place of `launch local`")
    chosen = parser.parse_args()
    words = SWEEP if chosen.sweep else LOCAL
    if chosen.kill:
        return 1 if measure_kills(chosen.count, chosen.seed, words) else 0
    return 1 if measure(chosen.count, chosen.seed, alone=chosen.alone, words=words) else 0


if __name__ == "__main__":
    sys.exit(main())

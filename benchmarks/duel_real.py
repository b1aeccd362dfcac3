"""Duels of real training steps on this machine, while it is disturbed: python benchmarks/duel.py --real FILE.

A step is forward, loss, backward and optimizer of a small network, on one thread, about 0.3 ms; a segment is a new
network with its warm-up and 20 measured steps, in one of two processes, by lot. B is A, or is made 3 % slower: after
each of its steps it spins for 3 % of what that step took. A duel ends undecided after 150 quadruples or 4 s.

What disturbs: neighbours (two processes that stream through memory, on and off), drift (their share grows or shrinks
over the duel), throttling (the trainer is stopped for 40 % of every 5 ms, on and off), a control group that gets 60 %
of a CPU (on and off; by signals where control groups cannot be written), and whatever else this machine is doing: its
load is recorded. Against that the trainers have real-time priority where it is allowed, but not in the control group,
which does not know it: there they compete with all others.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.resumable import Results
from launcher.duel.decision import SEGMENTS, Segment, judge, order

ROOT = Path(__file__).parents[1]
CONDITIONS = ("as it is", "neighbour", "drift", "stopped", "control group")
# With how many duels of a chunk.
EFFECTS = {"A/A": (0.0, 3), "B 3 % slower": (0.03, 1)}
QUADRUPLES, LIMIT_S = 150, 4.0
WARMUP, STEPS = 3, 20
WORKERS, NEIGHBOURS = 2, 2
CHUNK = 3
# Waves last some segments (5 to 10 ms each), so that they hit some quadruples and not others.
MEAN_ON_S, MEAN_OFF_S = 0.1, 0.2
# While it is stopped or limited the trainer has 60 % of one CPU.
PERIOD_US, QUOTA_US = 5000, 3000
# A drift is a share of time that neighbours work, from none to this or back, over so many seconds.
DRIFT_SHARE, DRIFT_S, DRIFT_PERIOD_S = 0.8, 2.0, 0.02
KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
PRIORITY = 1


# --- the processes


def worker() -> None:
    """Read a slow-down per line, train a segment, print the median step in seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: PLC0415 - of the workers alone
    from torch import nn  # noqa: PLC0415

    from workload.contract.spec import Device, RunSpec  # noqa: PLC0415
    from workload.steps.training_step import TrainingStep  # noqa: PLC0415

    torch.set_num_threads(1)
    spec = RunSpec(device=Device.CPU, batch_size=16, image_size=8)
    batch = (torch.randn(16, 3, 8, 8), torch.randint(10, (16,)))
    batches = iter(lambda: batch, None)
    for line in sys.stdin:
        slower = float(line)
        layers = (nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
        step = TrainingStep(nn.Sequential(*layers), spec)
        took_s = []
        for _ in range(WARMUP + STEPS):
            began_s = time.perf_counter()
            step(batches, lambda _: None)
            until_s = began_s + (time.perf_counter() - began_s) * (1 + slower)
            while slower and time.perf_counter() < until_s:
                pass
            took_s.append(time.perf_counter() - began_s)
        print(float(np.median(took_s[WARMUP:])), flush=True)


def neighbour() -> None:
    """Stream through memory until killed."""
    block = np.ones(4_000_000)
    while True:
        block *= 1.0


@contextmanager
def process(role: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process of this module; it ends when we end, even by SIGKILL."""
    command = [sys.executable, "-m", "benchmarks.duel_real", role]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


# --- what disturbs

Switch = Callable[[bool], None]


class ByHand:
    """Stops processes for 40 % of every `PERIOD_US` while it is on."""

    def __init__(self, processes: list[int]) -> None:
        self._processes, self._on = processes, threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, on: bool) -> None:
        if on and self._thread is None:
            self._on.set()
            self._thread = threading.Thread(target=self._stop_and_go)
            self._thread.start()
        elif not on and self._thread:
            self._on.clear()
            self._thread.join()
            self._thread = None

    def _stop_and_go(self) -> None:
        while self._on.is_set():
            for number, share in ((signal.SIGSTOP, 1 - QUOTA_US / PERIOD_US), (signal.SIGCONT, QUOTA_US / PERIOD_US)):
                for pid in self._processes:
                    os.kill(pid, number)
                time.sleep(share * PERIOD_US / 1e6)


class ControlGroup:
    """Make a control group for trainers, of version 1 or 2. Raises `OSError` if that is not allowed."""

    def __init__(self) -> None:
        name = f"rooflaunch-duel-{os.getpid()}"
        first, second = Path("/sys/fs/cgroup/cpu") / name, Path("/sys/fs/cgroup") / name
        self._folder = first if first.parent.exists() else second
        self._folder.mkdir()
        if self._folder == first:
            (first / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            self._limit, self._texts = first / "cpu.cfs_quota_us", ("-1", str(QUOTA_US))
        else:
            self._limit, self._texts = second / "cpu.max", (f"max {PERIOD_US}", f"{QUOTA_US} {PERIOD_US}")
        self(False)

    def __call__(self, on: bool) -> None:
        self._limit.write_text(self._texts[on])

    @contextmanager
    def holding(self, trainers: list[int]) -> Iterator[None]:
        for pid in trainers:
            (self._folder / "cgroup.procs").write_text(str(pid))
        try:
            yield
        finally:
            for pid in trainers:
                (self._folder.parent / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        self._folder.rmdir()


def disturb(condition: str, rng: random.Random, over: threading.Event, switch: Switch) -> None:
    """Disturb the machine until `over`, then undo all disturbances."""
    began_s, grows = time.monotonic(), rng.random() < 0.5
    is_on = rng.random() < MEAN_ON_S / (MEAN_ON_S + MEAN_OFF_S)
    while not over.is_set():
        if condition == "drift":
            done = min(1.0, (time.monotonic() - began_s) / DRIFT_S)
            share = DRIFT_SHARE * (done if grows else 1 - done)
            switch(True)
            over.wait(DRIFT_PERIOD_S * share)
            switch(False)
            over.wait(DRIFT_PERIOD_S * (1 - share))
        else:
            switch(is_on)
            over.wait(rng.expovariate(1 / (MEAN_ON_S if is_on else MEAN_OFF_S)))
            is_on = not is_on
    switch(False)


class Machine:
    """Trainers that wait for a segment, neighbours that are stopped, and what limits trainers."""

    def __init__(self, stack: ExitStack) -> None:
        self._workers = [stack.enter_context(process("worker")) for _ in range(WORKERS)]
        self._neighbours = [stack.enter_context(process("neighbour")) for _ in range(NEIGHBOURS)]
        self.trainers = [one.pid for one in self._workers]
        self.neighbours = [one.pid for one in self._neighbours]
        for trainer in self._workers:
            self._ask(trainer, 0.0)
        for trainer in self._workers:
            self._answer(trainer)  # torch is loaded
        self._switch_neighbours(False)
        self._group: ControlGroup | None = None
        with suppress(OSError):
            self._group = ControlGroup()
            stack.callback(self._group.close)
        self.limited_by = "control group" if self._group else "signals"

    def _set_priority(self, policy: int, priority: int) -> None:
        with suppress(OSError):
            for pid in self.trainers:
                os.sched_setscheduler(pid, policy, os.sched_param(priority))

    @contextmanager
    def _disturbed(self, condition: str, rng: random.Random) -> Iterator[None]:
        is_limited = condition == "control group"
        self._set_priority(*((os.SCHED_OTHER, 0) if is_limited else (os.SCHED_FIFO, PRIORITY)))
        by_hand = ByHand(self.trainers)
        group: Switch = self._group or by_hand
        neighbours = self._switch_neighbours
        switches = {"neighbour": neighbours, "drift": neighbours, "stopped": by_hand, "control group": group}
        over = threading.Event()
        with self._group.holding(self.trainers) if is_limited and self._group else nullcontext():
            if condition not in switches:
                yield
                return
            disturber = threading.Thread(target=disturb, args=(condition, rng, over, switches[condition]))
            disturber.start()
            try:
                yield
            finally:
                over.set()
                disturber.join()

    def _switch_neighbours(self, on: bool) -> None:
        for one in self._neighbours:
            one.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def _ask(self, trainer: "subprocess.Popen[str]", slower: float) -> None:
        assert trainer.stdin is not None
        trainer.stdin.write(f"{slower}\n")
        trainer.stdin.flush()

    def _answer(self, trainer: "subprocess.Popen[str]") -> float:
        assert trainer.stdout is not None
        return float(trainer.stdout.readline())

    def duel(self, condition: str, *, slower: float, seed: int, quadruples: int = QUADRUPLES) -> list[Segment]:
        """The segments of one duel, until it is decided or its budget is used up."""
        lot, segments, began_s = random.Random(seed + 1), list[Segment](), time.monotonic()
        with self._disturbed(condition, random.Random(seed)):
            for position, variant in enumerate(islice(order(seed), SEGMENTS * quadruples)):
                trainer = lot.choice(self._workers)
                self._ask(trainer, slower if variant == "B" else 0.0)
                segments.append(Segment(position=position, variant=variant, seconds=self._answer(trainer)))
                is_over = time.monotonic() - began_s > LIMIT_S
                if len(segments) % SEGMENTS == 0 and (is_over or judge(segments).verdict):
                    break
        return segments


# --- counted


def measure(results: Results, *, duels: int, judged: Callable[[list[Segment]], dict[str, str]]) -> Iterator[str]:
    """Measure what is missing, a chunk of each condition in turn; yield a line for each chunk."""
    with ExitStack() as stack:
        machine = cache(lambda: Machine(stack))
        for start, condition in product(range(0, duels, CHUNK), CONDITIONS):
            size = min(CHUNK, duels - start)
            measured = partial(chunk, machine, condition, size, judged)
            figures = results.once(part_of(condition, start, size), measured)
            yield f"{condition:<13} {start:4}  " + "; ".join(f"{name}: {figures[name]['duel']}" for name in EFFECTS)


def chunks_of(results: Results, condition: str, *, duels: int) -> list[dict[str, Any]]:
    """Chunks of a condition that were measured so far."""
    parts = (part_of(condition, start, min(CHUNK, duels - start)) for start in range(0, duels, CHUNK))
    return [figures for part in parts if (figures := results.known(part))]


def part_of(condition: str, start: int, size: int) -> str:
    return f"{condition}/{start}+{size}"


def chunk(
    machine: Callable[[], Machine],
    condition: str,
    size: int,
    judged: Callable[[list[Segment]], dict[str, str]],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Each duel of A against A, and right after it one of A against the slower B: verdicts by effect and rule."""
    rows: dict[str, list[dict[str, str]]] = {effect: [] for effect in EFFECTS}
    load = os.getloadavg()[0]
    for effect, (slower, share) in EFFECTS.items():
        for _ in range(size * share // CHUNK):
            rows[effect].append(judged(machine().duel(condition, slower=slower, seed=int(rng.integers(2**31)))))
    figures = {
        effect: {rule: [row[rule] for row in by_duel] for rule in by_duel[0]} for effect, by_duel in rows.items()
    }
    return {"limited by": machine().limited_by, "load": [round(load, 2), round(os.getloadavg()[0], 2)], **figures}


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)
    {"worker": worker, "neighbour": neighbour}[sys.argv[1]]()

"""Cost of measuring for the steps of a script: a loop with our hooks and without them, in turn in one process.

    python benchmarks/script_overhead.py                   all of them, about 9 minutes on a CPU
    python benchmarks/script_overhead.py --pairs 40 cnn    one of them, briefly

Wanted: at most 0.5 % where a step takes 20 ms or more; below that the microseconds a step are what counts. Both are
medians over pairs with a bootstrap 95 % interval; `between` is the part of it that no step's time holds, in which
what was heard is worked through, many steps at once. In a turn without hooks every wrapper is taken out of torch, so it
is the script alone. Telemetry, which samples in a thread once a second, is timed apart.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import paired
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from workload.contract.spec import Device
from workload.measure.telemetry import Telemetry
from workload.measure.timing import Timeline
from workload.run.life import Region
from workload.steps import hooks
from workload.steps.program import Program
from workload.steps.session import Session, Stage
from workload.steps.step import Limits
from workload.steps.step_log import StepLog

ENOUGH_S, WANTED = 0.02, 0.005
SAMPLES = 100
# Steps after each change of hooks: Python specialises its code anew, which is over after two or three.
SETTLING = 3
Step = Callable[[], None]


def batches(*shape: int, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of a DataLoader."""
    data = TensorDataset(torch.randn(256, *shape), torch.randint(10, (256,)))
    while True:
        yield from DataLoader(data, batch_size=batch_size, sampler=RandomSampler(data, True, 10**6))


def tiny() -> Step:
    """Step of a linear layer, which takes hardly longer than our hooks."""
    model, data = nn.Linear(16, 10), batches(16, batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        x, y = next(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def accumulation() -> Step:
    """Step of eight batches and backward passes."""
    model, data = nn.Linear(16, 10), batches(16, batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for _ in range(8):
            x, y = next(data)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gan() -> Step:
    """Step with two optimizers and three backward passes."""
    judge, maker = nn.Linear(16, 1), nn.Linear(8, 16)
    first, second = (torch.optim.Adam(net.parameters()) for net in (judge, maker))
    data = batches(16, batch_size=8)

    def step() -> None:
        x, _ = next(data)
        first.zero_grad()
        (-judge(x).mean()).backward()
        made = maker(torch.randn(8, 8))
        judge(made.detach()).mean().backward()
        first.step()
        second.zero_grad()
        (-judge(made).mean()).backward()
        second.step()

    return step


def cnn() -> Step:
    """Step of three convolutions on 11 images of 48 x 48 pixels: just above `ENOUGH_S`, on one thread."""
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), batches(3, 48, 48, batch_size=11)

    def step() -> None:
        x, y = next(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop. `steps`: in a turn; `pairs`: default number of pairs; `threads`: of torch, None for its own number.

    On one thread long steps vary half as much, because threads wait for one another.
    """

    make: Callable[[], Step]
    steps: int
    pairs: int
    threads: int | None = None


LOOPS = {
    "tiny": Loop(make=tiny, steps=200, pairs=150),
    "accumulation": Loop(make=accumulation, steps=50, pairs=150),
    "gan": Loop(make=gan, steps=100, pairs=150),
    "cnn": Loop(make=cnn, steps=7, pairs=450, threads=1),
}


class Hooks:
    """Our hooks in torch, which can be taken out and put back."""

    def __init__(self, step_log: StepLog) -> None:
        data = torch.utils.data
        # As workload/steps/hooks.py patches them.
        self._known = [getattr(optimizers, f"_global_optimizer_{when}_hooks") for when in ("pre", "post")]
        iterator = vars(data.dataloader)["_BaseDataLoaderIter"]
        self._places = [(data.DataLoader, "__iter__"), (iterator, "__next__"), (torch.autograd, "backward")]
        self._places += [(torch.autograd, "grad"), (torch.amp.GradScaler, "step"), (torch, "save")]
        switches = (torch.no_grad, torch.inference_mode, torch.set_grad_enabled)
        self._places += [(switch, name) for switch in switches for name in ("__enter__", "__exit__")]
        originals = [getattr(owner, name) for owner, name in self._places]
        hooks.install(step_log)
        self.between_s, self._catch_up = 0.0, step_log.flush_events
        step_log.flush_events = self.flush_events  # type: ignore[method-assign]
        patched = [getattr(owner, name) for owner, name in self._places]
        self._attributes = {True: patched, False: originals}
        self._hooks = [dict(known) for known in self._known]

    def flush_events(self, *, is_over: bool = False) -> None:
        """Flush the step log, and add the seconds to `between_s`."""
        began_s = time.perf_counter()
        self._catch_up(is_over=is_over)
        self.between_s += time.perf_counter() - began_s

    def put(self, *, on: bool) -> None:
        """Put the hooks into torch, or take them out."""
        for (owner, name), value in zip(self._places, self._attributes[on], strict=True):
            setattr(owner, name, value)
        for known, ours in zip(self._known, self._hooks, strict=True):
            known.clear()
            known.update(ours if on else {})


def measured(loop: Loop, stack: ExitStack) -> tuple[Step, Hooks]:
    """Step of the loop, and the hooks of a session that times it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    program = Program(words=("loop.py",), module=None, path=folder / "loop.py", arguments=(), folder=folder)
    region = Region(folder, Device.CPU, Timeline())
    stack.callback(region.close)
    limits = Limits(warmup=1, iterations=10**9, samples_per_step=None)
    session = Session(limits, program, lambda *_: region, lambda: None, goes_on=True)
    ours, step = Hooks(StepLog(session)), loop.make()
    while session.stage is not Stage.MEASURED:
        step()
    return step, ours


def turn(step: Step, ours: Hooks, steps: int, *, on: bool) -> float:
    """Median seconds of a step, which excludes work that is done only between some steps."""
    ours.put(on=on)
    for _ in range(SETTLING):
        step()
    seconds = []
    for _ in range(steps):
        began_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began_s)
    return median(seconds)


def compare(loop: Loop, pairs: int) -> tuple[list[float], list[float], float]:
    """For each pair, seconds of a step without hooks and seconds that hooks add; and those added between steps.

    A pair has the order with, without, without, with, or the other way round.
    """
    order = random.Random(0)
    bare, added = [], []
    with ExitStack() as stack:
        step, ours = measured(loop, stack)
        ours.between_s = 0.0
        for _ in range(pairs):
            first = order.random() < 0.5
            seconds: dict[bool, float] = {True: 0.0, False: 0.0}
            for on in (first, not first, not first, first):
                seconds[on] += turn(step, ours, loop.steps, on=on) / 2
            bare.append(seconds[False])
            added.append(seconds[True] - seconds[False])
        ours.put(on=False)
    return bare, added, ours.between_s / (2 * pairs * (SETTLING + loop.steps))


def telemetry_s() -> float:
    """CPU seconds of a sample of the telemetry, which takes one per second."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "telemetry.csv"
        telemetry = stack.enter_context(Telemetry(path, device=Device.CPU, origin_s=0.0))
        began_s = time.thread_time()
        for _ in range(SAMPLES):
            telemetry.record()
        return (time.thread_time() - began_s) / SAMPLES


def main() -> int:
    """Exit code: 1 if hooks add more to a long step than is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", choices=[*LOOPS, []], default=[])
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--threads", type=int, help="of torch; as usual")
    given = parser.parse_args()
    usual = torch.get_num_threads()
    print(f"{'loop':<14}{'step':>10}  {'more':>8}  {'95 %':<18}{'us a step':>10}  {'95 %':<16}{'between':>10}")
    is_wanted = True
    for name in given.loops or LOOPS:
        loop = LOOPS[name]
        torch.set_num_threads(given.threads or loop.threads or usual)
        bare, added, between_s = compare(loop, given.pairs or loop.pairs)
        step_s = median(bare)
        middle, low, high = (between_s + bound for bound in paired.interval(added))
        share, share_low, share_high = (bound / step_s for bound in (middle, low, high))
        verdict = ""
        if step_s >= ENOUGH_S:
            verdict = "  too much" if share_low > WANTED else "  not certain" if share_high > WANTED else "  as wanted"
            is_wanted = is_wanted and share_low <= WANTED
        print(
            f"{name:<14}{step_s * 1e3:>7.2f} ms  {share:>8.2%}  {f'{share_low:.2%} to {share_high:.2%}':<18}"
            f"{middle * 1e6:>10.1f}  {f'{low * 1e6:.1f} to {high * 1e6:.1f}':<16}{between_s * 1e6:>10.1f}{verdict}",
            flush=True,
        )
    print(f"telemetry: {telemetry_s() * 1e6:.0f} us of CPU time a second")
    return 0 if is_wanted else 1


if __name__ == "__main__":
    sys.exit(main())

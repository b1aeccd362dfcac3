"""Many runs on many machines, of which some are preempted and some vanish: all complete, none twice, no machine left.

Backend, driver, records, uploads and fetches are the real code against a fake Compute Engine and a real server of Cloud
Storage; what a machine measures, and its minutes, are made up.
"""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher.protocol.records import LaunchPhase
from launcher.protocol.task import TaskRun
from launcher.sweep import rented
from launcher.sweep.places import Sweep
from launcher.sweep.work import SweepOutcome
from tests.launcher.backends.gcp.canned_cloud import QUICK, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import DURATIONS, Fault
from tests.launcher.sweep.cloudy import cloud_sweep, swept, t4
from workload.storage.inventory import sealed_in
from workload.storage.upload import upload

pytestmark = pytest.mark.world

# What machines take: a minute a run, and heartbeats in between.
TIMES = {**DURATIONS, LaunchPhase.RUN_ENDED: 60.0, LaunchPhase.UPLOADED: 1.0}


@dataclass(kw_only=True)
class Fates:
    """What befalls the machine of a run, by chances; a run that is tried again has another chance."""

    preempted: float
    lost: float
    tries: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, run: TaskRun) -> Fault | None:
        with self._lock:
            self.tries[run.run_key] += 1
            # Asked at every heartbeat, of which a run has four.
            chance = random.Random(f"{run.run_key} {self.tries[run.run_key]}").random() * 4
            if chance < self.lost:
                fate = Fault.VANISHES
            elif chance < self.lost + self.preempted:
                fate = Fault.PREEMPTED
            else:
                return None
            self.happened[fate] += 1
            return fate


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What came of it. `cpu_s`: of the driver's loop, without the requests that its helpers make meanwhile."""

    outcome: SweepOutcome
    runs: int
    at_home: Counter[str]
    measured: Counter[int]
    machines: int
    left: int
    happened: Counter[str]
    seconds: float
    simulated_s: float
    cpu_s: float
    calls: dict[str, int]

    def lines(self) -> list[str]:
        """For a person."""
        asked = ", ".join(f"{name} {count}" for name, count in sorted(self.calls.items(), key=lambda one: -one[1])[:8])
        return [
            f"{self.runs} runs asked for, {len(self.at_home)} at home, each {sorted(set(self.at_home.values()))} times",
            f"{self.machines} machines in all, {self.left} left; {dict(self.happened)}",
            f"{self.simulated_s:.0f} simulated s in {self.seconds:.0f} s, of which the loop took {self.cpu_s:.1f} s",
            f"calls: {asked}",
        ]


def simulate(cloud: Cloud, *, machines: int, runs_each: int, preempted: float, lost: float, name: str) -> Crowd:
    """A block per machine, each with so many configurations."""
    fates = Fates(preempted=preempted, lost=lost)
    cloud.vm.fate_of = fates
    cloud.vm.upload = lambda folder: upload(cloud.bucket, folder)
    sweep: Sweep = cloud_sweep(t4(spot=True), name=name, blocks=machines, batch_size=list(range(1, runs_each + 1)))
    keys = {run.run_key for run in sweep.places[0].runs}
    before_s, began_s, loop = time.monotonic(), cloud.clock.now(), _LoopTime()
    with loop:
        outcome = swept(cloud, sweep)
    at_home = Counter(
        one.run_key for one in sealed_in(cloud.output) if one.run_key in keys and one.status == "completed"
    )
    return Crowd(
        outcome=outcome,
        runs=len(keys),
        at_home=at_home,
        measured=Counter(len(run_ids) for key, run_ids in cloud.vm.sealed.items() if key in keys),
        machines=len(cloud.fake.all_vms),
        left=len(cloud.fake.instances),
        happened=fates.happened,
        seconds=time.monotonic() - before_s,
        simulated_s=cloud.clock.now() - began_s,
        cpu_s=loop.cpu_s,
        calls=dict(outcome.places[0].calls),
    )


class _LoopTime:
    """How long the loops of rented places compute meanwhile."""

    cpu_s = 0.0

    def __enter__(self) -> None:
        self._plain = plain = rented.RentedPlace.run

        def timed(place: Any) -> None:
            began_s = time.thread_time()
            try:
                plain(place)
            finally:
                self.cpu_s += time.thread_time() - began_s

        rented.RentedPlace.run = timed  # type: ignore[method-assign] # what it takes is what is asked

    def __exit__(self, *_: object) -> None:
        rented.RentedPlace.run = self._plain  # type: ignore[method-assign]


def check(crowd: Crowd) -> None:
    assert crowd.outcome.exit_code == 0, crowd.outcome.text()
    assert len(crowd.at_home) == crowd.runs
    assert set(crowd.at_home.values()) == {1}
    assert crowd.measured == {1: crowd.runs}
    assert crowd.left == 0
    # One list of machines a look, and few questions for a machine by itself: when it is asked for and when it is gone.
    assert crowd.calls["compute.instances.get"] <= 10 * crowd.machines


@pytest.mark.slow
def test_a_few_machines_of_which_many_are_lost(clouds: Clouds) -> None:
    with clouds(durations={**QUICK, LaunchPhase.RUN_ENDED: 60.0}) as cloud:
        crowd = simulate(cloud, machines=4, runs_each=3, preempted=0.2, lost=0.1, name="a-few")
        check(crowd)
        assert crowd.machines > 4


@pytest.mark.timeout(1800)
@pytest.mark.night(part="thousand")
def test_a_thousand_runs_on_a_hundred_machines(clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(scale=4, durations=TIMES) as cloud:
        crowd = simulate(cloud, machines=100, runs_each=10, preempted=0.05, lost=0.01, name="crowd")
        with capsys.disabled():
            print("", *crowd.lines(), sep="\n")
        check(crowd)
        assert crowd.happened["preempted"] >= 20
        assert crowd.happened["vanishes"] >= 1

"""Energy of the measured steps, from counters of NVML or RAPL, else from power samples; and power without load.

RAPL: docs.kernel.org/power/powercap/powercap.html. Often only root may read it, and most virtual machines lack it.
"""

import math
import os
import time
from bisect import bisect, bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from workload.contract.record_sections import LONGEST_UPDATE_S, Energy, EnergySource
from workload.contract.spec import Device
from workload.environment.device import GpuSensors
from workload.environment.machine import HostSystem

POWERCAP, UJ_PER_J = "/sys/class/powercap", 1e6
# No package of a CPU is sold with a higher limit (2026-11), and memory takes less. A counter that could have begun
# again twice is not used.
LARGEST_PACKAGE_W = 500.0
# A counter is used if its error by the time between two updates is at most this.
LARGEST_UNCERTAINTY = 0.05
# Least share of the time between two readings that is time of steps. A smaller rest, such as a short validation, is
# taken to need the same power as the steps. A larger one, up to half of the time, is subtracted by power samples.
LEAST_SHARE_OF_STEPS, LEAST_SHARE_WITH_SAMPLES = 0.95, 0.5
# Marks of a script's steps are read once a second. Meanwhile the script trains on.
LONGEST_LATE_S = 1.5
# Power is sampled once a second. A sample is used for at most this time before and after it.
SAMPLE_REACH_S, LEAST_SAMPLES = 1.5, 10


@dataclass(frozen=True, kw_only=True)
class PowerSample:
    """Power of a GPU at `t_s` seconds after the run began; `is_idle`: no kernel ran in the time before."""

    t_s: float
    power_w: float
    is_idle: bool


@dataclass(frozen=True, kw_only=True)
class Counter:
    """Growing total of energy. `read_j` returns joules, None if unreadable; at `wraps_at_j` it begins again from 0."""

    read_j: Callable[[], float | None]
    wraps_at_j: float = math.inf

    def growth_j(self, before_j: float | None, after_j: float | None, passed_s: float) -> float:
        """Energy between two readings; infinite if a reading is unknown, or if the counter was reset in between."""
        if before_j is None or after_j is None or passed_s * LARGEST_PACKAGE_W >= self.wraps_at_j:
            return math.inf
        return (after_j - before_j) % self.wraps_at_j


def rapl_counters(machine: HostSystem) -> list[Counter]:
    """Counters of the CPU's packages, also AMD's, and of their memory where it is counted apart; empty without RAPL.

    A package includes its parts `core` and `uncore`, and `psys` includes the packages. Folders `intel-rapl-mmio:0` hold
    the same packages again.
    """

    def read_j(path: str) -> float | None:
        microjoules = machine.integer(path)
        return None if microjoules is None else microjoules / UJ_PER_J

    zones = [f"{POWERCAP}/{zone.name}" for zone in sorted(machine.path(POWERCAP).glob("intel-rapl:*"))]
    zones = [zone for zone in zones if (machine.text(f"{zone}/name") or "").startswith(("package", "dram"))]
    # Without its range, nobody can tell how often a counter has begun again.
    ranges_j = [read_j(f"{zone}/max_energy_range_uj") or 0.0 for zone in zones]
    return [
        Counter(read_j=partial(read_j, f"{zone}/energy_uj"), wraps_at_j=range_j)
        for zone, range_j in zip(zones, ranges_j, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Metered:
    """Energy between two readings of all counters, which were `seconds` apart."""

    joules: float
    seconds: float
    source: EnergySource


class EnergyMeter:
    """Reads the counters of a run's devices at the beginning and the end of a time, never in between."""

    def __init__(
        self, counters: Sequence[Counter], source: EnergySource, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self.counters, self._source, self._now_s = counters, source, now_s
        self.begin()

    @classmethod
    def of(cls, device: Device, *, ranks: int = 1) -> "EnergyMeter":
        """Meter of the devices that a run uses; it has no counters for an Apple GPU.

        `ranks`: processes of the run, each with a GPU of its own, the first ones that torch sees. A single process may
        use several GPUs.
        """
        if ranks > int(os.environ.get("LOCAL_WORLD_SIZE", ranks)):
            return cls([], EnergySource.RAPL)  # nobody reads the counters of other machines
        if device is not Device.CUDA:
            return cls(rapl_counters(HostSystem()) if device is Device.CPU else [], EnergySource.RAPL)
        every = range(torch.cuda.device_count())
        used = (
            {torch.cuda.current_device(), *filter(torch.cuda.memory_allocated, every)} if ranks == 1 else range(ranks)
        )
        # Ranks that do not see each other's GPU cannot read its counter.
        gpus = [GpuSensors.open(index) if index in every else None for index in sorted(used)]
        counters = [Counter(read_j=gpu.energy_j if gpu else lambda: None) for gpu in gpus]
        return cls(counters, EnergySource.NVML_COUNTER)

    def begin(self) -> None:
        """Begin the time, which has also begun when the meter was created."""
        self._began = self._read()

    def end(self) -> Metered | None:
        """Energy since the beginning, of all devices; None if that of any is unknown, or if the time is too short."""
        (began_s, before), (ended_s, after) = self._began, self._read()
        passed_s = ended_s - began_s
        readings = zip(self.counters, before, after, strict=True)
        joules = sum(counter.growth_j(first, last, passed_s) for counter, first, last in readings)
        is_resolved = passed_s * LARGEST_UNCERTAINTY >= LONGEST_UPDATE_S[self._source]
        # A counter that stands still is not supported: no device works without energy.
        is_known = is_resolved and 0 < joules < math.inf
        return Metered(joules=joules, seconds=passed_s, source=self._source) if is_known else None

    def _read(self) -> tuple[float, list[float | None]]:
        return self._now_s(), [counter.read_j() for counter in self.counters]


def of_steps(
    metered: Metered | None,
    samples: Sequence[PowerSample],
    *,
    steps_s: float,
    span: tuple[float, float],
    pauses: Sequence[tuple[float, float]],
    goes_on: bool = False,
) -> Energy | None:
    """Energy of the steps in `span`, beginning and end; they took `steps_s` seconds without the `pauses`.

    `metered`: energy by the counters, from the beginning of the steps on. `samples`: power of the run's only GPU, used
    for larger pauses and without counters. `span` and `pauses` are in seconds since the run began. `goes_on`: further
    steps followed, so that a counter that was read a little late has their power.
    """
    share = min(1.0, steps_s / metered.seconds) if metered else 0.0
    late_s = metered.seconds - (span[1] - span[0]) if metered else 0.0
    further_s = late_s if goes_on and late_s <= LONGEST_LATE_S else 0.0
    if metered and steps_s >= LEAST_SHARE_OF_STEPS * (metered.seconds - further_s):
        return Energy(joules=metered.joules * share, source=metered.source, seconds=steps_s)
    if metered and share >= LEAST_SHARE_WITH_SAMPLES:
        # Pauses, and the time until the counter was read.
        rest_j = _sampled_j(samples, [*pauses, (span[1], span[0] + metered.seconds)])
        if rest_j < metered.joules:
            return Energy(joules=metered.joules - rest_j, source=metered.source, seconds=steps_s)
    joules = _sampled_j(samples, [span]) - _sampled_j(samples, pauses)
    if not 0 < joules < math.inf or sum(span[0] <= sample.t_s <= span[1] for sample in samples) < LEAST_SAMPLES:
        return None
    return Energy(joules=joules, source=EnergySource.NVML_POWER, seconds=steps_s)


def _sampled_j(samples: Sequence[PowerSample], spans: Sequence[tuple[float, float]]) -> float:
    """Energy in several times together, each moment with the nearest sample's power; infinite if a moment has none."""
    total_j = 0.0
    times = [-math.inf, *(sample.t_s for sample in samples), math.inf]
    middles = [(earlier + later) / 2 for earlier, later in pairwise(times)]
    for began_s, ended_s in spans:
        known_s = 0.0
        # A script may have thousands of pauses, and a run thousands of samples.
        for number in range(bisect(middles, began_s) - 1, bisect_left(middles, ended_s)):
            sample = samples[number]
            since_s = max(began_s, middles[number], sample.t_s - SAMPLE_REACH_S)
            part_s = max(0.0, min(ended_s, middles[number + 1], sample.t_s + SAMPLE_REACH_S) - since_s)
            known_s, total_j = known_s + part_s, total_j + part_s * sample.power_w
        if not math.isclose(known_s, max(0.0, ended_s - began_s), abs_tol=1e-6):
            return math.inf
    return total_j


def idle_w(samples: Sequence[PowerSample], until_s: float) -> float | None:
    """Lowest power without load before `until_s`, in watts; None if the GPU was never seen without load."""
    return min((sample.power_w for sample in samples if sample.is_idle and sample.t_s < until_s), default=None)

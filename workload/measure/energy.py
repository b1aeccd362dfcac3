"""Energy of the measured steps, from counters of NVML or RAPL, else from power samples; and power without load.

RAPL: docs.kernel.org/power/powercap/powercap.html. Its counters are often readable by root alone, and absent in most
virtual machines.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from workload.contract import ranks
from workload.contract.record_sections import LONGEST_UPDATE_S, Energy, EnergySource
from workload.contract.spec import Device
from workload.environment.device import GpuSensors
from workload.environment.machine import HostSystem

POWERCAP = "/sys/class/powercap"
UJ_PER_J = 1e6
# No package of a CPU is sold with a higher limit (2026-11), and memory takes less. A counter that could have begun
# again twice is not used.
LARGEST_PACKAGE_W = 500.0
# A counter is used if its error by the time between two updates is at most this.
LARGEST_UNCERTAINTY = 0.05
# Least share of the time between two readings that is time of steps. The rest, such as a validation, is taken to need
# the same power as the steps.
LEAST_SHARE_OF_STEPS = 0.95
# Power is sampled once a second. With fewer samples, or a longer time without one, their integral is not used.
LEAST_SAMPLES, LONGEST_GAP_S = 10, 3.0
# File of a rank with the energy of its GPU.
RANK_FILE = "energy.json"


@dataclass(frozen=True, kw_only=True)
class PowerSample:
    """Power of a GPU at `t_s` seconds after the run began; `is_idle`: no kernel ran in the time before."""

    t_s: float
    power_w: float
    is_idle: bool


@dataclass(frozen=True, kw_only=True)
class Counter:
    """Growing total of energy. `read_j` returns joules since some moment, None if they cannot be read.

    `wraps_at_j`: the total at which the counter begins again from 0; None if it never does.
    """

    read_j: Callable[[], float | None]
    wraps_at_j: float | None = None

    def growth_j(self, before_j: float | None, after_j: float | None, passed_s: float) -> float | None:
        """Energy between two readings; None if a reading is unknown, or if the counter was reset in between."""
        if before_j is None or after_j is None:
            return None
        if self.wraps_at_j is not None and passed_s * LARGEST_PACKAGE_W > self.wraps_at_j:
            return None
        grown_j = after_j - before_j
        if grown_j < 0 and self.wraps_at_j is not None:
            grown_j += self.wraps_at_j
        return grown_j if grown_j >= 0 else None


def gpu_counters(indices: Sequence[int]) -> list[Counter]:
    """A counter for each of these GPUs (torch's numbers); it reads None if the GPU does not count its energy."""
    gpus = map(GpuSensors.open, indices)
    return [Counter(read_j=gpu.energy_j if gpu else lambda: None) for gpu in gpus]


def rapl_counters(machine: HostSystem) -> list[Counter]:
    """Counters of the CPU's packages and of their memory where it is counted apart; empty without RAPL.

    AMD's CPUs have them under the same names. A package includes its parts `core` and `uncore`, and `psys` includes the
    packages.
    """
    counters = []
    # Folders `intel-rapl-mmio:0` hold the same packages again.
    for zone in sorted(machine.path(POWERCAP).glob("intel-rapl:*")):
        folder = f"{POWERCAP}/{zone.name}"
        name, range_uj = machine.text(f"{folder}/name") or "", machine.integer(f"{folder}/max_energy_range_uj")
        if name.startswith("package") or name == "dram":
            # Without its range, nobody can tell how often the counter has begun again.
            read_j = partial(_rapl_j, machine, f"{folder}/energy_uj") if range_uj else lambda: None
            counters.append(Counter(read_j=read_j, wraps_at_j=range_uj / UJ_PER_J if range_uj else None))
    return counters


def _rapl_j(machine: HostSystem, path: str) -> float | None:
    microjoules = machine.integer(path)
    return None if microjoules is None else microjoules / UJ_PER_J


@dataclass(frozen=True, kw_only=True)
class Metered:
    """Energy between two readings of all counters, which were `seconds` apart."""

    joules: float
    seconds: float
    source: EnergySource

    @property
    def is_resolved(self) -> bool:
        """Whether the counter was updated often enough in this time."""
        return self.seconds * LARGEST_UNCERTAINTY >= LONGEST_UPDATE_S[self.source]


class EnergyMeter:
    """Reads the counters of a run's devices at the beginning and the end of a time, never in between."""

    def __init__(
        self, counters: Sequence[Counter], source: EnergySource, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._counters, self._source, self._now_s = counters, source, now_s
        self._began = self._read()

    @classmethod
    def of(cls, device: Device, *, is_alone: bool = True) -> "EnergyMeter":
        """Meter of the devices that this process uses; it has no counters for an Apple GPU.

        `is_alone`: False in a rank, which uses the current GPU alone. A single process may use several.
        """
        if device is not Device.CUDA:
            return cls(rapl_counters(HostSystem()) if device is Device.CPU else [], EnergySource.RAPL)
        current, every = torch.cuda.current_device(), range(torch.cuda.device_count() if is_alone else 0)
        used = {current, *(index for index in every if torch.cuda.memory_allocated(index))}
        return cls(gpu_counters(sorted(used)), EnergySource.NVML_COUNTER)

    @property
    def is_of_one(self) -> bool:
        """Whether this process uses one device."""
        return len(self._counters) == 1

    def begin(self) -> None:
        """Begin the time again; it has begun when the meter was created."""
        self._began = self._read()

    def end(self) -> Metered | None:
        """Energy since the beginning, of all devices; None if that of any device is unknown."""
        (began_s, before), (ended_s, after) = self._began, self._read()
        passed_s = ended_s - began_s
        grown = [each.growth_j(*pair, passed_s) for each, *pair in zip(self._counters, before, after, strict=True)]
        known = [joules for joules in grown if joules is not None]
        # A counter that stands still is not supported: no device works without energy.
        if not sum(known) or len(known) < len(grown):
            return None
        return Metered(joules=sum(known), seconds=passed_s, source=self._source)

    def _read(self) -> tuple[float, list[float | None]]:
        return self._now_s(), [counter.read_j() for counter in self._counters]


def of_steps(
    metered: Metered | None,
    samples: Sequence[PowerSample],
    *,
    steps_s: float,
    span: tuple[float, float],
    pauses: Sequence[tuple[float, float]],
) -> Energy | None:
    """Energy of the steps in `span`, beginning and end; they took `steps_s` seconds without the `pauses`.

    `metered`: the counters' energy, used if nearly all of it is that of the steps. `samples`: power of the run's only
    GPU, used otherwise. `span` and `pauses` are in seconds since the run began.
    """
    if metered and metered.is_resolved and steps_s >= LEAST_SHARE_OF_STEPS * metered.seconds:
        joules = metered.joules * min(1.0, steps_s / metered.seconds)
        return Energy(joules=joules, source=metered.source, seconds=steps_s)
    if sum(span[0] <= sample.t_s <= span[1] for sample in samples) < LEAST_SAMPLES:
        return None
    whole_j = _integral_j(samples, *span)
    pauses_j = [_integral_j(samples, since_s, until_s) for since_s, until_s in pauses]
    known_j = [joules for joules in pauses_j if joules is not None]
    if whole_j is None or len(known_j) < len(pauses_j):
        return None
    return Energy(joules=whole_j - sum(known_j), source=EnergySource.NVML_POWER, seconds=steps_s)


def _integral_j(samples: Sequence[PowerSample], began_s: float, ended_s: float) -> float | None:
    """Integral of the power over a time, linear between samples; None if no sample is near a part of it."""
    within = [(sample.t_s, sample.power_w) for sample in samples if began_s < sample.t_s < ended_s]
    ends = []
    for at_s in (began_s, ended_s):
        before = max((one for one in samples if one.t_s <= at_s), key=lambda one: one.t_s, default=None)
        after = min((one for one in samples if one.t_s >= at_s), key=lambda one: one.t_s, default=None)
        first, last = before or after, after or before
        if first is None or last is None or max(at_s - first.t_s, last.t_s - at_s) > LONGEST_GAP_S:
            return None
        passed_s = last.t_s - first.t_s
        share = (at_s - first.t_s) / passed_s if passed_s else 0.0
        ends.append((at_s, first.power_w + share * (last.power_w - first.power_w)))
    points = [ends[0], *within, ends[1]]
    if any(after[0] - before[0] > LONGEST_GAP_S for before, after in pairwise(points)):
        return None
    return sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairwise(points))


def idle_w(samples: Sequence[PowerSample], until_s: float) -> float | None:
    """Lowest power without load before `until_s`, in watts; None if the GPU was never seen without load."""
    return min((sample.power_w for sample in samples if sample.is_idle and sample.t_s < until_s), default=None)


# --- several ranks, each with a GPU of its own


def leave_for_rank_0(folder: Path, metered: Metered | None) -> None:
    """Write the energy of a rank's GPU into the rank's own folder."""
    known = metered if metered and metered.is_resolved else None
    text = json.dumps({"joules": known and known.joules, "seconds": known and known.seconds})
    (folder / RANK_FILE).write_text(text, encoding="utf-8")


def of_all_ranks(bundle: Path, number: int, steps_s: float) -> Energy | None:
    """Sum of the energy of `number` ranks in a bundle, whose steps took `steps_s` seconds; None if any is unknown."""
    joules = list(_of_ranks(bundle, number, steps_s))
    if not joules or len(joules) < number:
        return None
    return Energy(joules=sum(joules), source=EnergySource.NVML_COUNTER, seconds=steps_s)


def _of_ranks(bundle: Path, number: int, steps_s: float) -> Iterator[float]:
    for rank in range(number):
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads((bundle / ranks.FOLDER / str(rank) / RANK_FILE).read_text(encoding="utf-8"))
            joules, seconds = float(known["joules"]), float(known["seconds"])
            if steps_s >= LEAST_SHARE_OF_STEPS * seconds:
                yield joules * min(1.0, steps_s / seconds)

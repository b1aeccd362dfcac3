"""Results of measuring ceilings: rates, their reliability, and their text for people."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import ceil
from typing import Any, Self

import numpy as np

from workload.contract import record
from workload.contract.text import counted, cpu_share, percent, si

# Limit of p95 over p5 for a clean rate. This ratio was 1.04 to 1.12 on an idle virtual machine of two CPUs. For a GPU
# slowed down by its power limit this number is a guess, because no such GPU was measured.
WIDEST_SPREAD = 2.0
FEWEST_SAMPLES = 3
# A smaller slowdown of the last third is noise: on an idle machine the medians of thirds differ by 1 % to 2 %.
BURST_MARGIN = 0.05
# Time limit of all attempts together. Another attempt begins only if it would end in time, assuming that it takes as
# long as the longest attempt so far. On a busy machine a probe takes many times its own limit, while the user waits for
# the run.
MOST_S = 60.0
# Attempts at a clean measurement.
ATTEMPTS = 2


@dataclass(frozen=True, kw_only=True)
class MeasuredRate(record.MeasuredRate):
    """FLOP or bytes per second over `samples` samples. `size`: edge of the matrices, or bytes of an array.

    The device was loaded for `load_s` seconds before the samples. `first_third`: median over the first third of the
    load (without a load, of the samples); `last_third`: median over the last third of the samples. If a loaded device
    slowed down in between, `burst` equals `first_third`, and `sustained`, which is then the roof, equals `last_third`;
    else both are None.

    `conditions`: a GPU's clock, power and temperature halfway through the samples, under load; `conditions_at_start`
    and `conditions_at_end`: the same at the start and at the last sample. Only on a CPU: `cpus`, number of CPUs that
    the samples got, `cpus_waited`, number of their threads that waited for one, and `cpus_wanted`, number of CPUs that
    their threads could use. If other processes took CPUs, all rates are the same: see `Samples.seconds`.
    """

    median: float
    best: float
    min: float
    p5: float
    p95: float
    samples: int
    size: int
    load_s: float = 0.0

    @classmethod
    def of(cls, work: float, taken: "Samples", *, size: int) -> Self:
        """Rate of a call that computes `work` FLOP or moves `work` bytes, from the samples `taken`."""
        rates = work / np.array(taken.seconds)
        p5, median, p95 = (float(q) for q in np.quantile(rates, (0.05, 0.5, 0.95)))
        early = work / np.array(taken.load_call_s or taken.call_s)
        first, last = float(np.median(early[: ceil(len(early) / 3)])), float(np.median(rates[-ceil(len(rates) / 3) :]))
        # Look for a slowdown only after a load: samples of less than a second show other work on the machine rather
        # than a limit of the device.
        slowed = bool(taken.load_call_s) and last < (1 - BURST_MARGIN) * first
        return cls(
            median=median,
            best=float(rates.max()),
            min=float(rates.min()),
            p5=p5,
            p95=p95,
            samples=len(taken.call_s),
            size=size,
            load_s=taken.load_s,
            first_third=first,
            last_third=last,
            burst=first if slowed else None,
            sustained=last if slowed else None,
            conditions=taken.conditions,
            conditions_at_start=taken.conditions_at_start,
            conditions_at_end=taken.conditions_at_end,
            cpus=taken.cpus,
            cpus_waited=taken.cpus_waited,
            cpus_wanted=taken.cpus_wanted,
        )

    @property
    def slowdown(self) -> str | None:
        """Slowdown of a loaded device, with its clocks, as text; None if there was none."""
        if self.burst is None or self.sustained is None:
            return None
        ends = [(reading or {}).get("sm_clock_mhz") for reading in (self.conditions_at_start, self.conditions_at_end)]
        clocks = f", SM clock {ends[0]} to {ends[1]} MHz" if None not in ends else ""
        return f"{percent(1 - self.sustained / self.burst)} slower under load{clocks}"

    @property
    def starved(self) -> str | None:
        """Text on the CPUs that the samples got if other processes took CPUs; else None."""
        if not self.is_by_cpu_time or self.cpus is None:
            return None
        return f"the machine was busy: the samples got {cpu_share(self.cpus, self.cpus_wanted or 0.0)}"

    @property
    def doubt(self) -> str | None:
        """Reason why this rate may be far below the machine's ability; None if the rate can be used."""
        if self.samples < FEWEST_SAMPLES and not self.is_by_cpu_time:
            return f"there was only time for {counted(self.samples, 'sample')}"
        if self.p95 > WIDEST_SPREAD * self.p5:
            return f"the samples differ too much, {self.p95 / self.p5:.1f} x from p5 to p95"
        return None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of `asdict`. Raises TypeError or ValueError for anything that is no rate."""
        rate = cls(**value)
        numbers = (rate.median, rate.best, rate.min, rate.p5, rate.p95, rate.samples, rate.size)
        # A NaN fails the comparison too.
        if not all(number > 0 for number in numbers):
            raise ValueError(f"a rate must be positive; got {numbers}")
        return rate


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Seconds per call: `call_s` of each sample, `load_call_s` of each timing during the load before the samples.

    Other fields: see `MeasuredRate`.
    """

    call_s: list[float]
    load_call_s: list[float] = field(default_factory=list)
    load_s: float = 0.0
    conditions: Mapping[str, float | None] | None = None
    conditions_at_start: Mapping[str, float | None] | None = None
    conditions_at_end: Mapping[str, float | None] | None = None
    cpus: float | None = None
    cpus_waited: float | None = None
    cpus_wanted: float | None = None

    @property
    def seconds(self) -> list[float]:
        """Seconds per call by the clock or, if other processes took CPUs, their mean without the waits for a CPU.

        Other threads' CPU time is counted in ticks of up to 4 ms, so only the mean over all samples is exact.
        """
        if self.cpus is None or not record.MeasuredRate(cpus=self.cpus, cpus_wanted=self.cpus_wanted).is_by_cpu_time:
            return self.call_s
        idle = (self.cpus_wanted or 0.0) - self.cpus
        # A thread that waits for a CPU makes others wait for it, or spin: all work is stretched by this share.
        share = self.cpus / (self.cpus + (idle if self.cpus_waited is None else self.cpus_waited))
        return [share * sum(self.call_s) / len(self.call_s)] * len(self.call_s)


@dataclass(kw_only=True)
class Attempts:
    """Attempts at clean rates, all within one time limit. `unavailable`: reason for each missing rate.

    `gave_up`: reason why no further probe begins, else None. `is_busy`: a probe was disturbed twice by other work, so
    that further probes are not repeated for that reason.
    """

    began_s: float
    report: Callable[[str], None] = lambda _: None
    now_s: Callable[[], float] = time.perf_counter
    unavailable: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0
    gave_up: str | None = None
    is_busy: bool = False

    def first_clean(self, name: str, measure_rate: Callable[[], MeasuredRate]) -> MeasuredRate | None:
        """Measured rate. A disturbed measurement is repeated once; None if the last one cannot be used either."""
        for attempt in range(1, ATTEMPTS + 1):
            began_s = self.now_s()
            rate = measure_rate()
            self.longest_s = max(self.longest_s, self.now_s() - began_s)
            # A further attempt would end too late.
            is_over = self.now_s() - self.began_s + self.longest_s > MOST_S
            is_last = attempt == ATTEMPTS or is_over
            if rate.doubt is None and (is_last or self.is_busy or not rate.starved):
                self.is_busy = rate.is_by_cpu_time
                if rate.starved:
                    self.report(f"{name}: {rate.starved}: the ceiling is by CPU time")
                if rate.slowdown:
                    self.report(f"{name}: {rate.slowdown}: the sustained rate is the ceiling")
                return rate
            if is_last:
                break
            self.report(f"{name}: {rate.doubt or rate.starved}; measuring again")
        self.unavailable[name] = f"{rate.doubt}, in {counted(attempt, 'attempt')}"
        if is_over:
            self.gave_up = self.unavailable[name]
        else:
            self.report(f"{name}: {self.unavailable[name]}")
        return None


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Rates that one machine reached; `unavailable`: reason for each missing rate. `measured_at`: UTC in ISO 8601.

    `machine_id` tells machines of one kind apart: the nodes of a cluster may share an output folder.
    """

    flop_per_s: Mapping[str, MeasuredRate]
    bytes_per_s: Mapping[str, MeasuredRate]
    unavailable: Mapping[str, str]
    method: str
    measured_at: str
    elapsed_s: float
    device: str
    machine_id: str
    software: str
    threads: int

    def to_json(self) -> dict[str, Any]:
        """Fields of this object by name, as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises KeyError, TypeError, ValueError or AttributeError for another form."""
        rates = {
            name: {key: MeasuredRate.from_json(rate) for key, rate in value[name].items()}
            for name in ("flop_per_s", "bytes_per_s")
        }
        return cls(**{**value, **rates})

    def age_s(self, now: datetime) -> float:
        """Seconds since the measurement; negative if the clock was set back.

        Raises ValueError if `measured_at` is not in ISO 8601.
        """
        return (now - datetime.fromisoformat(self.measured_at)).total_seconds()


def table(measured: Ceilings) -> str:
    """Text with a line for each measured rate and for each missing rate."""
    units = [(measured.flop_per_s, "FLOP/s"), (measured.bytes_per_s, "B/s")]
    lines = [f"{measured.device}, {measured.software}, {measured.threads} threads"]
    lines += [_row(name, rate, unit) for rates, unit in units for name, rate in rates.items()]
    return "\n".join([*lines, *(f"{name:<6}unavailable: {why}" for name, why in measured.unavailable.items())])


def _row(name: str, rate: MeasuredRate, unit: str) -> str:
    figures = {"p5": rate.p5, "p95": rate.p95, "best": rate.best}
    if rate.burst is not None:
        figures["burst"] = rate.burst
    spread = ", ".join(f"{what} {si(value, unit, 4)}" for what, value in figures.items())
    samples = counted(rate.samples, "sample")
    ending = f"{samples}; sustained: {rate.slowdown}" if rate.slowdown else samples
    return f"{name:<6}{si(rate.roof_per_s or 0.0, unit, 4):>14}  ({spread}; {ending})"

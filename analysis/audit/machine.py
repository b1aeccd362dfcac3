"""Rules on the machine: clocks, memory, other work, and debug settings that slow a run down."""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.audit.rule import AuditEvidence, Hit, Rule, Severity, each_case
from analysis.loading.cases import Case
from analysis.variance.causes import (
    LEAST_CLOCK_LOWERED,
    LEAST_TIME_SHARE,
    SPILL_RATIO,
    Reason,
    capped_by_design,
    cgroup_throttled,
    clock_reasons,
    competed,
    competition_words,
    spills,
    steal,
)
from workload.contract import peaks
from workload.contract.text import cpu_share, percent
from workload.contract.verdict import COMPETED_SHARE, LEAST_WAITED_CPUS, LEAST_WAITED_SHARE

_VARIABLES = Path(__file__).with_name("debug_variables.toml")
# If the power limit lowers the clock in less than half of the samples, only short peaks of the run's power reach the
# limit, which is normal.
LEAST_CAPPED = 0.5


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable that slows or changes runs unless it has a harmless value."""

    name: str
    harmless: tuple[str, ...]
    effect: str
    source: str


@functools.cache
def variables() -> Mapping[str, Variable]:
    """Rows of debug_variables.toml by name of the variable."""
    rows = tomllib.loads(_VARIABLES.read_text(encoding="utf-8"))
    return {
        name: Variable(name=name, harmless=tuple(row["harmless"]), effect=row["effect"], source=row["source"])
        for name, row in rows.items()
    }


def throttled(case: Case) -> str | None:
    shares = {reason: share for reason, share in clock_reasons(case).items() if reason is not Reason.POWER_CAP}
    if not shares:
        return None
    _, temperatures = case.samples("temperature_c")
    heat = f"; up to {temperatures.max():.0f} °C" if temperatures.size else ""
    return ", ".join(f"{reason} in {percent(share)} of the samples" for reason, share in shares.items()) + heat


def power_capped(case: Case) -> str | None:
    share = clock_reasons(case).get(Reason.POWER_CAP, 0.0)
    if share < LEAST_CAPPED or capped_by_design(case):
        return None
    _, watts = case.samples("power_w")
    drawn = f" at {watts.mean():.0f} W" if watts.size else ""
    return f"the power limit lowered the clock in {percent(share)} of the samples{drawn}"


def spilling(evidence: AuditEvidence) -> Iterator[Hit]:
    for run_id, spill in spills(evidence.cases).items():
        yield Hit(subject=(run_id,), figure=f"{spill.words}: {spill.ratio:.2f} x", cure=spill.cure)


def competing(case: Case) -> str | None:
    lost = competed(case)
    if lost is None:
        return None
    if case.record.timing.cpus_waited is not None:
        return competition_words(case)
    waits = case["data_wait_fraction"] or 0.0
    got = f"the run got {cpu_share((1 - lost) * case['threads'], case['threads'])}"
    if waits <= LEAST_TIME_SHARE:
        return got
    return f"{got} in the {percent(1 - waits)} of the time in which it did not wait for data"


def cpu_time_taken(case: Case) -> str | None:
    """Text on the shares of CPU time withheld by a quota or by the hypervisor; None if there are none."""
    parts = {"a CPU quota": cgroup_throttled(case), "other virtual machines (steal)": steal(case)}
    losses = [f"{percent(share, decimals=1)} of the CPU time went to {what}" for what, share in parts.items() if share]
    return ", ".join(losses) or None


def debug_variables(case: Case) -> str | None:
    software = case.record.environment.software
    value_of = (software.variables if software else None) or {}
    harmful = [
        f"{name}={value_of[name]}: {variable.effect}"
        for name, variable in variables().items()
        if name in value_of and value_of[name] not in variable.harmless
    ]
    return "; ".join(harmful) or None


def other_bandwidth(case: Case) -> str | None:
    """Text on a memory clock and a bus width that contradict the device's name; else None."""
    gpu = peaks.find_gpu(case["device_name"])
    if gpu is None:
        return None
    device = case.record.environment.device
    if device.memory_clock_max_mhz is None or device.memory_bus_width_bits is None:
        return None
    return peaks.bandwidth_warning(
        gpu, memory_clock_mhz=device.memory_clock_max_mhz, bus_width_bits=device.memory_bus_width_bits
    )


RULES = (
    Rule(
        name="throttling",
        severity=Severity.WARNING,
        threshold="thermal limit, hardware slowdown and power brake in less than "
        f"{percent(LEAST_CLOCK_LOWERED)} of the samples each, because "
        "a lowered clock is no permanent property of the machine",
        why="the run measured the cooling or the power supply: a longer or shorter run would give other figures",
        cure="improve the cooling, warm up until the temperature is stable, or lock a clock that the device can keep",
        check=each_case(throttled),
    ),
    Rule(
        name="at the power limit",
        severity=Severity.NOTE,
        threshold=f"the clock lowered by the power limit in less than {percent(LEAST_CAPPED)} of the samples, or a "
        "board that always reaches its limit (T4, L4)",
        why="the figure is valid only for this power limit",
        cure="state the limit with the figure; nvidia-smi --power-limit changes it",
        check=each_case(power_capped),
    ),
    Rule(
        name="spill cliff",
        severity=Severity.ERROR,
        threshold=f"at least {percent(SPILL_RATIO)} of the {{unit}}/s of a smaller batch: a larger batch does not slow "
        "down a busy device, unless its memory is full",
        why="tensors are in the host's memory and cross the bus in every step, so this is not the speed of the device",
        cure="a smaller batch",
        check=spilling,
    ),
    Rule(
        name="CPU competition",
        severity=Severity.WARNING,
        threshold=f"at least {percent(COMPETED_SHARE)} of the CPUs for which the run has threads, while it does not "
        "wait for data (on an idle machine 90 % to 100 %); or, if waits for a CPU were measured, waits of less "
        f"than {percent(LEAST_WAITED_SHARE)} of the time in which the run wanted a CPU, or of less than "
        f"{percent(LEAST_WAITED_CPUS)} of the wall time, summed over threads",
        why="other processes used the other CPUs: the figure describes a busy machine",
        cure="stop other work and run again, or give the run fewer threads",
        check=each_case(competing),
    ),
    Rule(
        name="CPU held back",
        severity=Severity.WARNING,
        threshold=f"at most {percent(LEAST_TIME_SHARE)} of the CPU time lost to a quota or to other virtual machines, "
        "because wall times are not more accurate than that",
        why="a container's limit, or another VM on the same physical host, decides the speed",
        cure="give the container as many --cpus as threads, or no limit; use a machine type without shared CPUs",
        check=each_case(cpu_time_taken),
    ),
    Rule(
        name="debug variables",
        severity=Severity.ERROR,
        threshold="every variable in debug_variables.toml is unset, or has a value that changes nothing",
        why="the variable is for finding errors, and changes what is measured",
        cure="unset the variable, and run again",
        check=each_case(debug_variables),
    ),
    Rule(
        name="memory is another device's",
        severity=Severity.WARNING,
        threshold=f"bandwidth from memory clock and bus within {percent(peaks.BANDWIDTH_TOLERANCE)} of the bandwidth "
        "in the table: vendors round by less",
        why="the roof then belongs to another device with a similar name",
        cure="check the device's name in nvidia-smi -q, and its row in workload/contract/peaks.toml",
        check=each_case(other_bandwidth),
    ),
)

"""Rules on the machine: clocks, memory, other work, and debug settings that slow a run down."""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
from workload.contract.text import cpu_share, percent
from workload.contract.verdict import COMPETED_SHARE, LEAST_WAITED_CPUS, LEAST_WAITED_SHARE

_VARIABLES = Path(__file__).with_name("debug_variables.toml")
# If the power limit lowers the clock in less than half of the samples, only short peaks of the run's power reach the
# limit, which is normal.
LEAST_CAPPED = 0.5
CAP_CURE = "state the limit with the figure; nvidia-smi --power-limit changes it"


@functools.cache
def variables() -> Mapping[str, Mapping[str, Any]]:
    """Rows of debug_variables.toml by name of the variable: its `harmless` values, its `effect`, and the `source`."""
    return tomllib.loads(_VARIABLES.read_text(encoding="utf-8"))


def throttled(case: Case) -> str | Hit | None:
    """Text on a clock that heat, hardware or the power limit lowered; only a note if it was just the power limit."""
    shares = clock_reasons(case)
    capped = shares.pop(Reason.POWER_CAP, 0.0)
    _, temperatures = case.samples("temperature_c")
    heat = f"; up to {temperatures.max():.0f} °C" if shares and temperatures.size else ""
    slowed = ", ".join(f"{reason} in {percent(share)} of the samples" for reason, share in shares.items()) + heat
    if capped < LEAST_CAPPED or capped_by_design(case):
        return slowed or None
    _, watts = case.samples("power_w")
    drawn = f" at {watts.mean():.0f} W" if watts.size else ""
    limited = f"the power limit lowered the clock in {percent(capped)} of the samples{drawn}"
    return f"{slowed}; {limited}" if slowed else Hit(figure=limited, cure=CAP_CURE, severity=Severity.NOTE)


def spilling(evidence: AuditEvidence) -> Iterator[Hit]:
    for run_id, spill in spills(evidence.cases).items():
        ratio = 1 - (spill.share_explained or 0.0)
        yield Hit(subject=(run_id,), figure=f"{spill.evidence}: {ratio:.2f} x", cure=spill.cure)


def cpu_taken(case: Case) -> str | None:
    """Text on CPU time that other processes, a quota or the hypervisor took from the run; None if little."""
    losses = []
    if (lost := competed(case)) is not None:
        waits = case["data_wait_fraction"] or 0.0
        got = f"the run got {cpu_share((1 - lost) * case['threads'], case['threads'])}"
        if case.record.timing.cpus_waited is not None:
            got = competition_words(case)
        elif waits > LEAST_TIME_SHARE:
            got = f"{got} in the {percent(1 - waits)} of the time in which it did not wait for data"
        losses.append(got)
    for what, share in (("a CPU quota", cgroup_throttled(case)), ("other virtual machines (steal)", steal(case))):
        if share:
            losses.append(f"{percent(share, decimals=1)} of the CPU time went to {what}")
    return ", ".join(losses) or None


def debug_variables(case: Case) -> str | None:
    software = case.record.environment.software
    value_of = (software.variables if software else None) or {}
    harmful = [
        f"{name}={value_of[name]}: {row['effect']}"
        for name, row in variables().items()
        if name in value_of and value_of[name] not in row["harmless"]
    ]
    return "; ".join(harmful) or None


RULES = (
    Rule(
        name="throttling",
        severity=Severity.WARNING,
        threshold="thermal limit, hardware slowdown and power brake in less than "
        f"{percent(LEAST_CLOCK_LOWERED)} of the samples each, because a lowered clock is no permanent property of the "
        f"machine; the power limit in less than {percent(LEAST_CAPPED)}, unless the board always reaches it (T4, L4)",
        why="the run measured the cooling or the power supply: a longer or shorter run, or another power limit, would "
        "give other figures",
        cure="improve the cooling, warm up until the temperature is stable, or lock a clock that the device can keep",
        check=each_case(throttled),
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
        f"{percent(LEAST_WAITED_CPUS)} of the wall time, summed over threads; at most {percent(LEAST_TIME_SHARE)} of "
        "the CPU time lost to a quota or to other virtual machines",
        why="other processes, a container's limit, or another VM on the same host decide the speed: the figure "
        "describes a busy machine",
        cure="stop other work and run again, or give the run fewer threads; give a container as many --cpus as "
        "threads, or no limit; use a machine type without shared CPUs",
        check=each_case(cpu_taken),
    ),
    Rule(
        name="debug variables",
        severity=Severity.ERROR,
        threshold="every variable in debug_variables.toml is unset, or has a value that changes nothing",
        why="the variable is for finding errors, and changes what is measured",
        cure="unset the variable, and run again",
        check=each_case(debug_variables),
    ),
)

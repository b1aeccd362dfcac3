"""Plan and start of `launch sweep`, once its options are parsed."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from launcher import backends
from launcher.protocol.backend import Backend
from launcher.sweep import existing_runs
from launcher.sweep import until as stopping
from launcher.sweep.blocks import with_blocks
from launcher.sweep.drive import SweepPorts, drive
from launcher.sweep.matrix import Matrix
from launcher.sweep.outcome import SweepOutcome
from launcher.sweep.plan import SweepPlan, make_plan, require_affordable
from launcher.sweep.until import Until
from workload.contract.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options of the command."""

    file: Path
    output: Path
    on: tuple[str, ...] = ()
    until: Until | None = None
    max_cost_usd: float | None = None
    max_time_s: float | None = None
    fresh: bool = False


def until_of(until: str | None, until_ratio: str | None, baseline: str | None, most: int | None) -> Until | None:
    """Parse `--until`, or `--until-ratio` with `--baseline`. Raises `UsageError` for conflicting options."""
    if until and until_ratio:
        raise UsageError("--until and --until-ratio cannot be combined", hint="one of the two")
    if bool(until_ratio) != bool(baseline):
        raise UsageError(
            "--until-ratio and --baseline need each other",
            hint="--until-ratio 2% --baseline precision=fp32",
        )
    if most is not None and not (until or until_ratio):
        raise UsageError(
            f"--max-repeats limits the blocks that --until adds; got {most} without it",
            hint=f"repeats = {most} in the matrix, or --until 1%",
        )
    if until:
        return Until(share=stopping.parse_share(until, "--until"), most=most)
    if until_ratio and baseline:
        share = stopping.parse_share(until_ratio, "--until-ratio")
        return Until(share=share, baseline=stopping.parse_baseline(baseline), most=most)
    return None


def require_sum(usd: float | None) -> float | None:
    """Check `--max-cost`, in USD. Raises `UsageError` unless the sum is positive and finite."""
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise UsageError(f"--max-cost must be a positive sum in USD; got '{usd:g}'", hint="--max-cost 5")
    return usd


def planned(
    asked: Asked,
    matrix: Matrix,
    *,
    offline: bool,
    backend: Callable[[str], Backend] = backends.load,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> SweepPlan:
    """Make the plan, with the runs in the folder of results. Raises `UsageError` if it is expected to cost too much."""
    if any(place.place.script for place in matrix.places):
        from launcher.sweep import script  # noqa: PLC0415 - most matrices have none

        matrix = script.placed(matrix, file=asked.file, folder=Path.cwd(), environment=os.environ)
    at = now()
    plan = make_plan(
        matrix,
        existing_runs.look(asked.output),
        output=asked.output,
        backend=backend,
        now=at,
        only=asked.on,
        offline=offline,
        fresh=f"{at:%Y%m%d-%H%M%S}" if asked.fresh else "",
        as_many_blocks=asked.until is not None,
        file=asked.file,
    )
    require_affordable(plan, asked.max_cost_usd)
    if asked.until is None:
        return plan
    for place in plan.sweep.places:
        stopping.require_baseline(asked.until, place.configurations)
    return replace(plan, notes=(*plan.notes, f"blocks are added until {asked.until}"))


def go(asked: Asked, plan: SweepPlan, ports: SweepPorts | None = None) -> SweepOutcome:
    """Carry out the plan."""
    seed = plan.sweep.seed
    return drive(
        plan.sweep,
        output=asked.output,
        until=asked.until,
        grow=lambda place, blocks: with_blocks(place, blocks, seed=seed),
        max_cost_usd=asked.max_cost_usd,
        max_time_s=asked.max_time_s,
        ports=ports,
        damaged=tuple(plan.damaged),
    )

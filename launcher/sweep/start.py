"""`launch sweep` once its options are known: the plan of what is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.backends import door
from launcher.backends.door import Backend
from launcher.sweep import there
from launcher.sweep.matrix import Matrix
from launcher.sweep.plan import SweepPlan, make_plan, require_affordable


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the command."""

    file: Path
    output: Path
    on: tuple[str, ...] = ()
    max_cost_usd: float | None = None
    fresh: bool = False


def planned(
    asked: Asked,
    matrix: Matrix,
    *,
    offline: bool,
    backend: Callable[[str], Backend] = door.backend,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> SweepPlan:
    """The plan, with what the folder of results has; `UsageError` where it is expected to cost more than it may."""
    at = now()
    plan = make_plan(
        matrix,
        there.look(asked.output),
        output=asked.output,
        backend=backend,
        now=at,
        only=asked.on,
        offline=offline,
        fresh=f"{at:%Y%m%d-%H%M%S}" if asked.fresh else "",
        file=asked.file,
    )
    require_affordable(plan, asked.max_cost_usd)
    return plan

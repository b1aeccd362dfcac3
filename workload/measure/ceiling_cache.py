"""Stores a run's measured ceilings beside its bundles, for the runs of the next hour.

Rates from a busy machine are not stored: they would make the verdicts of all later runs uncertain.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workload.contract.operating_system import replace_text
from workload.contract.spec import Device
from workload.contract.trainer import KeptCeilings
from workload.measure import ceilings
from workload.measure.ceiling_rates import Ceilings
from workload.measure.ceilings import COPY, TRIAD, Report, Sampler, identity, wanted

CACHE_NAME = ".ceilings.json"
# Schema 2 added the number of CPUs used to each rate; since schema 3, GPUs are loaded before they are measured. Files
# of older schemas are ignored.
CACHE_SCHEMA = 3
MAX_AGE_S = 3600.0


def cached_or_measure(
    folder: Path,
    *,
    device: Device,
    precisions: Collection[str] | None = None,
    sample: Sampler | None = None,
    progress: Report | None = None,
    kept: KeptCeilings = KeptCeilings.HOUR,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> tuple[Ceilings, float]:
    """Ceilings and their age in seconds, 0 if all were measured now; stored in `folder` for later runs.

    A stored file is replaced if it is damaged, too old, from the future, or of another machine, device, torch or number
    of threads, or if `kept` allows none. Rates that a usable file lacks are measured. A folder that cannot be written
    is no error.
    """
    path = folder / CACHE_NAME
    stored = None if kept is KeptCeilings.NONE else _read(path, identity(device))
    age_s = stored.age_s(now()) if stored else 0.0
    if stored is None or not 0 <= age_s <= (math.inf if kept is KeptCeilings.BLOCK else MAX_AGE_S):
        measured = ceilings.measure(device, precisions=precisions, sample=sample, progress=progress, now=now)
        _write(path, measured)
        return measured, 0.0
    missing = [precision for precision in wanted(precisions) if precision not in stored.flop_per_s]
    bandwidth = not {COPY, TRIAD} <= set(stored.bytes_per_s)
    if missing or bandwidth:
        more = ceilings.measure(
            device, precisions=missing, bandwidth=bandwidth, sample=sample, progress=progress, now=now
        )
        is_any_used = len(missing) < len(wanted(precisions)) or not bandwidth
        stored = _joined(stored, more)
        _write(path, stored)
        if not is_any_used:
            return more, 0.0
    return stored, age_s


def _joined(kept: Ceilings, more: Ceilings) -> Ceilings:
    """Add the rates of `more` to `kept`, which keeps its time of measurement."""
    measured_now = {*more.flop_per_s, *more.bytes_per_s}
    unavailable = {key: why for key, why in kept.unavailable.items() if key not in measured_now}
    return replace(
        kept,
        flop_per_s={**kept.flop_per_s, **more.flop_per_s},
        bytes_per_s={**kept.bytes_per_s, **more.bytes_per_s},
        unavailable={**unavailable, **more.unavailable},
        elapsed_s=kept.elapsed_s + more.elapsed_s,
    )


def _read(path: Path, machine: Mapping[str, Any]) -> Ceilings | None:
    """Ceilings in the file; None unless it is complete, clean and of this `machine`, see `ceilings.identity`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kept = Ceilings.from_json(content["ceilings"])
        kept.age_s(datetime.now(UTC))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    is_ours = all(getattr(kept, name) == value for name, value in machine.items())
    is_clean = all(rate.doubt is None for rate in (*kept.flop_per_s.values(), *kept.bytes_per_s.values()))
    return kept if is_ours and is_clean and content.get("schema") == CACHE_SCHEMA else None


def _write(path: Path, measured: Ceilings) -> None:
    """Write the file, without rates by CPU time; atomically, because another run may read the file at any moment."""
    measured = replace(
        measured,
        flop_per_s={name: rate for name, rate in measured.flop_per_s.items() if not rate.is_by_cpu_time},
        bytes_per_s={name: rate for name, rate in measured.bytes_per_s.items() if not rate.is_by_cpu_time},
    )
    text = json.dumps({"schema": CACHE_SCHEMA, "ceilings": measured.to_json()}, indent=1)
    with suppress(OSError):
        replace_text(path, text, shared=True, durable=False)

"""Convert run.json to a row of `runs`. Pure.

`workload.contract.record` declares which fields are columns; columns that follow from several fields are derived here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.loading import model_work
from workload.contract import record as contract
from workload.contract import utilization, verdict
from workload.contract.fields import RANGES, Kind, instant
from workload.contract.ranks import (
    IN_COLLECTIVES,
    INPUT,
    UNEVEN,
    LinkRate,
    Ranks,
    communication,
    is_alone_slow,
    largest_wait,
    waits,
)
from workload.contract.record import Record, Status
from workload.contract.record_sections import CloudFacts
from workload.contract.spent import RUN_PARTS, Spent, epoch_of, joules_per_image
from workload.contract.trainer import Start

# `path` and `kernels_file` come from the index, the others from several fields of run.json.
DERIVED: Mapping[str, Kind] = {
    "path": Kind.TEXT,
    "kernels_file": Kind.TEXT,
    "imported": Kind.FLAG,
    # Machines, and devices of each, that train together. Other figures of a run are those of its first device.
    "machines": Kind.NUMBER,
    "devices": Kind.NUMBER,
    "all_images_per_s": Kind.NUMBER,
    # Shares of a step in which devices wait, and the largest of them, in words.
    "collectives_share": Kind.NUMBER,
    "slow_rank_share": Kind.NUMBER,
    "rank_input_share": Kind.NUMBER,
    "scaling_limit": Kind.TEXT,
    # Kind of collective with the longest waits, its bytes in a step and share of the link's measured rate; host of the
    # slow rank, and whether the other ranks are even.
    "longest_collective": Kind.TEXT,
    "collective_bytes": Kind.NUMBER,
    "link_share": Kind.NUMBER,
    "slow_host": Kind.TEXT,
    "slow_alone": Kind.FLAG,
    "images_per_s": Kind.NUMBER,
    "ceiling_flop_per_s": Kind.NUMBER,
    "peak_flop_per_s": Kind.NUMBER,
    "tf32_instead_flop_per_s": Kind.NUMBER,
    # Model FLOP, and all FLOP if some are repeated, over wall time, as fractions of this vendor's peak.
    "mfu": Kind.NUMBER,
    "hfu": Kind.NUMBER,
    "mfu_peak": Kind.TEXT,
    "ceiling_bytes_per_s": Kind.NUMBER,
    "ceiling_conditions": Kind.TEXT,
    "region": Kind.TEXT,
    "peak_memory_bytes": Kind.NUMBER,
    # Percentages of the best possible rate of the multiprocessors and of the memory, weighted by the kernels' times.
    "sm_percent": Kind.NUMBER,
    "dram_percent": Kind.NUMBER,
    # FLOP of a step according to an imported trace or profile itself, independent of the model's name.
    "shown_flop_per_step": Kind.NUMBER,
    # Unstated assumption behind FLOP and bytes by formula, such as the size of the images.
    "work_assumption": Kind.TEXT,
    # Known reasons if no roof limits a step.
    "limit_known": Kind.TEXT,
    # Where the run's time went.
    **{f"{part}_s": Kind.NUMBER for part in RUN_PARTS},
    # Cost of this time.
    "usd": Kind.NUMBER,
    # Energy of all devices for one of the images, tokens and so on of all devices.
    "joules_per_image": Kind.NUMBER,
    # The user's own amount of work, else one pass over the data: in samples, and in what `images` counts.
    "epoch_samples": Kind.NUMBER,
    "epoch_images": Kind.NUMBER,
}
# Shares of a step in which the devices of a run wait, with their names as what limits scaling.
WAITS = {"collectives_share": IN_COLLECTIVES, "slow_rank_share": UNEVEN, "rank_input_share": INPUT}
NO_WAIT, SLOW_RANK = "no wait", "slow rank "
# Column of `runs` -> its type.
RUN_COLUMNS: Mapping[str, Kind] = {
    **{str(leaf.column): leaf.kind for leaf in contract.COLUMNS if leaf.kind is not Kind.TEXTS},
    **DERIVED,
    "notes": Kind.TEXTS,
}
# `CELLS`: each column with its section, its name in the section and its type. `SECTIONS`: sections that hold columns.
CELLS = tuple((str(leaf.column), leaf.names[:-1], leaf.names[-1], leaf.kind) for leaf in contract.COLUMNS)
SECTIONS = tuple(dict.fromkeys(names for _, names, _, _ in CELLS))
# Columns that every completed run of ours has measured.
EXPECTED = {"measured_s", "images", "step_median_s"}

# A row per rate that a run measured: `quantity` is flop_per_s by precision, or bytes_per_s of copy and triad.
# `roof_per_s` is the rate to compare runs with: the sustained rate if it followed a burst, else the median.
CEILING_COLUMNS: Mapping[str, Kind] = {
    "quantity": Kind.TEXT,
    "name": Kind.TEXT,
    "roof_per_s": Kind.NUMBER,
    "median_per_s": Kind.NUMBER,
    "burst_per_s": Kind.NUMBER,
    "sustained_per_s": Kind.NUMBER,
    "best_per_s": Kind.NUMBER,
    "p5_per_s": Kind.NUMBER,
    "p95_per_s": Kind.NUMBER,
    "samples": Kind.NUMBER,
    "conditions": Kind.TEXT,
    "measured_at": Kind.TIME,
}


RATE_FIGURES = ("median", "burst", "sustained", "best", "p5", "p95")


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run: its cells by column, its ceilings, and remarks on unreadable parts of run.json."""

    cells: Mapping[str, Any]
    ceilings: list[dict[str, Any]]
    remarks: list[str]


def row_of(document: Mapping[str, Any]) -> RunRow:
    """The row for the content of one run.json; `BundleError` if `record.read` refuses it."""
    reading = contract.read(document)
    run, remarks = reading.record, list(reading.remarks)
    # An imported run has no count of its model's work; the formulas find the model by its name.
    by_name = assumption = None
    if run.imported is not None and run.complexity is None:
        by_name, assumption = model_work.known_work(run.spec)
    run = replace(run, complexity=by_name or run.complexity)
    # The limit by the current rule, else the stored one. A bundle without waits for a CPU has only the stored sentence
    # on other processes that used the CPUs.
    found, stored = verdict.from_record(run), run.bound
    busy = stored.busy if stored else None
    run = replace(run, bound=replace(found, busy=found.busy or busy) if found else stored)
    sections: dict[tuple[str, ...], Any] = {}
    for names in SECTIONS:
        sections[names] = run
        for name in names:
            sections[names] = getattr(sections[names], name, None)
    cells = {column: _cell(sections[names], name, kind) for column, names, name, kind in CELLS}
    cells |= {"path": None, "kernels_file": None, **_derived(run)}
    cells["work_assumption"] = assumption
    shown = cells["counted_flop_per_step"] if by_name else cells["train_flop_per_step"]
    cells["shown_flop_per_step"] = (shown or cells["counted_flop_per_step"]) if run.imported is not None else None
    if run.status is Status.COMPLETED and run.imported is None:
        remarks += [
            f"run.json: {leaf.where} is missing or 0, although the run completed"
            for leaf in contract.COLUMNS
            if leaf.column in EXPECTED and not cells[leaf.column]
        ]
    return RunRow(cells=cells, ceilings=list(_ceilings(run)), remarks=remarks)


def _cell(section: Any, name: str, kind: Kind) -> Any:
    value = None if section is None else getattr(section, name)
    if kind is Kind.TEXTS:
        return list(value or ())
    if value is None:
        return None
    if kind in RANGES:
        return float(value)
    return instant(value) if kind is Kind.TIME else value


def _derived(run: Record) -> dict[str, Any]:
    compute = run.ceilings.compute(run.spec.precision) if run.ceilings else None
    copy = run.ceilings.copy() if run.ceilings else None
    cloud = run.environment.cloud or CloudFacts()
    region, zone = cloud.region, cloud.zone
    images, wall_s = run.timing.images, run.timing.measured_s
    images_per_s = images / wall_s if images and wall_s and wall_s > 0 else None
    spent, rates, used = Spent.of(run), run.profile.throughput, utilization.of(run)
    own, (samples, epoch_images) = run.spec.samples, epoch_of(run)
    return {
        "imported": run.imported is not None,
        "start": run.environment.start or Start.FRESH.value,
        **_waits(run.ranks or Ranks(), run.ceilings.links if run.ceilings else None),
        # Images over wall time, never a mean of rates.
        "images_per_s": images_per_s,
        "machines": float(run.spec.machines or 1),
        "devices": float(run.spec.devices or 1),
        "all_images_per_s": images_per_s if run.spec.ranks == 1 else run.ranks and _float(run.ranks.images_per_s),
        "ceiling_flop_per_s": _float(verdict.compute_roof_per_s(run)),
        "peak_flop_per_s": verdict.peak_flop_per_s(run),
        "tf32_instead_flop_per_s": verdict.tf32_instead(run),
        "mfu": used and used.mfu,
        "hfu": used and used.hfu,
        "mfu_peak": used and used.peak_name,
        "ceiling_bytes_per_s": _float(copy.roof_per_s) if copy else None,
        "ceiling_conditions": _json(compute.conditions) if compute else None,
        # In Compute Engine, a zone's name is its region and a letter. Other clouds record the region.
        "region": region or (zone.rpartition("-")[0] or None if zone else None),
        "peak_memory_bytes": _float(_peak_memory_bytes(run)),
        "sm_percent": _float(rates.sm_percent_time_weighted) if rates else None,
        "dram_percent": _float(rates.dram_percent_time_weighted) if rates else None,
        "limit_known": "; ".join(verdict.possible_causes(run)) or None,
        **{f"{part}_s": spent.seconds.get(part) for part in RUN_PARTS},
        "usd": spent.usd,
        "joules_per_image": joules_per_image(run),
        "epoch_samples": _float(own or samples),
        "epoch_images": _float(own or epoch_images),
    }


def _waits(ranks: Ranks, links: Sequence[LinkRate] | None) -> dict[str, Any]:
    """Shares of a step in which ranks wait, None if unknown; `scaling_limit`: the largest, unless all are small."""
    shares, longest = waits(ranks), communication(ranks, links)
    slow = None if ranks.slowest is None else int(ranks.slowest)
    limit = (largest_wait(shares) or NO_WAIT) if shares else None
    if limit == UNEVEN and ranks.slowest is not None:
        limit = f"{SLOW_RANK}{ranks.slowest:g}"
    return {
        **{column: shares.get(name) for column, name in WAITS.items()},
        "scaling_limit": limit,
        "longest_collective": longest and longest.kind.value,
        "collective_bytes": longest and longest.bytes,
        "link_share": longest and longest.link_share,
        "slow_host": ranks.hosts[slow] if ranks.hosts and slow is not None else None,
        "slow_alone": None if slow is None else is_alone_slow(ranks),
    }


def _peak_memory_bytes(run: Record) -> float | None:
    """CUDA: most bytes that torch had allocated. CPU: largest resident set of the process. None for other devices."""
    match run.environment.device.type:
        case "cuda":
            return run.memory.peak_allocated_bytes if run.memory else None
        case "cpu":
            return run.usage.max_rss_bytes if run.usage else None
        case _:
            return None


def _ceilings(run: Record) -> Iterator[dict[str, Any]]:
    if run.ceilings is None:
        return
    measured_at = instant(run.ceilings.measured_at)
    for quantity, rates in (("flop_per_s", run.ceilings.flop_per_s), ("bytes_per_s", run.ceilings.bytes_per_s)):
        for name, rate in (rates or {}).items():
            yield {
                "quantity": quantity,
                "name": name,
                "roof_per_s": _float(rate.roof_per_s),
                **{f"{figure}_per_s": _float(getattr(rate, figure)) for figure in RATE_FIGURES},
                "samples": _float(rate.samples),
                "conditions": _json(rate.conditions),
                "measured_at": measured_at,
            }


def _float(value: float | None) -> float | None:
    """Convert a number to float, because an integer in JSON may be too large for Arrow."""
    return None if value is None else float(value)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)

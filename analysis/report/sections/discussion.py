"""The four hypotheses of the reports that asked this question first, answered where the runs allow it.

A sentence that claims a difference holds its interval; where there is none, it says that nothing can be said.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from analysis.figures import registry
from analysis.report import words
from analysis.report.content import Bullets, Paragraph, Section, Table
from analysis.report.evidence import ReportEvidence
from analysis.statistics.power import ALPHA
from workload.contract.tables import Column, Role
from workload.contract.text import between
from workload.contract.verdict import Bound

# A doubled batch that gains less has found the device full; published doublings from 64 to 128 gain 2 %.
WORTHWHILE = 1.05
MOST_SENTENCES = 12
LEAST_TO_COMPARE = 2
GAINS = (
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="series", heading="model", role=Role.FACT),
    Column(name="left", heading="batch", digits=0),
    Column(name="right", heading="to", digits=0),
    Column(name="gain", heading="throughput"),
    Column(name="interval", heading="95 % interval"),
    Column(name="reason", heading="note", role=Role.FACT),
)
UNCORRECTED = (
    "Intervals of batch sizes and prices are 95 % ones by themselves: of twenty such statements one may be wrong. "
    "Those between environments, precisions and zones are corrected for their number (Holm)."
)


def section(evidence: ReportEvidence) -> Section:
    """One part per hypothesis."""
    hardware = [*hardware_sentences(evidence)]
    bounds = [*memory_sentences(evidence)]
    batches, table = batch_sentences(evidence)
    return Section(
        name="discussion",
        title="Discussion",
        blocks=[Paragraph(text=UNCORRECTED)],
        parts=[
            _part("hardware", "Does expensive hardware win?", hardware),
            _part("memory", "Which models are limited by memory?", bounds),
            Section(
                name="batches",
                title="Where do larger batches stop paying?",
                blocks=[Bullets(sentences=batches), *([table] if table else [])],
            ),
            _part("precision-gain", "What does lower precision change?", [*precision_sentences(evidence)]),
            _part("virtualization", "What do virtualisation, placement and zone change?", [*zone_sentences(evidence)]),
        ],
    )


def _part(name: str, title: str, items: Sequence[str]) -> Section:
    return Section(name=name, title=title, blocks=[Bullets(sentences=_first(items))])


def _first(items: Sequence[str]) -> list[str]:
    more = [f"{len(items) - MOST_SENTENCES} more are in the tables."] if len(items) > MOST_SENTENCES else []
    return [*items[:MOST_SENTENCES], *more]


# --- hardware


def hardware_sentences(evidence: ReportEvidence) -> Iterator[str]:
    """Per model, the dearest environment against the cheapest per hour: time, and money per million images."""
    costs = registry.cheapest(evidence.material.costs)
    if costs.empty or costs["env"].nunique() < LEAST_TO_COMPARE:
        yield from _without_prices(evidence)
        return
    any_price_differs = False
    for task in evidence.material.tasks:
        rows = words.rows_of(costs[costs["task"] == task].sort_values("usd_per_h"))
        if len(rows) >= LEAST_TO_COMPARE and 0 < rows[0]["usd_per_h"] < rows[-1]["usd_per_h"]:
            any_price_differs = True
            yield _dearest(evidence, task, rows)
    if not any_price_differs:
        yield "No model was measured in two environments of different price."


def _dearest(evidence: ReportEvidence, task: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cheap, dear = rows[0], rows[-1]
    price = dear["usd_per_h"] / cheap["usd_per_h"]
    where = f"{task}: {dear['env']} costs {words.figure(price)} x as much per hour as {cheap['env']}"
    lines = [_line(evidence, row) for row in (cheap, dear)]
    speedup = evidence.comparison(*(line["run_ids"] if line else [] for line in lines))
    if speedup.ratio is None or speedup.interval is None:
        reason = next(iter(speedup.reasons), "no throughput")
        return f"{where}; how much faster it is cannot be said ({reason})."
    ends = words.between(speedup.interval.low, speedup.interval.high)
    speed = (
        f"at each one's cheapest configuration {words.figure(speedup.ratio)} x the images/s "
        f"(95 % interval {ends}{words.paired(speedup)})"
    )
    money = [price / end for end in (speedup.interval.high, speedup.interval.low)]
    if money[1] < 1:
        verdict = f"per million images it is cheaper: {words.between(*money)} x the cost. Expensive hardware wins twice"
    elif money[0] > 1:
        verdict = f"per million images it is dearer: {words.between(*money)} x the cost. Cheap hardware wins on money"
    else:
        verdict = f"per million images no difference is certain: {words.between(*money)} x the cost"
    return f"{where}; {speed}; {verdict}."


def _line(evidence: ReportEvidence, cost: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The line of `measured` that a cost is of."""
    table = evidence.material.measured
    same = table[
        (table["env"] == cost["env"])
        & (table["task"] == cost["task"])
        & (table["variant"] == cost["variant"])
        & (table["batch_size"] == cost["batch_size"])
    ]
    rows = words.rows_of(same)
    return max(rows, key=lambda row: row["images_per_s"] or 0.0) if rows else None


def _without_prices(evidence: ReportEvidence) -> Iterator[str]:
    yield (
        "Fewer than two environments have a measured run with a price per hour, so nothing is said about money. Runs "
        "on Compute Engine record their price."
    )
    environments = evidence.material.measured["env"].nunique()
    if environments == 0:
        yield "No run timed its steps: whether dearer hardware is faster cannot be answered from these runs."
        return
    if environments < LEAST_TO_COMPARE:
        yield "One environment was measured: whether dearer hardware is faster cannot be answered from these runs."
        return
    peaks = _peaks(evidence)
    compared = words.rows_of(evidence.by_place.table)
    if evidence.by_place.reason is not None:
        yield f"No comparison between environments: {evidence.by_place.reason}."
    for row in compared[:MOST_SENTENCES]:
        yield f"{row['model']}, batch {words.text(row['batch_size'])}, {row['precision']}: {row['verdict']}."
    if len(compared) > MOST_SENTENCES:
        yield f"{len(compared) - MOST_SENTENCES} more comparisons are in the table of speed-ups."
    if peaks:
        yield f"The vendors' peaks: {peaks}."


def _peaks(evidence: ReportEvidence) -> str:
    roofs = evidence.material.roofs
    peaks = roofs[roofs["kind"] == "peak"] if len(roofs) else roofs
    texts = [
        f"{row['device_name']} {row['precision']} {words.si(row['flop_per_s'], 'FLOP/s')}"
        for row in words.rows_of(peaks)
    ]
    return words.listed(texts) if texts else ""


# --- memory


def memory_sentences(evidence: ReportEvidence) -> Iterator[str]:
    """Per model and environment, what limits it, with the interval of the intensity against the ridge."""
    points = evidence.material.points
    known = points[points["bound"].notna()] if len(points) else points
    if known.empty:
        yield "No configuration has a bound: ceilings, FLOP or bytes are missing, or contradict each other."
        return
    # Counted before modelled: a configuration is one point.
    known = known.sort_values("source", key=lambda source: source != registry.COUNTERS, kind="stable")
    known = known.drop_duplicates(["env", "task", "variant", "batch_size"])
    for task in evidence.material.tasks:
        rows = words.rows_of(known[known["task"] == task])
        if rows:
            yield _bounds(evidence, task, rows)


def _bounds(evidence: ReportEvidence, task: str, rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for env in evidence.material.environments:
        here = [row for row in rows if row["env"] == env]
        if here:
            counts = Counter(str(row["bound"]) for row in here)
            shares = ", ".join(
                f"{bound} in {number} of {len(here)}{_device_busy(here, bound)}"
                for bound, number in counts.most_common()
            )
            parts.append(f"{env} {shares}{_ridges(evidence, env, here)}")
    limited = sum(1 for row in rows if row["bound"] == Bound.MEMORY)
    known = [row for row in rows if words.is_known(row["intensity_low"]) and words.is_known(row["intensity_high"])]
    lows, highs = ([row[f"intensity_{end}"] for row in known] for end in ("low", "high"))
    where = f" at {words.between(min(lows), max(highs))} FLOP/byte" if known else ""
    modelled = any(row["source"] == "modelled" for row in rows)
    unsure = " Bytes are modelled: the intensity is known to that interval only." if modelled and limited else ""
    return (
        f"{task} is limited by memory in {limited} of {words.counted(len(rows), 'configuration')}{where}: "
        f"{'; '.join(parts)}.{unsure}"
    )


def _device_busy(rows: Sequence[Mapping[str, Any]], bound: str) -> str:
    """For how much of the step a device runs kernels that is idle for the rest."""
    known = [float(row["device_busy_share"]) for row in rows if words.is_known(row["device_busy_share"])]
    return (
        f" (kernels run in {between(min(known), max(known))} of the step)" if known and bound == Bound.OVERHEAD else ""
    )


def _ridges(evidence: ReportEvidence, env: str, rows: Sequence[Mapping[str, Any]]) -> str:
    roofs = registry.usable_roofs(evidence.material.roofs, pd.DataFrame(rows))
    here = (
        roofs[(roofs["env"] == env) & (roofs["kind"] == "measured") & roofs["bytes_per_s"].notna()]
        if len(roofs)
        else roofs
    )
    ridges = [row["flop_per_s"] / row["bytes_per_s"] for row in words.rows_of(here)]
    if not ridges:
        return ""
    shown = words.figure(ridges[0]) if len(ridges) == 1 else words.between(min(ridges), max(ridges))
    return f" (ridge {shown})"


# --- batches


class Pays(StrEnum):
    """What the intervals say about larger batches."""

    STOPS = "a larger batch certainly gains less than the limit"
    UNEVEN = "a step certainly gains less than the limit and a later one at least as much"
    PAYS = "every larger batch certainly gains the limit or more"
    OPEN = "the intervals leave it open"


def batch_sentences(evidence: ReportEvidence) -> tuple[list[str], Table | None]:
    """From which batch size on a larger one gains less than `WORTHWHILE`, per series; and the table behind it."""
    rows: list[Mapping[str, Any]] = []
    by_answer: dict[Pays, list[str]] = {pays: [] for pays in Pays}
    for env, series, steps in _gains(evidence):
        rows += [
            step
            | {
                "env": env,
                "series": series,
                "gain": f"{words.figure(step['ratio'])} x",
                "interval": words.between(step["low"], step["high"]),
                "reason": step["reason"] or step["paired"].removeprefix("; ") or None,
            }
            for step in steps
        ]
        answer, sentence = _where_it_stops(steps)
        by_answer[answer].append(f"{series} on {env}: {sentence}.")
    full = _out_of_memory(evidence)
    if not rows:
        full.append("In no environment do runs of one model differ in batch size alone: this cannot be answered.")
        return full, None
    total = sum(map(len, by_answer.values()))
    counts = ", ".join(
        f"in {len(series_sentences)} {pays}" for pays, series_sentences in by_answer.items() if series_sentences
    )
    first = f"Of {total} series of batch sizes {counts} (limit: {words.change(WORTHWHILE)} per step)."
    sentences = _first([sentence for series_sentences in by_answer.values() for sentence in series_sentences])
    return [first, *sentences, *_first(full)], words.table("Gain by each larger batch", GAINS, rows)


def _gains(evidence: ReportEvidence) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Environment, series, and its steps from each batch size to the next."""
    measured = evidence.material.measured
    known = measured[measured["images_per_s"].notna()]
    for env in evidence.material.environments:
        for series, table in known[known["env"] == env].groupby("series", sort=False):
            steps = [_gain(evidence, *pair) for pair in pairwise(words.rows_of(table.sort_values("batch_size")))]
            if steps:
                yield env, str(series), steps


def _gain(evidence: ReportEvidence, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    comparison = evidence.comparison(left["run_ids"], right["run_ids"])
    return {
        "left": left["batch_size"],
        "right": right["batch_size"],
        "ratio": comparison.ratio,
        "low": comparison.interval.low if comparison.interval else None,
        "high": comparison.interval.high if comparison.interval else None,
        "reason": None if comparison.interval else next(iter(comparison.reasons), "no interval"),
        "paired": words.paired(comparison),
    }


def _where_it_stops(steps: Sequence[Mapping[str, Any]]) -> tuple[Pays, str]:
    """The first larger batch whose gain is certainly below `WORTHWHILE`, or that none or no interval shows it."""
    for number, step in enumerate(steps):
        if words.is_known(step["high"]) and step["high"] < WORTHWHILE:
            what = "makes it slower" if step["high"] < 1 else "gains little"
            left, right = f"{step['left']:g}", f"{step['right']:g}"
            seen = f"batch {right} after {left} {what}{_ends(step)}"
            again = next((later for later in steps[number + 1 :] if _pays(later)), None)
            if again is not None:
                more = f"batch {again['right']:g} after {again['left']:g} pays again{_ends(again)}"
                return Pays.UNEVEN, f"{seen}, but {more}"
            rest = steps[number + 1 :]
            if all(words.is_known(later["high"]) and later["high"] < WORTHWHILE for later in rest):
                return Pays.STOPS, f"{seen}, so larger batches stop paying at {left}"
            return Pays.STOPS, f"{seen}; whether a still larger one pays is open"
    last = steps[-1]
    if all(map(_pays, steps)):
        return Pays.PAYS, f"every batch up to {last['right']:g} pays, the last step from {last['left']:g}{_ends(last)}"
    if all(not words.is_known(step["low"]) for step in steps):
        return Pays.OPEN, f"cannot be said: {steps[0]['reason']}"
    widest = max(steps, key=lambda step: step["high"] / step["low"] if words.is_known(step["low"]) else 1.0)
    return Pays.OPEN, f"open, as from batch {widest['left']:g} to {widest['right']:g}{_ends(widest)}"


def _pays(step: Mapping[str, Any]) -> bool:
    """Whether a larger batch certainly gains what is worth while."""
    return words.is_known(step["low"]) and step["low"] >= WORTHWHILE


def _ends(step: Mapping[str, Any]) -> str:
    ends = f"95 % interval {words.change(step['low'])} to {words.change(step['high'])}{step['paired']}"
    return f" ({words.change(step['ratio'])}, {ends})"


def _out_of_memory(evidence: ReportEvidence) -> list[str]:
    failed = evidence.material.failed
    too_large = failed[failed["ending"].str.contains("out of memory")] if len(failed) else failed
    return [
        f"{task}, {variant} on {env}: batch {words.listed(sorted(set(table['batch_size'])))} does not fit into memory."
        for (env, task, variant), table in (
            too_large.groupby(["env", "task", "variant"], sort=False) if len(too_large) else ()
        )
    ]


# --- precision


def precision_sentences(evidence: ReportEvidence) -> Iterator[str]:
    """What `analysis.compare` says by precision: those that are certain, and how many are not."""
    compared = evidence.by_precision
    if compared.reason is not None:
        yield f"This cannot be answered: {compared.reason}."
        return
    yield from _verdicts(words.rows_of(compared.table))


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    certain = [row for row in rows if words.is_known(row["p_holm"]) and row["p_holm"] < ALPHA]
    for row in certain:
        where = f" ({row['note']})" if words.is_known(row.get("note")) else ""
        yield f"{row['model']}, batch {words.text(row['batch_size'])}{where}: {row['verdict']}."
    none = [row for row in rows if str(row["verdict"]).startswith("no winner")]
    for verdict, number in Counter(str(row["verdict"]) for row in none).items():
        yield f"{words.counted(number, 'comparison')} of {len(rows)}: {verdict}."
    rest = len(rows) - len(certain) - len(none)
    if rest:
        limits = [
            float(row["smallest_detectable_ratio"])
            for row in rows
            if row not in certain and words.is_known(row["smallest_detectable_ratio"])
        ]
        seen = f"; a ratio of {words.figure(median(limits))} would typically have been seen" if limits else ""
        yield f"{words.counted(rest, 'comparison')} of {len(rows)} without a certain difference{seen}."


# --- zones


def zone_sentences(evidence: ReportEvidence) -> Iterator[str]:
    """How far runs lie apart in each environment, and one device in different zones or under different hypervisors."""
    yield from _spread(evidence)
    any_device = False
    runs = evidence.material.runs
    for fact in ("zone", "hypervisor", "backend", "runtime"):
        for device, table in runs.groupby("device_name", sort=False):
            known = table[table[fact].notna()]
            if known[fact].nunique() < LEAST_TO_COMPARE:
                continue
            any_device = True
            compared = evidence.compared(fact, evidence.results.runs.loc[known.index])
            if compared.reason is not None:
                yield f"{device} by {fact}: no comparison: {compared.reason}."
            else:
                yield from (f"{device} by {fact}: {sentence}" for sentence in _verdicts(words.rows_of(compared.table)))
    if not any_device:
        yield (
            "No device was measured in two zones, under two hypervisors, on two backends or in two runtimes: what "
            "placement changes cannot be answered from these runs."
        )


def _spread(evidence: ReportEvidence) -> Iterator[str]:
    between = evidence.between
    for (place, device), table in between.groupby(["place", "device_name"], sort=False, dropna=False):
        known = words.rows_of(table[table["cov_between"].notna() & table["cov_between_low"].notna()])
        if not known:
            continue
        typical = sorted(known, key=lambda row: row["cov_between"])[len(known) // 2]
        ends = f"{words.percent(typical['cov_between_low'])} to {words.percent(typical['cov_between_high'])}"
        yield (
            f"On {words.text(place)} ({words.text(device)}) runs of one configuration typically vary by "
            f"{words.percent(typical['cov_between'])} (95 % interval {ends}, {words.text(typical['model'])} at batch "
            f"{words.text(typical['batch_size'])}, {words.counted(int(typical['runs']), 'run')})"
            + (
                f", and steps within a run by {words.percent(typical['cov_within'])}."
                if words.is_known(typical["cov_within"])
                else "."
            )
        )

"""The section "The answer": at most five sentences to act on, the largest effect first, and rooflines below them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

import pandas as pd

from analysis.audit.rule import Finding, Severity
from analysis.figures import Figure, registry
from analysis.kernels import ALL
from analysis.loading import units
from analysis.loading.cases import Case, besides
from analysis.loading.configurations import NUMBERS, devices_of, label, together
from analysis.loading.tables import rows as rows_of
from analysis.pairing import Side, value_text
from analysis.report import content
from analysis.report.content import Block, Bullets, Picture, Section
from analysis.report.evidence import Contrast, ReportEvidence
from analysis.roofline.points import WorkSource
from analysis.summary import usd_per_h
from workload.contract import peaks, prices
from workload.contract.spec import Precision
from workload.contract.spent import joules_text
from workload.contract.text import counted, plain, span
from workload.contract.verdict import Bound
from workload.stats.intervals import LEAST_REPLICATES

MOST_SENTENCES = 5
MOST_MODELS = 2
# Maximum number of errors that the answer quotes; the audit's section lists all.
MOST_ERRORS = 2
# Maximum number of kernel families that the answer names per profile.
MOST_FAMILIES = 3
KEYS = ("env", "task", "variant", "batch_size")
# Ratio of peak memory from which memory counts as a cost of a setting.
MEMORY_COST = 1.05
# Share of the fastest configuration's energy below which another one is named: readings differ by a few per cent.
LESS_ENERGY = 0.95


def section(evidence: ReportEvidence) -> Section:
    """The section with its sentences and rooflines."""
    blocks: list[Block] = [Bullets(sentences=sentences(evidence), ranked=True)]
    blocks += [Picture(figure=figure) for figure in headline(evidence)]
    return Section(name="answer", title="The answer", blocks=blocks)


def headline(evidence: ReportEvidence) -> list[Figure]:
    """Rooflines at the top of the page: all environments and the fastest environment, else the kernels of a profile."""
    combined = evidence.figures("roofline_combined")
    single = [figure for figure in evidence.figures("roofline_") if figure not in combined]
    return [*combined, *single[:1]] or evidence.figures("kernel_roofline_")[:1]


def sentences(evidence: ReportEvidence) -> list[str]:
    """Sentences on errors, the same GPU in two clouds, settings to change, best throughputs, cost, repeats."""
    clouds = [*_clouds(evidence)]
    first, last = [*_errors(evidence), *clouds], [*_cost(evidence), *_repeat(evidence)]
    models = [*(_models(evidence) or _without_times(evidence))]
    settings = changes(evidence) or ([] if clouds else [*_nothing_certain(evidence)])
    # Errors, cost and repeats always have a place. Of the other places, one is kept for a setting; then come models, at
    # least one of them; settings fill the rest.
    room = MOST_SENTENCES - len(first) - len(last)
    kept_for_settings = min(1, len(settings))
    models = models[: max(1, room - kept_for_settings)]
    return [*first, *settings[: room - len(models)], *models, *last]


# --- errors


def _errors(evidence: ReportEvidence) -> Iterator[str]:
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    quoted = set(evidence.material.runs["run_id"]) or set(evidence.results.runs["run_id"])
    for finding in evidence.findings:
        if finding.severity is Severity.ERROR and (quoted & set(finding.subject) or not finding.subject):
            by_rule[finding.rule].append(finding)
    if not by_rule:
        return
    shown = []
    for rule, findings in by_rule.items():
        first, *others = findings[0].figure.split("; ")
        runs = list(dict.fromkeys(run_id for finding in findings for run_id in finding.subject))
        beside = f" and {counted(len(runs) - 1, 'more run')}" if len(runs) > 1 else ""
        subject = f"{runs[0]}{beside}" if runs else "all runs"
        shown.append(f"{rule}: {first}{f', and {len(others)} more' if others else ''} ({subject})")
    rest = len(shown) - MOST_ERRORS
    more = [f"{counted(rest, 'other rule')}, below under Audit"] if rest > 0 else []
    number = counted(len(by_rule), "error")
    listed = "; ".join([*shown[:MOST_ERRORS], *more])
    yield f"The audit found {number}, so figures of these runs are wrong or mean something else: {listed}."


# --- clouds


def _clouds(evidence: ReportEvidence) -> Iterator[str]:
    """Compare the two clouds of each GPU that both have measured in enough blocks; all its sentences are one text."""
    by_gpu: dict[str, list[Contrast]] = defaultdict(list)
    for contrast in evidence.contrasts:
        if contrast.fact == "backend" and (gpu := _cloud_gpu(contrast)):
            by_gpu[gpu].append(contrast)
    if by_gpu:
        yield " ".join(_two_clouds(evidence, gpu, contrasts) for gpu, contrasts in by_gpu.items())


def _cloud_gpu(contrast: Contrast) -> str | None:
    """GPU that both sides have in different clouds, with enough blocks on each side; None for another contrast."""
    clouds = {row.provider for row in prices.load().listed}
    sides = [side.runs for side in contrast.pair.sides]
    backends = [{case["backend"] for case in runs} for runs in sides]
    gpus = {found.gpu if (found := peaks.find_gpu(case["device_name"])) else None for case in contrast.pair.runs}
    blocks = min(len({case.block for case in runs} - {None}) for runs in sides)
    differ = backends[0] != backends[1] and all(len(names) == 1 and names <= clouds for names in backends)
    return gpus.pop() if differ and len(gpus) == 1 and blocks >= LEAST_REPLICATES else None


def _two_clouds(evidence: ReportEvidence, gpu: str, contrasts: Sequence[Contrast]) -> str:
    """Sentence on the configuration with the largest effect, the prices of both clouds, and what else differs."""
    top = max(contrasts, key=attrgetter("effect"))
    article = "an" if gpu[0] in "AEFHILMNORSX" else "a"
    certain = sum(contrast.is_certain for contrast in contrasts)
    more = [f"the largest effect of {len(contrasts)} configurations, {certain} certain"] if len(contrasts) > 1 else []
    sides = [(str(side.value), side.runs) for side in top.pair.sides]
    usd = ", ".join(f"{_usd_per_h(runs)} on {cloud}" for cloud, runs in sides)
    facts = {
        "driver": [_values(runs, "driver_version") for _, runs in sides],
        "CPU": [_values(runs, "cpu_model") for _, runs in sides],
        "image": [_values(runs, "image_digest") for _, runs in sides],
        "VM image": [
            " or ".join(sorted({found for case in runs if (found := _vm_image(evidence, case))})) for _, runs in sides
        ],
    }
    differences = [
        f"{name} {' and '.join(value or 'unknown' for value in values)}"
        for name, values in facts.items()
        if values[0] != values[1]
    ]
    also = f"also different: {', '.join(differences)}" if differences else "driver, CPU and image are the same"
    said = "; ".join([f"{_configuration(evidence, top)}: {top.row['verdict']}", *more, usd, also])
    return f"Is {article} {gpu} {article} {gpu}? {said}."


def _usd_per_h(runs: Sequence[Case]) -> str:
    """Median price of runs, marked as spot if one of them was."""
    spot = " (spot)" if any(case["spot"] is True for case in runs) else ""
    return f"{usd:.3f} USD/h{spot}" if (usd := usd_per_h(runs)) else f"an unknown price{spot}"


def _values(runs: Sequence[Case], fact: str) -> str:
    """Known values of a fact, without the fact's name; empty if none is known."""
    return " or ".join(sorted({value_text(fact, case[fact]) for case in runs if case[fact] is not None}))


def _vm_image(evidence: ReportEvidence, case: Case) -> str | None:
    record = evidence.record(case.run_id)
    return record.environment.cloud.vm_image if record and record.environment.cloud else None


# --- settings


def changes(evidence: ReportEvidence) -> list[str]:
    """Sentences on settings or places that are certainly faster, the largest effect first."""
    by_fact_and_model: dict[tuple[str, Any], list[Contrast]] = defaultdict(list)
    for contrast in evidence.contrasts:
        if contrast.is_certain and not _cloud_gpu(contrast):
            by_fact_and_model[contrast.fact, contrast.pair.shared.get("model")].append(contrast)
    tops = [_top(evidence, contrasts) for contrasts in by_fact_and_model.values()]
    by_winner: dict[tuple[str, Any], list[Contrast]] = defaultdict(list)
    for top in sorted(tops, key=attrgetter("effect"), reverse=True):
        by_winner[top.fact, top.by_speed[0].value].append(top)
    return [_change(evidence, *contrasts) for contrasts in by_winner.values()]


def _top(evidence: ReportEvidence, contrasts: Sequence[Contrast]) -> Contrast:
    """The comparison to give as advice: the one whose faster side is the fastest of all.

    Among those with this side it is the one with the largest effect. Averages over other settings are preferred, if
    there are any. The largest effect of all would be no advice: another configuration may be faster than both sides.
    """

    def speed_and_effect(contrast: Contrast) -> tuple[float, float]:
        return median(case["images_per_s"] for case in contrast.by_speed[0].runs), contrast.effect

    chosen = [contrast for contrast in contrasts if contrast.is_average]
    if not chosen and contrasts[0].fact == "batch_size":
        # Without batch sizes that have no certain gain over the next smaller size.
        below = [(_steps(evidence, contrast)[0], contrast) for contrast in contrasts]
        chosen = [contrast for step, contrast in below if step and step.is_certain and step.grows]
    return max(chosen or contrasts, key=speed_and_effect)


def _change(evidence: ReportEvidence, top: Contrast, *others: Contrast) -> str:
    """Sentence on the largest effect of a setting (`top`), and on models with the same best value (`others`)."""
    winner, loser = top.by_speed
    value = value_text(top.fact, winner.value)
    how = {"place": "on", "script": "as"}.get(top.fact, f"with {label(top.fact)}")
    models = [f"the same for {_configuration(evidence, other)}, {plain(other.effect, 3)} x" for other in others]
    more = [*_neighbours(evidence, top), *_memory(winner, loser)]
    if top.fact == "precision" and winner.value != Precision.FP32:
        more.append("accuracy was not measured")
    more += models
    return f"Run {_configuration(evidence, top)} {how} {value}: {'; '.join([top.row['verdict'], *more])}."


def _configuration(evidence: ReportEvidence, contrast: Contrast) -> str:
    """Model, and the other facts that both sides share: `resnet18 (batch 8, fp32)`."""
    shared = contrast.pair.shared
    facts = [f"batch {content.text(shared['batch_size'])}"] if content.is_known(shared.get("batch_size")) else []
    facts += [shared["precision"]] if content.is_known(shared.get("precision")) else []
    places = {other.pair.shared.get("place") for other in evidence.contrasts} - {None}
    facts += [shared["place"]] if shared.get("place") and len(places) > 1 else []
    # The average over a script's other arguments has no command of its own.
    model = str(shared.get(besides(contrast.fact)) or shared["model"])
    return f"{model} ({', '.join(facts)})" if facts else model


def _neighbours(evidence: ReportEvidence, top: Contrast) -> Iterator[str]:
    """Words on the gain of the best batch size over the next smaller one, and of the next larger one over the best."""
    if top.fact != "batch_size":
        return
    below, above = _steps(evidence, top)
    if below and below is not top:
        yield _step(below)
    yield _step(above) if above else "no larger batch was measured"


def _steps(evidence: ReportEvidence, top: Contrast) -> tuple[Contrast | None, Contrast | None]:
    """Contrasts of the best batch size with the next smaller and the next larger one; None if not measured."""
    best = top.by_speed[0].value
    steps = [
        contrast
        for contrast in evidence.contrasts
        if contrast.fact == top.fact
        and (contrast.pair.shared, contrast.pair.pool) == (top.pair.shared, top.pair.pool)
        and None not in [side.value for side in contrast.pair.sides]
    ]
    below = [contrast for contrast in steps if contrast.pair.right.value == best]
    above = [contrast for contrast in steps if contrast.pair.left.value == best]
    return (
        max(below, key=lambda contrast: contrast.pair.left.value, default=None),
        min(above, key=lambda contrast: contrast.pair.right.value, default=None),
    )


def _step(contrast: Contrast) -> str:
    step = f"the step from {contrast.pair.left.value:g} to {contrast.pair.right.value:g}"
    if not contrast.is_certain:
        return f"no certain gain by {step}"
    return f"{step} {f'still gives {plain(contrast.effect, 3)} x' if contrast.grows else 'makes it slower'}"


def _memory(winner: Side, loser: Side) -> Iterator[str]:
    peaks = [[case["peak_memory_bytes"] for case in side.runs] for side in (winner, loser)]
    if all(content.is_known(peak) for side in peaks for peak in side):
        more, less = (median(side) for side in peaks)
        if more > MEMORY_COST * less:
            yield f"peak memory {content.si(more, 'B')} in place of {content.si(less, 'B')}"


def _nothing_certain(evidence: ReportEvidence) -> Iterator[str]:
    contrasts = evidence.contrasts
    detectable = [contrast.row["smallest_detectable_ratio"] for contrast in contrasts]
    detectable = [ratio for ratio in detectable if content.is_known(ratio)]
    if detectable:
        facts = content.listed(label(contrast.fact) for contrast in contrasts)
        yield (
            f"No difference by {facts} is certain in {counted(len(contrasts), 'comparison')}; a ratio of "
            f"{content.figure(median(detectable))} would typically have been seen."
        )


# --- models


def _models(evidence: ReportEvidence) -> list[str]:
    measured = evidence.material.measured
    known = measured[measured["images_per_s"].notna()]
    if known.empty:
        return []
    lines = Counter(known["task"])
    best = known.loc[known.groupby("task", sort=False)["images_per_s"].idxmax()]
    rows = sorted(rows_of(best), key=lambda row: (row["run_ids"][0] in evidence.imported, -row["images_per_s"]))
    return [
        "; ".join(
            [
                _best(row, lines[row["task"]]),
                *_epoch(row, evidence),
                *_limit(row),
                *_too_large(row, evidence),
                *_energy(row, known),
            ]
        )
        + "."
        + _devices(row, evidence)
        for row in rows[:MOST_MODELS]
    ]


def _best(row: Mapping[str, Any], lines: int) -> str:
    rate = content.rate_with_interval(row)
    batch = f"batch {content.text(row['batch_size'])}, " if content.is_known(row["batch_size"]) else ""
    busy = f", {row['busy']}" if content.is_known(row["busy"]) else ""
    rate += f" on each of {devices:g} devices" if (devices := devices_of(row)) > 1 else ""
    at = f"at {batch}{row['variant']} on {content.with_device(row)}{busy}"
    return (
        f"{row['task']}: {rate} {at}" if lines == 1 else f"{row['task']} reached its highest throughput, {rate}, {at}"
    )


def _epoch(row: Mapping[str, Any], evidence: ReportEvidence) -> Iterator[str]:
    """Words on the time of the user's own amount of work, if one is known."""
    costs = evidence.material.costs
    same = costs[(costs[list(KEYS)] == [row[key] for key in KEYS]).all(axis=1)] if len(costs) else costs
    for found in rows_of(same[:1]):
        if found["epoch_is_own"] and content.is_known(found["epoch_s"]):
            yield f"{span(found['epoch_s'])} for {found['epoch_of']}"


def _too_large(row: Mapping[str, Any], evidence: ReportEvidence) -> Iterator[str]:
    failed = evidence.material.failed
    is_same = (failed[["env", "task", "variant"]] == [row["env"], row["task"], row["variant"]]).all(axis=1)
    too_large = failed[is_same & failed["ending"].str.contains("out of memory")]
    if len(too_large):
        yield f"batch {content.text(too_large['batch_size'].min())} runs out of memory"


def _energy(row: Mapping[str, Any], measured: pd.DataFrame) -> Iterator[str]:
    """Words on the configuration of this model with the least energy, if it needs certainly less than the fastest."""
    same = [other for other in rows_of(measured) if other["task"] == row["task"] and other["joules_per_image"]]
    for least in sorted(same, key=lambda other: other["joules_per_image"])[:1]:
        used, most = least["joules_per_image"], row["joules_per_image"]
        # If their intervals overlap, it is open which of both needs less.
        is_open = (least["joules_per_image_high"] or 0.0) >= (row["joules_per_image_low"] or math.inf)
        if most and not is_open and used < LESS_ENERGY * most:
            batch = f"batch {content.text(least['batch_size'])}, " if content.is_known(least["batch_size"]) else ""
            place = f"{batch}{least['variant']} on {least['env']}"
            each = units.singular(units.unit_of(least))
            yield f"least energy at {place}: {joules_text(used)} per {each} in place of {joules_text(most)}"


def _devices(row: Mapping[str, Any], evidence: ReportEvidence) -> str:
    """Sentences on how the model of a row scales: speed-up and its cost, throughput, and what limits it.

    One for its runs on most machines, and one for most devices of one machine; empty without such runs.
    """
    same = [found for found in evidence.scaling if (found["env"], found["task"]) == (row["env"], row["task"])]
    sentences = []
    for by in NUMBERS:
        alike = [found for found in same if found["by"] == by]
        for best in sorted(alike, key=lambda found: (found[by], found["all_images_per_s"] or 0.0))[-1:]:
            gain = best["gain"] or f"{together(best)}: no efficiency, because there is {best['why']}"
            reason = "" if best["level"] or not best["gain"] else f" (no interval: {best['why']})"
            limit = f"; {best['sentence']}" if content.is_known(best["sentence"]) else ""
            rate = f"{content.figure(best['all_images_per_s'], 4)} {units.unit_of(best)}/s together"
            sentences.append(f" {gain}{reason}; {rate}{limit}.")
    return "".join(sentences)


def _limit(row: Mapping[str, Any]) -> Iterator[str]:
    why = f": {row['bound_why']}" if content.is_known(row["bound_why"]) else ""
    if not content.is_known(row["bound"]):
        if why:
            yield f"the limit of the step is unknown{why}"
    elif ", " in row["bound"]:
        # With several verdicts, the reason would be that of one run only.
        yield f"the runs disagree about what limits the step: {row['bound']}"
    elif row["bound"] == Bound.NEITHER:
        yield f"neither compute nor memory limits the step{why}"
    else:
        yield f"limited by {row['bound']}{why}"


def _without_times(evidence: ReportEvidence) -> Iterator[str]:
    shares = _kernel_shares(evidence)
    points = evidence.material.points
    timed = points[points["flop_per_s"].notna()] if len(points) else points
    rows = rows_of(timed) + [dict(zip(KEYS, key, strict=True)) for key in shares]
    row_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        row_of.setdefault(tuple(row[name] for name in KEYS), row)
    for key, row in row_of.items():
        size = f", batch {content.text(row['batch_size'])}" if content.is_known(row["batch_size"]) else ""
        parts = [*_profiled_rate(row), *([shares[key]] if key in shares else [])]
        yield f"{row['task']}{size}, {row['variant']} on {row['env']}, profiled: {'; '.join(parts)}."
    if not rows:
        counts = Counter(content.text(status).replace("_", " ") for status in evidence.results.runs["status"])
        ended = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        yield f"No run has a throughput ({ended}), so nothing is known about speed."


def _profiled_rate(row: Mapping[str, Any]) -> Iterator[str]:
    """Words on the FLOP/s of steps or kernels that only a profiler timed, and on their limit."""
    if not content.is_known(row.get("flop_per_s")):
        return
    yield f"{'at least ' if row['flop_is_lower_bound'] else ''}{content.si(row['flop_per_s'], 'FLOP/s')}"
    if row["source"] == WorkSource.PROFILER and content.is_known(row["bound"]):
        # The verdict is on kernels alone: the limit of the step is unknown.
        yield row["bound_why"]
    else:
        yield from _limit(row)


def _kernel_shares(evidence: ReportEvidence) -> dict[tuple[Any, ...], str]:
    """Words on the kernel families that take the most time, by environment, task, variant and batch size."""
    points = evidence.material.kernel_points
    profiles = points[(points["family"] != ALL) & points["share_of_time"].notna()] if len(points) else points
    shares: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows_of(profiles.sort_values("share_of_time", ascending=False) if len(profiles) else profiles):
        share = f"{row['family']} {content.percent(row['share_of_time'])}"
        shares[tuple(row[name] for name in KEYS)].append(share)
    return {key: f"most kernel time goes to {', '.join(families[:MOST_FAMILIES])}" for key, families in shares.items()}


# --- cost, repeats


def _cost(evidence: ReportEvidence) -> Iterator[str]:
    costs = registry.cheapest(evidence.material.costs)
    if costs.empty:
        return
    best = rows_of(costs.loc[costs.groupby("task", sort=False)["epoch_usd"].idxmin()])
    shown = [_price(row, costs) for row in best[:MOST_MODELS]]
    yield f"The cost of {best[0]['epoch_of']} is least {'; '.join(shown)}."


def _price(row: Mapping[str, Any], costs: pd.DataFrame) -> str:
    dearest = rows_of(costs[costs["task"] == row["task"]].nlargest(1, "epoch_usd"))[0]
    ends = content.between(row["epoch_usd_low"], row["epoch_usd_high"])
    interval = f" (95 % interval {ends})" if ends != content.ABSENT else ""
    most = (
        f", most on {dearest['env']}, {content.figure(dearest['epoch_usd'])} USD"
        if dearest["env"] != row["env"]
        else ""
    )
    return (
        f"for {row['task']} on {row['env']} at batch {content.text(row['batch_size'])}, {row['variant']}, "
        f"{content.figure(row['epoch_usd'])} USD{interval}{most}"
    )


def _repeat(evidence: ReportEvidence) -> Iterator[str]:
    ours = [row for row in rows_of(evidence.material.measured) if row["run_ids"][0] not in evidence.imported]
    few = sum(row["runs"] < LEAST_REPLICATES for row in ours)
    if few:
        subject = "The only configuration has" if len(ours) == 1 else f"{few} of {len(ours)} configurations have"
        least = LEAST_REPLICATES
        yield f"{subject} fewer than {least} runs and so no interval: repeat with --repeats {least}."

"""The closing table of `launch local`: what was measured, how much it varies, what limits it, what to type next."""

import shlex
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from workload.bundle import Bundle, Status
from workload.text import seconds, si

LABEL_WIDTH = 13
KERNEL_WIDTH = 60


def render(bundles: Sequence[Bundle]) -> str:
    """The table over the repeats of one configuration; runs that broke off are named below it."""
    completed = [found for found in bundles if found.record["status"] == Status.COMPLETED]
    rows = _measured_rows([found.record for found in completed]) if completed else []
    rows += [(_status_label(found), found.record["error"] or "") for found in bundles if found not in completed]
    rows += [("bundle" if index == 0 else "", str(found.path)) for index, found in enumerate(bundles)]
    rows += [("next", line) for line in _next(completed)]
    head = _headline(bundles[0].record)
    return "\n".join([head, "", *(f"  {label:<{LABEL_WIDTH}} {text}" for label, text in rows)])


def _headline(record: Mapping[str, Any]) -> str:
    spec, where = record["spec"], record["environment"]
    device = where["device"].get("name") or spec["device"]
    threads = where["device"].get("threads")
    on = f"{spec['device']}: {device}" + (f", threads: {threads}" if threads else "")
    return f"{spec['model']}, batch {spec['batch_size']}, {spec['precision']}, on {on}"


def _status_label(found: Bundle) -> str:
    return str(found.record["status"]).replace("_", " ")


def _measured_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    last = records[-1]
    rows = [("images/s", _throughput(records)), ("step time", _step_time(last))]
    if theoretical_s := last["complexity"]["theoretical_step_s"]:
        rows.append(("in theory", f"{seconds(theoretical_s)}  (the step's FLOP at the measured ceiling, nothing else)"))
    rows.append(("FLOP/s", _flop_rate(last)))
    if last["bound"]:
        rows.append(("limited by", f"{last['bound']['bound']}: {last['bound']['why']}"))
    else:
        rows.append(("limited by", "unknown: no ceilings were measured (--no-ceilings)"))
    rows.append(("data waits", f"{last['timing']['data_wait_fraction']:.1%} of the wall time"))
    rows.extend(("profile", line) for line in _profile(records[0]["profile"]))
    rows.extend(("note", note) for note in last["notes"])
    return rows


def _profile(profile: Mapping[str, Any]) -> list[str]:
    """The profile of a series is that of its first run."""
    kind, status = profile.get("kind"), profile["status"]
    if kind is None:
        return []
    lines = [] if status == "completed" else [f"{kind}: {status}: {profile['reason']}"]
    if profile.get("flop_per_step") is not None:
        lines.append(_counted(profile))
    if profile.get("top"):
        number = f"{profile['calls_per_step']:.0f} {profile['rows']} a step"
        lines.append(f"torch: {number}; longest: {_longest(profile['top'][0])}")
    return lines


def _counted(profile: Mapping[str, Any]) -> str:
    flop = si(profile["flop_per_step"], "FLOP")
    bound = "at least " if profile["flop_is_lower_bound"] else ""
    verified = "" if profile["checks"]["flop_verified"] else " (unverified: the calibration is off)"
    moved, intensity = profile["dram_bytes_per_step"], profile["intensity_flop_per_byte"]
    bytes_moved = "" if moved is None else f", {si(moved, 'B')} of DRAM traffic with cold caches"
    per_byte = "" if intensity is None else f", {intensity:.3g} FLOP/byte"
    return f"ncu: {bound}{flop} a step{verified}{bytes_moved}{per_byte}; {profile['kernels_per_step']:.0f} kernels"


def _longest(top: Mapping[str, Any]) -> str:
    return str(top["name"])[:KERNEL_WIDTH] + ("" if top["share"] is None else f", {top['share']:.0%} of the time")


def _throughput(records: Sequence[Mapping[str, Any]]) -> str:
    rates = [record["timing"]["images_per_s"] for record in records]
    if len(rates) == 1:
        return f"{rates[0]:.4g}  (one run: no interval)"
    return f"{median(rates):.4g}  (median of {len(rates)} runs, {min(rates):.4g} to {max(rates):.4g})"


def _step_time(record: Mapping[str, Any]) -> str:
    step_s = record["timing"]["step_s"]
    spread = (
        "" if step_s["p5"] is None else f"; 5 % to 95 % of steps: {seconds(step_s['p5'])} to {seconds(step_s['p95'])}"
    )
    return f"{seconds(step_s['median'])}  (median of {step_s['n']} steps{spread})"


def _flop_rate(record: Mapping[str, Any]) -> str:
    complexity, precision = record["complexity"], record["spec"]["precision"]
    per_s = complexity["train_flop_per_step"] / record["timing"]["step_s"]["median"]
    ceiling = (record["ceilings"] or {"flop_per_s": {}})["flop_per_s"].get(precision)
    per_image = si(complexity["train_flop_per_image"], "FLOP")
    if not ceiling:
        return f"{si(per_s, 'FLOP/s')}  ({per_image} per image)"
    share = per_s / ceiling["median"]
    roof = f"{share:.0%} of the measured {precision} ceiling, {si(ceiling['median'], 'FLOP/s')}"
    return f"{si(per_s, 'FLOP/s')}  ({roof}; {per_image} per image)"


def _next(completed: Sequence[Bundle]) -> list[str]:
    if not completed:
        return []
    if len(completed) == 1:
        return ["the same again for an interval: add --repeats 3"]
    return [f"verify the bundles: python -m workload.bundle {shlex.quote(str(completed[0].path.parent))}/*"]

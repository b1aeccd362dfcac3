"""Rules on the facts about a run, and on its machine: clocks, memory, other work, debug settings."""

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.audit.rule import AuditEvidence, Hit, Rule, Severity, each_case
from analysis.causes import (
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
from analysis.loading import units
from analysis.loading.cases import Case
from analysis.loading.model_work import gpus_named, is_among, may_be_one_model, models_named
from workload.contract.text import cpu_share, percent
from workload.contract.verdict import COMPETED_SHARE, LEAST_WAITED_CPUS, LEAST_WAITED_SHARE

# Names of models and GPUs that look like a batch size, such as `vit_b_16`, `efficientnet_b0`, `b200`: removed before
# BATCH is searched.
LIKE_A_BATCH = re.compile(
    r"(vit|efficientnet|swin)([-_]?v2)?[-_]?[a-z]{1,5}[-_]?\d+|(?<![a-z])b[123]00(?!\d)", re.IGNORECASE
)
BATCH = re.compile(r"(?<![a-z])(?:b|bs|batch)[-_]?(\d+)(?![0-9])", re.IGNORECASE)
# NVIDIA, developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus, read 2026-11.
COMPUTE_CAPABILITY = {
    "p4": "6.1",
    "p40": "6.1",
    "p100": "6.0",
    "v100": "7.0",
    "t4": "7.5",
    "a100": "8.0",
    "a10": "8.6",
    "a30": "8.0",
    "a40": "8.6",
    "l4": "8.9",
    "l40": "8.9",
    "h100": "9.0",
    "h200": "9.0",
}
GEFORCE_CAPABILITY = {"20": "7.5", "30": "8.6", "40": "8.9", "50": "12.0"}
# Place of an imported run if neither the file nor the user names one.
NO_PLACE = "imported"
IMPORT_AGAIN = (
    "remove the bundle, and import the file again with the right --model, --batch-size, --precision, --gpu, "
    "--image-size, --profile-steps"
)
# Facts without which a run cannot be compared with others.
NEEDED_FACTS = {
    "device_name": "device",
    "precision": "precision",
    "images_per_s": "{unit} over wall time",
    "driver_version": "driver",
    "torch": "torch",
    "dataset": "data set",
    "image_size": "image size",
}
_VARIABLES = Path(__file__).with_name("debug_variables.toml")
# If the power limit lowers the clock in less than half of the samples, only short peaks of the run's power reach the
# limit, which is normal.
LEAST_CAPPED = 0.5
CAP_CURE = "state the limit with the figure; nvidia-smi --power-limit changes it"


# --- facts


def capability_of(gpu: str) -> str | None:
    """Compute capability of a GPU by its short name; None if unknown."""
    if geforce := re.match(r"rtx(\d\d)", gpu):
        return GEFORCE_CAPABILITY.get(geforce[1])
    return COMPUTE_CAPABILITY.get(gpu)


def labels_disagree(case: Case) -> str | None:
    """Text on labels of a run that contradict its device or its recorded configuration; else None."""
    disagreements = [*_device_labels(case), *_configuration_labels(case)]
    return "; ".join(dict.fromkeys(disagreements)) or None


def _device_labels(case: Case) -> Iterator[str]:
    device, capability, imported = case["device_name"], case["compute_capability"], case.record.imported
    options, labels = (imported.given, imported.labels) if imported else (None, None)
    # If the import found contradictions, `labels` reports them: leave out --gpu and the file's label.
    is_compared = bool(imported and imported.contradictions)
    for source, text in (
        ("the file", case["imported_file"]),
        ("the place", case["place"]),
        ("--gpu", options.gpu if options and not is_compared else None),
        ("the file's label", labels.get("device_name") if labels and not is_compared else None),
        ("the device", device),
    ):
        for gpu in sorted(gpus_named(text or "")):
            known = gpus_named(device) if device else frozenset()
            if known and not is_among(gpu, known):
                yield f"{source} '{text}' names {gpu}, the device is '{device}'"
            elif capability and (expected := capability_of(gpu)) not in {None, capability}:
                yield f"{source} '{text}' names {gpu}, compute capability {expected}; the device has {capability}"


def _configuration_labels(case: Case) -> Iterator[str]:
    """Texts on a model or a batch size in an imported file's name that differs from that of the run."""
    name = case["imported_file"] or ""
    if not may_be_one_model(name, case["model"]):
        named = ", ".join(sorted(f"{family}{size}" for family, size in models_named(name)))
        yield f"the file '{name}' names {named}, the run is of '{case['model']}'"
    batches = {int(number) for number in BATCH.findall(LIKE_A_BATCH.sub("", name))}
    if batches and case["batch_size"] not in batches:
        numbers = ", ".join(map(str, sorted(batches)))
        yield f"the file '{name}' names batch size {numbers}, the run has {case['batch_size']}"


_EACH_LABEL = each_case(labels_disagree)


def labels(evidence: AuditEvidence) -> Iterator[Hit]:
    """Labels that contradict the device or an imported file, and names of places that occur with several devices."""
    yield from _EACH_LABEL(evidence)
    places: dict[str, dict[str, list[str]]] = {}
    for case in evidence.cases:
        imported = case.record.imported if case["imported"] else None
        for contradiction in (imported.contradictions if imported else None) or ():
            yield Hit(subject=(case.run_id,), figure=contradiction, cure=IMPORT_AGAIN)
        if case["place"] in {None, NO_PLACE}:
            continue
        named = gpus_named(case["device_name"] or "") or gpus_named(case["imported_file"] or "")
        for device in named or {case["device_name"]} - {None}:
            places.setdefault(case["place"], {}).setdefault(device, []).append(case.run_id)
    for place, devices in places.items():
        if len(devices) > 1:
            subject = tuple(run_id for run_ids in devices.values() for run_id in run_ids)
            listed = ", ".join(f"{device} ({len(run_ids)})" for device, run_ids in sorted(devices.items()))
            yield Hit(subject=subject, figure=f"the place '{place}' stands for {len(devices)} devices: {listed}")


def unknown_facts(case: Case) -> str | None:
    if not case["imported"]:
        return None
    absent = [units.worded(fact_name, case.unit) for fact, fact_name in NEEDED_FACTS.items() if case[fact] is None]
    return f"the file does not say: {', '.join(absent)}" if absent else None


def lost_at_import(case: Case) -> str | None:
    """Text on parts of an imported file that are missing, duplicated or not understood; else None."""
    imported = case.record.imported if case["imported"] else None
    return "; ".join(imported.losses) if imported and imported.losses else None


def dirty_commit(case: Case) -> str | None:
    return f"commit {case['commit'][:12]} and changes on top of it" if case["commit"] and case["commit_dirty"] else None


# --- the machine


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
    Rule(
        name="labels disagree",
        severity=Severity.ERROR,
        threshold="file, label and place name the device that the run reports, each place has one device, and what was "
        "given to the import agrees with the file",
        why="people choose names, and may be wrong: a public file 'resnet18-v100' is VGG11 on an A100",
        cure="trust the device's attributes; import again with --gpu and --model, and name each place differently",
        check=labels,
    ),
    Rule(
        name="imported without facts",
        severity=Severity.NOTE,
        threshold=f"a file that gives {', '.join(NEEDED_FACTS.values())}: each of them can explain a difference "
        "between runs",
        why="a difference between this run and another one cannot be explained",
        cure="analyze import FILE --gpu G --precision P --driver V --torch V --dataset NAME --image-size 224; or"
        " measure it: launch local",
        check=each_case(unknown_facts),
    ),
    Rule(
        name="lost at import",
        severity=Severity.WARNING,
        threshold="a file in which every row counts once and every unit is known",
        why="sums and rates then cover only a part of the run, or count some of it twice",
        cure="export the complete file again, and import that",
        check=each_case(lost_at_import),
    ),
    Rule(
        name="uncommitted changes",
        severity=Severity.WARNING,
        threshold="code without changes on top of its commit",
        why="nobody can run this code again",
        cure="commit, and run again",
        check=each_case(dirty_commit),
    ),
)

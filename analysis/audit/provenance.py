"""Rules on the facts about a run: labels, versions, prices, and facts that an imported file lacks."""

import re
from collections.abc import Iterator

from analysis.audit.rule import AuditEvidence, Hit, Rule, Severity, each_case
from analysis.loading import units
from analysis.loading.cases import Case
from analysis.loading.gpu_names import gpus_named, is_among
from analysis.loading.model_work import may_be_one_model, models_named

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


RULES = (
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

"""Sections of the report on method, environments, audit, limits and reproduction."""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.audit.rule import Finding, by_rule, heading
from analysis.figures.labels import file_stem
from analysis.loading.configurations import completed
from analysis.loading.tables import rows as rows_of
from analysis.report import content
from analysis.report.content import Block, Bullets, Commands, Heading, Paragraph, Section, Table
from analysis.report.evidence import ReportEvidence, commands
from workload.contract.spec import Device, Profile
from workload.contract.tables import Column, facts
from workload.contract.text import counted

SHOWN_RUNS = 3
MOST_FIGURES = 6
MOST_NOTES = 12
MOST_PROBLEMS = 100
# Most sets of packages in the columns of a table.
MOST_LISTS = 6
# Packages in a paragraph: a longer text would be cut.
IN_PARAGRAPH = 100
FIGURE = re.compile(r"\d+(?:\.\d+)?")
# Characters of a hash that are enough to distinguish commits and digests.
HASH_CHARACTERS = 19

TIMED = (
    "Warm-up steps are recorded and kept apart. The device is synchronised at both ends of the measured "
    "region{events}. {rate} is measured {unit} over measured wall time, never a mean of rates."
)
EVENTS = "; inside the region, CUDA steps are timed with events"
POOLED = (
    "A run counts as one value: medians over runs, 95 % intervals from runs (Student's t on logarithms below 6 "
    "runs, order statistics from there on). Runs whose device, driver, torch, image digest, precision or "
    "commit differ are never pooled."
)
WORK = (
    "FLOP are counted by formula, forward and backward, 1 fused multiply-add = 2 FLOP. Bytes are {counters}modelled as "
    "an interval.{profiles}"
)
COUNTERS = "read from the GPU's counters if there is a profile, otherwise "
PROFILES = " Profiles are separate runs: times always come from the run without a profiler."
OURS = "For the {ours} that this program measured: "
FOREIGN = "timing and warm-up are known only as far as the files tell."

MATRIX = (
    *facts(
        env="place",
        device="device",
        runtime="backend, runtime",
        models="models",
        data="data",
        precision="precision",
        batch_sizes="batch sizes",
    ),
    Column(name="steps", heading="measured steps"),
    Column(name="repeats", heading="repeats"),
    Column(name="completed", heading="completed", digits=0),
    Column(name="runs", heading="runs", digits=0),
)
BROKEN = (
    *facts(run_id="run", env="place", task="model"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(ending="ended", error="error"),
)
# Facts that distinguish rows of the environment table.
SOFTWARE_FACTS = (
    "env",
    "hostname",
    "os",
    "kernel",
    "device_name",
    "driver_version",
    "cuda_build",
    "cudnn",
    "python",
    "torch",
    "torchvision",
    "machine_type",
    "zone",
    "hypervisor",
    "cpu_model",
    "image_digest",
    "commit",
    "commit_dirty",
)
ENVIRONMENTS = (
    *facts(
        env="place",
        hostname="host name",
        system="OS, kernel",
        device_name="device",
        driver_version="driver",
        cuda="CUDA, cuDNN",
        python="Python",
        torch="torch, torchvision",
        storage="storage",
        machine="machine type, zone",
        hypervisor="virtualisation",
        cpu_model="CPU",
        image="image",
        commit="commit",
    ),
    Column(name="runs", heading="runs", digits=0),
)
METRICS = (
    *facts(
        profiles="profiles",
        ncu="Nsight Compute",
        ours="metrics",
        own="metrics that the user added",
        missing="not available there",
    ),
)
# A run with at least this many steps has met the conditions of a long training.
MANY_STEPS = 1000
FEW_STEPS = (
    "At most {steps} measured steps per run: a long training also depends on heat, other users of the machine and "
    "other data."
)
SYNTHETIC = "Synthetic data need no disk: these runs say nothing about input pipelines."
PRICES = (
    "Prices were recorded with the runs, or are list prices of the date in the table; they do not include "
    "disks, network and idle time."
)
LIMITS = (
    (
        "Modelled bytes are an interval: the fewest if each tensor is moved once, the most if every operation reads "
        "and writes memory. Caches decide where in this interval a step lies; only counters can measure its bytes."
    ),
    (
        "FLOP by formula include matrix products and convolutions. Counters also include element-wise work "
        "and padding, but leave out work without a metric. If both exist, both are shown."
    ),
    (
        "Measured ceilings are the rates of simple kernels on the same machine, measured with the run; a step can "
        "come near them. Vendors' peaks are for the clock in the data sheet."
    ),
    "Intervals of 2 to 5 runs assume that runs are normally distributed.",
)


def method(evidence: ReportEvidence) -> Section:
    """The section on method: run matrix, incomplete runs, timing and limits."""
    runs = evidence.material.every
    broken = runs.drop(completed(runs).index)
    matrix = [matrix_row(env, runs[runs["env"] == env]) for env in evidence.material.environments]
    blocks: list[Block] = [content.table("Run matrix", MATRIX, matrix)]
    if len(broken):
        rows = [row | {"ending": str(row["status"]).replace("_", " ")} for row in rows_of(broken)]
        blocks.append(content.table("Runs that did not complete", BROKEN, rows))
    blocks.append(Bullets(sentences=_method(runs, evidence.material.unit)))
    return Section(
        name="method", title="Method", blocks=blocks, parts=[limits(evidence), *_metrics(evidence)], folded=True
    )


def _metrics(evidence: ReportEvidence) -> Iterator[Section]:
    """A section on the metrics that ncu collected; none without profiles. Profiles with equal metrics share a row."""
    profiled: dict[tuple[str, ...], list[str]] = defaultdict(list)
    runs = evidence.material.every
    for row in rows_of(runs[runs["profile_kind"].eq(Profile.NCU)]):
        record = evidence.record(row["run_id"])
        if record is None or not record.profile.metrics:
            continue
        profile, further = record.profile, (record.profile.step_bytes, record.profile.throughput)
        own = list(profile.own_metrics or ())
        ours = [*(profile.metrics or ()), *(name for each in further if each for name in each.metrics or ())]
        lists = ([name for name in ours if name not in own], own, list(profile.missing or ()))
        texts = tuple(", ".join(dict.fromkeys(names)) for names in lists)
        version = content.text(profile.ncu.version if profile.ncu else None)
        name = f"{row['env']}: {row['task']}, {content.text(row['batch_size'])}"
        profiled[version, *texts].append(name)
    rows = [
        {"profiles": content.listed(names), "ncu": ncu, "ours": ours, "own": own or None, "missing": missing or None}
        for (ncu, ours, own, missing), names in profiled.items()
    ]
    if rows:
        table = content.table("Metrics that Nsight Compute collected, by profile", METRICS, rows)
        yield Section(name="metrics", title="Metrics of the profiles", blocks=[table], folded=True)


def _method(runs: pd.DataFrame, unit: str) -> Sequence[str]:
    is_imported = runs["imported"].fillna(False).astype(bool)
    imported, ours = int(is_imported.sum()), runs[~is_imported]
    timed = TIMED.format(
        events=EVENTS if (ours["device_type"] == Device.CUDA).any() else "", rate=f"{unit.capitalize()}/s", unit=unit
    )
    work = WORK.format(
        counters=COUNTERS if ours["kernels_file"].notna().any() else "",
        profiles=PROFILES if ours["profile_status"].isin(["completed", "partial"]).any() else "",
    )
    if not imported:
        return [timed, POOLED, work]
    foreign = f"{imported} of {counted(len(runs), 'run')} came from other people's files: {FOREIGN}"
    if ours.empty:
        return [POOLED, foreign]
    scope = OURS.format(ours=counted(len(ours), "run"))
    return [scope + timed, POOLED, scope + work, foreign]


def matrix_row(env: str, runs: pd.DataFrame) -> dict[str, Any]:
    """Row of the run matrix for the runs of one environment."""
    repeats = completed(runs).groupby(["task", "variant", "batch_size"]).size()
    return {
        "env": env,
        "device": content.listed(runs["device_name"]),
        "runtime": content.listed(
            f"{row['backend'] or 'unknown'}, {row['runtime'] or 'unknown'}"
            for row in rows_of(runs[["backend", "runtime"]])
        ),
        "models": content.listed(sorted(set(runs["model"]))),
        "data": content.listed(data(row) for row in rows_of(runs[["dataset", "image_size"]])),
        "precision": content.listed(sorted(set(runs["variant"])), separator="; "),
        "batch_sizes": content.listed(sorted(set(runs["batch_size"].dropna()))),
        "steps": _range(runs["steps"].dropna()),
        "repeats": _range(repeats),
        "completed": len(completed(runs)),
        "runs": len(runs),
    }


def data(row: dict[str, Any]) -> str:
    """Data set and image size: `imagenette 224 px`."""
    size = f" {row['image_size']:g} px" if content.is_known(row["image_size"]) else ""
    return f"{row['dataset'] or 'unknown'}{size}"


def _range(values: "pd.Series[Any]") -> str:
    if values.empty:
        return content.ABSENT
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def environment(evidence: ReportEvidence) -> Section:
    """The section of environments: a table with a row per environment and set of software."""
    runs = evidence.material.every
    distinct = runs.groupby(list(SOFTWARE_FACTS), dropna=False, sort=False).size().reset_index(name="runs")
    storage = _storage(evidence, runs)
    rows = [
        row
        | {
            "system": _joined(row["os"], row["kernel"]),
            "cuda": _joined(row["cuda_build"], row["cudnn"]),
            "torch": _joined(row["torch"], row["torchvision"]),
            "storage": storage.get(row["env"]),
            "machine": _joined(row["machine_type"], row["zone"]),
            "image": content.text(row["image_digest"])[:HASH_CHARACTERS],
            "commit": content.text(row["commit"])[:12] + (" with changes" if row["commit_dirty"] is True else ""),
        }
        for row in rows_of(distinct)
    ]
    table = content.table("Places; one row for each set of software", ENVIRONMENTS, rows)
    blocks, parts = _packages(evidence, runs)
    return Section(name="places", title="Places", blocks=[table, *blocks], parts=parts, folded=True)


def _packages(evidence: ReportEvidence, runs: pd.DataFrame) -> tuple[list[Block], list[Section]]:
    """A table of packages whose versions differ between environments, and a folded list of all for each environment."""
    environments: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows_of(runs.drop_duplicates(list(SOFTWARE_FACTS))):
        record = evidence.record(row["run_id"])
        software = record.environment.software if record else None
        listed = tuple(software.packages or ()) if software else ()
        if listed and row["env"] not in environments[listed]:
            environments[listed].append(row["env"])
    names = _names(environments)
    parts = [
        Section(
            name=f"packages-{number}",
            title=f"Packages of {name} ({len(listed)})",
            blocks=[
                Paragraph(text=", ".join(listed[start : start + IN_PARAGRAPH]))
                for start in range(0, len(listed), IN_PARAGRAPH)
            ],
            folded=True,
        )
        for number, (name, listed) in enumerate(names.items(), 1)
    ]
    return _differing(names), parts


def _names(environments: Mapping[tuple[str, ...], Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Lists of packages by the environments that have them; an environment with several lists is numbered."""
    total = Counter(env for envs in environments.values() for env in envs)
    seen, names = Counter[str](), dict[str, tuple[str, ...]]()
    for listed, envs in environments.items():
        seen.update(envs)
        names[", ".join(f"{env} ({seen[env]})" if total[env] > 1 else env for env in envs)] = listed
    return names


def _differing(lists: Mapping[str, tuple[str, ...]]) -> list[Block]:
    """Packages that not all environments have in the same version; no block if there are none."""
    shown = list(lists.items())[:MOST_LISTS]
    # A column's name must not be an environment's, which may be any text.
    versions = {
        f"list {number}": {package.partition("==")[0]: package.partition("==")[2] for package in listed}
        for number, (_, listed) in enumerate(shown)
    }
    headings = zip(versions, (name for name, _ in shown), strict=True)
    columns = facts(package="package", **dict(headings))
    rows = []
    for package in sorted({package for its in versions.values() for package in its}, key=str.lower):
        row = {name: its.get(package, "not installed") for name, its in versions.items()}
        if len(set(row.values())) > 1:
            rows.append({"package": package, **row})
    more = f"; {len(lists) - MOST_LISTS} more lists are not compared" if len(lists) > MOST_LISTS else ""
    return [content.table(f"Packages that differ between places{more}", columns, rows)] if rows else []


def _joined(*values: object) -> str:
    known = [content.text(value) for value in values if content.is_known(value)]
    return ", ".join(known) or content.ABSENT


def _storage(evidence: ReportEvidence, runs: pd.DataFrame) -> dict[str, str]:
    storage_of = {}
    for row in rows_of(runs.drop_duplicates("env")):
        record = evidence.record(row["run_id"])
        host = record.environment.host if record else None
        if host and host.dataset_storage:
            storage_of[row["env"]] = _joined(*vars(host.dataset_storage).values())
        elif row["dataset"] == "synthetic":
            storage_of[row["env"]] = "none: synthetic data"
    return storage_of


def audit(evidence: ReportEvidence) -> Section:
    """The section of audit findings, grouped by rule, errors first."""
    parts = [_rule(same) for same in by_rule(evidence.findings)]
    return Section(name="audit", title="Audit", parts=parts, folded=True)


def _rule(findings: Sequence[Finding]) -> Section:
    first = findings[0]
    more = (
        [f"and {len(findings) - MOST_FIGURES} more: analyze audit --format csv lists them"]
        if len(findings) > MOST_FIGURES
        else []
    )
    cures = list(dict.fromkeys(finding.cure for finding in findings))[:SHOWN_RUNS]
    return Section(
        name=f"audit-{file_stem(first.rule)}",
        title=heading(findings),
        blocks=[
            Bullets(
                sentences=[
                    *(
                        f"{each.figure} ({content.listed(each.subject, SHOWN_RUNS)})"
                        for each in findings[:MOST_FIGURES]
                    ),
                    *more,
                ]
            ),
            Paragraph(text=f"Expected: {first.threshold}. Why: {first.why}. Cure: {'; '.join(cures)}."),
        ],
    )


def limits(evidence: ReportEvidence) -> Section:
    """The section on limits of the figures, unread files and notes of the runs."""
    blocks: list[Block] = [Bullets(sentences=[*_of_these_runs(evidence), *LIMITS])]
    problems = [*evidence.results.problems, *evidence.results.kernel_problems]
    problems += [*evidence.operators[1], *evidence.attributed[1]]
    if problems:
        blocks.append(Paragraph(text=f"Not in the tables ({len(problems)}):"))
        more = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        blocks.append(Bullets(sentences=[*map(str, problems[:MOST_PROBLEMS]), *more]))
    notes = _notes(evidence)
    if notes:
        blocks.append(Paragraph(text="Notes of the runs:"))
        blocks.append(Bullets(sentences=notes))
    return Section(name="limits", title="Limits", blocks=blocks)


def _of_these_runs(evidence: ReportEvidence) -> Iterator[str]:
    runs = evidence.material.every
    steps = runs["steps"].max()
    if steps < MANY_STEPS:
        yield FEW_STEPS.format(steps=f"{steps:g}")
    if (runs["dataset"] == "synthetic").any():
        yield SYNTHETIC
    if len(evidence.material.costs) and evidence.material.costs["usd_per_h"].notna().any():
        yield PRICES


def _notes(evidence: ReportEvidence) -> list[str]:
    """Notes of all runs, most frequent first; notes that differ only in their figures are merged into the first."""
    by_text: dict[str, list[str]] = defaultdict(list)
    every: Iterable[Sequence[str]] = evidence.results.runs["notes"]
    for notes in every:
        for note in dict.fromkeys(notes):
            by_text[FIGURE.sub("#", note)].append(note)
    ordered = sorted(by_text.values(), key=len, reverse=True)
    more = [f"and {len(ordered) - MOST_NOTES} other notes"] if len(ordered) > MOST_NOTES else []
    return [
        f"{notes[0]} ({counted(len(notes), 'run')}{'' if len(set(notes)) == 1 else ', with other figures'})"
        for notes in ordered[:MOST_NOTES]
    ] + more


def reproduce(evidence: ReportEvidence) -> Section:
    """The section with the command line of every configuration, from the spec in the bundle."""
    lines = commands(evidence.material.every, evidence.of_runs)
    intro = (
        "The command of each configuration, from the spec in its bundle, with only the options that differ "
        "from the defaults. Repeats of a configuration have one line."
    )
    return Section(
        name="reproduce", title="Reproduce", blocks=[Paragraph(text=intro), Commands(lines=lines)], folded=True
    )


def glossary_words() -> dict[str, dict[str, dict[str, Any]]]:
    """Terms with their `meaning`, by title of their group; if `report` is true, the page explains the term, too."""
    table = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return {group["title"]: group["words"] for group in table["group"].values()}


def glossary(_: ReportEvidence) -> Section:
    """The words of docs/glossary.md that the report uses."""
    rows = [
        (word, row["meaning"])
        for words in glossary_words().values()
        for word, row in words.items()
        if row.get("report", False)
    ]
    headings = (Heading(text="word"), Heading(text="means"))
    table = Table(caption="The words of this page", headings=headings, rows=rows)
    return Section(name="words", title="Words", blocks=[table], folded=True)

"""Section on method: run matrix, timing, and limits."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.loading.configurations import completed
from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Bullets, Section
from analysis.report.evidence import ReportEvidence
from analysis.report.sections import context
from workload.contract.spec import Device
from workload.contract.tables import Column, Role
from workload.contract.text import counted

TIMED = (
    "Warm-up steps are recorded and kept apart. The device is synchronised at both ends of the measured "
    "region{events}. {rate} is measured {unit} over measured wall time, never a mean of rates."
)
EVENTS = "; inside it CUDA steps are timed with events"
POOLED = (
    "The replicate is the run: medians over runs, 95 % intervals from runs (Student's t on logarithms below 6 "
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
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="device", heading="device", role=Role.FACT),
    Column(name="runtime", heading="backend, runtime", role=Role.FACT),
    Column(name="models", heading="models", role=Role.FACT),
    Column(name="data", heading="data, image size", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="batch_sizes", heading="batch sizes", role=Role.FACT),
    Column(name="steps", heading="measured steps"),
    Column(name="repeats", heading="repeats"),
    Column(name="completed", heading="completed", digits=0),
    Column(name="runs", heading="runs", digits=0),
)
BROKEN = (
    Column(name="run_id", heading="run", role=Role.FACT),
    Column(name="env", heading="environment", role=Role.FACT),
    Column(name="task", heading="model", role=Role.FACT),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="ending", heading="ended", role=Role.FACT),
    Column(name="error", heading="error", role=Role.FACT),
)


def section(evidence: ReportEvidence) -> Section:
    """The section: run matrix, incomplete runs, method and limits."""
    runs = evidence.material.every
    broken = runs.drop(completed(runs).index)
    matrix = [_matrix_row(env, runs[runs["env"] == env]) for env in evidence.material.environments]
    blocks: list[Block] = [words.table("Run matrix", MATRIX, matrix)]
    if len(broken):
        rows = [row | {"ending": str(row["status"]).replace("_", " ")} for row in rows_of(broken)]
        blocks.append(words.table("Runs that did not complete", BROKEN, rows))
    blocks.append(Bullets(sentences=_method(runs, evidence.material.unit)))
    return Section(name="method", title="Method", blocks=blocks, parts=[context.limits(evidence)], folded=True)


def _method(runs: pd.DataFrame, unit: str) -> Sequence[str]:
    """Sentences on how the runs were measured; for imported runs, only as far as their files say."""
    is_imported = runs["imported"].fillna(False).astype(bool)
    imported, ours = int(is_imported.sum()), runs[~is_imported]
    timed = TIMED.format(
        events=EVENTS if (ours["device_type"] == Device.CUDA).any() else "",
        rate=f"{unit.capitalize()}/s",
        unit=unit,
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


def _matrix_row(env: str, runs: pd.DataFrame) -> dict[str, Any]:
    repeats = completed(runs).groupby(["task", "variant", "batch_size"]).size()
    return {
        "env": env,
        "device": words.listed(runs["device_name"]),
        "runtime": words.listed(
            f"{row['backend'] or 'unknown'}, {row['runtime'] or 'unknown'}"
            for row in rows_of(runs[["backend", "runtime"]])
        ),
        "models": words.listed(sorted(set(runs["model"]))),
        "data": words.listed(_data(row) for row in rows_of(runs[["dataset", "image_size"]])),
        "precision": words.listed(sorted(set(runs["variant"]))),
        "batch_sizes": words.listed(sorted(set(runs["batch_size"].dropna()))),
        "steps": _range(runs["steps"].dropna()),
        "repeats": _range(repeats),
        "completed": len(completed(runs)),
        "runs": len(runs),
    }


def _data(row: dict[str, Any]) -> str:
    size = f" {row['image_size']:g} px" if words.is_known(row["image_size"]) else ""
    return f"{row['dataset'] or 'unknown'}{size}"


def _range(values: "pd.Series[Any]") -> str:
    if values.empty:
        return words.ABSENT
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"

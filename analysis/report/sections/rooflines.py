"""Sections on rooflines (roofs of devices, steps and kernels below them, effect of batch and precision) and on models.

The section on models has their parameters, work per image and per step, and growth of work by layer type (Big-O).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.figures import Figure
from analysis.kernels.operators import SHOWN, longest, operators
from analysis.kernels.profiles import IMPORTED_OPERATOR_COLUMNS, OPERATOR_COLUMNS
from analysis.loading import units
from analysis.loading.tables import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from analysis.report.sections.answer import headline
from analysis.roofline.points import SHIFT_COLUMNS
from analysis.roofline.roofs import COLUMNS as ROOF_COLUMNS
from workload.contract import formulas
from workload.contract.spec import Device
from workload.contract.tables import Column, facts

IMPORTED = (*words.AS_IN_CHARTS, *facts(imported_file="file", details="details"))
FAMILY_COLUMNS = (
    *words.AS_IN_CHARTS,
    *facts(family="kernels"),
    Column(name="duration_s", heading="time", unit="s", prefixed=True),
    Column(name="share_of_time", heading="share", unit="%", digits=2),
    Column(name="intensity_flop_per_byte", heading="FLOP/byte", digits=3),
    Column(name="flop_per_s", heading="FLOP/s", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="sm_percent", heading="SM"),
    Column(name="dram_percent", heading="DRAM"),
)
OF_OPERATORS = (
    "Operators by torch.profiler, per step: self time on the CPU, without the time of called operators; "
    "the profiler slows down small operators most"
)
OF_KERNELS = "Kernels by torch.profiler, per step: their time on the GPU"
OF_TRACES = (
    "Operators of imported traces, per step. Time: on a CPU the operator's own time, on a GPU the time of the kernels "
    "that it launched. FLOP: by formula, from the recorded shapes. Bytes: modelled, least if each tensor is moved "
    "once, most if each operator reads and writes memory. Unattributed work has neither FLOP nor bytes"
)


def section(evidence: ReportEvidence) -> Section:
    """The section: roofs and sources of imported figures; shifts, kernels and operators are folded."""
    roofs = [
        row | {"ridge": words.quotient(row["flop_per_s"], row["bytes_per_s"])}
        for row in rows_of(evidence.material.roofs)
    ]
    runs = evidence.material.every
    imported = [row | {"details": "; ".join(row["notes"]) or None} for row in rows_of(runs[runs["imported"].eq(True)])]
    blocks: list[Block] = [
        words.table(caption, columns, rows)
        for caption, columns, rows in (
            ("Ceilings measured on the machine, and the vendors' peaks (dense)", ROOF_COLUMNS, roofs),
            ("Imported, measured by others", IMPORTED, imported),
        )
        if rows
    ]
    blocks += [Picture(figure=figure) for figure in others(evidence, "roofline_")]
    intensity: list[Block] = [Picture(figure=figure) for figure in evidence.figures("ai_vs_batch_")]
    if shifts := rows_of(evidence.shifts):
        caption = "Effect of batch size and precision (medians without intervals: a small difference may be chance)"
        intensity.append(words.table(caption, SHIFT_COLUMNS, shifts))
    kernels: list[Block] = [Picture(figure=figure) for figure in others(evidence, "kernel_roofline_")]
    parts = (
        ("intensity", "Intensity, batch and precision", intensity),
        ("kernels", "Kernels", [*kernels, *_families(evidence)]),
        ("operators", "Operators", _operators(evidence)),
    )
    folded = [
        Section(name=name, title=title, blocks=contents, folded=True) for name, title, contents in parts if contents
    ]
    return Section(name="roofline", title="Roofline", blocks=blocks, parts=folded)


def others(evidence: ReportEvidence, *names: str) -> list[Figure]:
    """Figures with these names that are not at the top of the page."""
    top = {figure.name for figure in headline(evidence)}
    return [figure for figure in evidence.figures(*names) if figure.name not in top]


def _families(evidence: ReportEvidence) -> list[Block]:
    rows = [
        row
        | {
            name: f"{words.figure(row[name])} %" if words.is_known(row.get(name)) else None
            for name in ("sm_percent", "dram_percent")
        }
        for row in rows_of(evidence.material.kernel_points)
    ]
    return [words.table("Kernel families of each profile", FAMILY_COLUMNS, rows)] if rows else []


def _operators(evidence: ReportEvidence) -> list[Block]:
    """Tables of operators in imported traces, of operators timed on CPUs, and of kernels timed on GPUs."""
    traced, _ = evidence.operators
    if traced.empty:
        return []
    works, _ = evidence.attributed
    selection = f"the {SHOWN} longest of each profile, and the total of all"
    rows = rows_of(longest(works, SHOWN))
    tables: list[Block] = [words.table(f"{OF_TRACES}; {selection}", IMPORTED_OPERATOR_COLUMNS, rows)] if rows else []
    # On a CPU, the operators of imported traces are already in the first table; on a GPU, kernels are not operators.
    alone, _ = operators(evidence.results, with_attributed=False)
    kernels = traced[traced["device_type"] != Device.CPU]
    own = longest(alone[alone["device_type"] == Device.CPU], SHOWN)
    for table, name, caption in ((own, "operator", OF_OPERATORS), (longest(kernels, SHOWN), "kernel", OF_KERNELS)):
        if len(table):
            columns = [
                replace(column, heading=name) if column.name == "name" else column for column in OPERATOR_COLUMNS
            ]
            tables.append(words.table(f"{caption}; {selection}", columns, rows_of(table)))
    return tables


COUNTED = "matrix products and convolutions, forward and backward; element-wise work, normalisation and pooling count 0"

MODELS = (
    *facts(task="model"),
    Column(name="parameters", heading="parameters", prefixed=True, digits=3),
    Column(name="forward_mac_per_image", heading="forward MAC/{one}", unit="MAC", prefixed=True, digits=3),
    Column(name="forward_flop_per_image", heading="forward FLOP/{one}", unit="FLOP", prefixed=True, digits=3),
    Column(name="train_flop_per_image", heading="training FLOP/{one}", unit="FLOP", prefixed=True, digits=3),
    Column(name="over_forward", heading="training / forward", digits=3),
    Column(name="per_parameter", heading="training FLOP per parameter", digits=3),
)
STEPS = (
    *facts(task="model", variant="precision"),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="train_flop_per_step", heading="FLOP per step", unit="FLOP", prefixed=True, digits=3),
    Column(name="bytes_lower_per_step", heading="bytes per step, least", unit="B", prefixed=True, digits=3),
    Column(name="bytes_upper_per_step", heading="most", unit="B", prefixed=True, digits=3),
    Column(name="intensity", heading="FLOP/byte"),
    Column(name="activation_bytes", heading="activations", unit="B", prefixed=True, digits=3, optional=True),
    Column(name="peak_memory_bytes", heading="peak memory", unit="B", prefixed=True, digits=3),
)
LAYERS = facts(
    layer="layer",
    forward="forward FLOP",
    order="order",
    training="training",
    bytes="bytes",
    intensity="arithmetic intensity",
)


def complexity(evidence: ReportEvidence) -> Section:
    """The section: work per model and per step, FLOP by operation, and Big-O per layer type."""
    runs = evidence.material.every
    known = runs[runs["parameters"].notna()].drop_duplicates("task")
    rows = {row["task"]: row for row in rows_of(known)}
    ordered = [rows[task] for task in evidence.material.tasks if task in rows]
    # Traces contain the work of a step, but no parameters.
    traced = rows_of(_traced(runs).drop_duplicates("task"))
    if not ordered and not traced:
        return Section(name="complexity", title="Model complexity")
    by_operation = [*ordered, *(row for row in traced if row["task"] not in rows)]
    blocks: list[Block] = [*([_models(ordered, evidence.material.unit)] if ordered else []), *_steps(evidence)]
    blocks += [*_by_operation(evidence, by_operation), *_words(rows_of(runs))]
    blocks.append(words.table(f"Growth by layer type: {formulas.GROWTH_SYMBOLS}", LAYERS, formulas.growth_of_layers()))
    return Section(name="complexity", title="Model complexity", blocks=blocks, folded=True)


def _traced(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that were imported from traces with tensor shapes."""
    return runs[runs["traced_busy_s"].notna() & runs["train_flop_per_step"].notna()]


def _models(rows: list[dict[str, Any]], unit: str) -> Block:
    known = [
        row
        | {
            "over_forward": words.quotient(row["train_flop_per_image"], row["forward_flop_per_image"]),
            "per_parameter": words.quotient(row["train_flop_per_image"], row["parameters"]),
        }
        for row in rows
    ]
    return words.table(f"Work per {units.singular(unit)}: {COUNTED}", units.headed(MODELS, unit), known)


def _steps(evidence: ReportEvidence) -> list[Block]:
    configuration = ["task", "variant", "batch_size"]
    ends = ["bytes_lower_per_step", "bytes_upper_per_step"]
    counted = [*ends, "activation_bytes"]
    # The bytes of a group of runs are those of its first run.
    first_runs = evidence.material.runs.drop_duplicates("line").set_index("line")[counted]
    tables = (
        evidence.material.measured.join(first_runs).drop_duplicates(configuration),
        _traced(evidence.material.every).drop_duplicates(configuration),
    )
    rows = []
    for row in (row for table in tables for row in rows_of(table)):
        flop, low, high = (row[name] for name in ("train_flop_per_step", *ends))
        intensity = words.between(words.quotient(flop, high), words.quotient(flop, low))
        rows.append(row | {"intensity": intensity})
    caption = (
        "Work per step: FLOP by formula; bytes modelled (least if each tensor is moved once, most if every operation "
        "reads and writes memory); activations are what the forward pass keeps for the backward pass"
    )
    return [words.table(caption, STEPS, rows)] if rows else []


def _by_operation(evidence: ReportEvidence, rows: list[dict[str, Any]]) -> list[Block]:
    shares: list[tuple[str, Mapping[str, float]]] = []
    for row in rows:
        record = evidence.record(row["run_id"])
        by_op = record.complexity.flop_by_op if record and record.complexity else None
        if by_op is not None:
            shares.append((row["task"], {kind: float(flop) for kind, flop in by_op.items() if flop}))
    kinds = sorted({kind for _, flop in shares for kind in flop})
    if not kinds:
        return []
    columns = [
        *facts(model="model"),
        *(Column(name=kind, heading=kind.replace("_", " "), unit="%", digits=2) for kind in kinds),
    ]
    rows_of_shares = [
        {"model": task, **({kind: flop.get(kind, 0.0) / sum(flop.values()) for kind in kinds} if flop else {})}
        for task, flop in shares
    ]
    return [words.table("Training FLOP by operation", columns, rows_of_shares)]


def _words(rows: list[dict[str, Any]]) -> list[Block]:
    intensities = {
        f"{row['task']} at batch {words.text(row['batch_size'])}, {row['variant']}": intensity
        for row in rows
        if (intensity := words.quotient(row["train_flop_per_step"], row["bytes_upper_per_step"])) is not None
    }
    if len(set(intensities.values())) < 2:  # noqa: PLR2004 - least and most
        return []
    low, high = (end(intensities, key=lambda name: intensities[name]) for end in (min, max))
    text = (
        f"If every operation moves its tensors from and to memory, {low} does the least work per byte: "
        f"{words.figure(intensities[low])} FLOP; {high}, the most: {words.figure(intensities[high])}. The "
        "less work per byte, the more a step depends on the memory's bandwidth; the roofline shows whether "
        "bandwidth or compute limits it."
    )
    return [Paragraph(text=text)]

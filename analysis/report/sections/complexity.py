"""Section on model complexity: parameters, work per image and per step, and growth of work by layer type (Big-O)."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.loading import units
from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Paragraph, Section
from analysis.report.evidence import ReportEvidence
from workload.contract import big_o
from workload.contract.tables import Column, facts
from workload.contract.text import printable

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
SHOWN_MODULES = 5
LARGEST = (
    *facts(task="model", module="module"),
    Column(name="flop", heading="FLOP", unit="FLOP", prefixed=True, digits=3),
    Column(name="share", heading="share", unit="%", digits=2),
    Column(name="bytes", heading="bytes, most", unit="B", prefixed=True, digits=3),
)
LAYERS = facts(
    layer="layer",
    forward="forward FLOP",
    order="order",
    training="training",
    bytes="bytes",
    intensity="arithmetic intensity",
)


def section(evidence: ReportEvidence) -> Section:
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
    blocks += [*_by_operation(evidence, by_operation), *_by_module(evidence, ordered), *_words(rows_of(runs)), _big_o()]
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


def _by_module(evidence: ReportEvidence, rows: list[dict[str, Any]]) -> list[Block]:
    """The modules with most FLOP of each model; empty for bundles that do not tell."""
    found = []
    for row in rows:
        record = evidence.record(row["run_id"])
        work = record.complexity if record else None
        if work is None or not work.flop_by_module or not work.train_flop_per_step:
            continue
        for module, flop in list(work.flop_by_module.items())[:SHOWN_MODULES]:
            moved_bytes = (work.bytes_by_module or {}).get(module)
            figures = {"flop": flop, "share": words.quotient(flop, work.train_flop_per_step), "bytes": moved_bytes}
            found.append({"task": row["task"], "module": printable(module), **figures})
    caption = (
        f"The {SHOWN_MODULES} modules with most training FLOP per step (python -m workload complexity --by-module)"
    )
    return [words.table(caption, LARGEST, found)] if found else []


def _words(rows: list[dict[str, Any]]) -> list[Block]:
    """A sentence on the configurations with least and most work per byte; empty if they do not differ."""
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


def _big_o() -> Block:
    return words.table(f"Growth by layer type: {big_o.SYMBOLS}", LAYERS, big_o.layers())

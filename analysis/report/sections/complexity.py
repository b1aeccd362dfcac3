"""Model complexity: parameters, work per image and step, and how it grows."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.report import words
from analysis.report.content import Block, Paragraph, Section
from analysis.report.evidence import Evidence

_TABLE = Path(__file__).parents[1] / "big_o.toml"
COUNTED = "matrix products and convolutions, forward and backward; element-wise work, normalisation and pooling count 0"


def section(evidence: Evidence) -> Section:
    """A table per model, the FLOP by operation, and Big-O per layer type."""
    runs = evidence.material.every
    known = runs[runs["parameters"].notna()].drop_duplicates("task")
    rows = {row["task"]: row for row in words.rows_of(known)}
    ordered = [rows[task] for task in evidence.material.tasks if task in rows]
    if not ordered:
        nothing = Paragraph(text="No run says how complex its model is (imported logs do not).")
        return Section(name="complexity", title="Model complexity", blocks=[nothing, _big_o()])
    blocks: list[Block] = [_models(ordered), _steps(evidence), *_by_operation(evidence, ordered)]
    blocks += [Paragraph(text=_words(ordered)), _big_o()]
    return Section(name="complexity", title="Model complexity", blocks=blocks)


def _models(rows: list[dict[str, Any]]) -> Block:
    columns = [
        ("model", False),
        ("parameters", True),
        ("forward MAC/image", True),
        ("forward FLOP/image", True),
        ("training FLOP/image", True),
        ("training / forward", True),
        ("training FLOP per parameter", True),
    ]
    cells = [
        [
            row["task"],
            words.si(row["parameters"], "").strip(),
            words.si(row["forward_mac_per_image"], "MAC"),
            words.si(row["forward_flop_per_image"], "FLOP"),
            words.si(row["train_flop_per_image"], "FLOP"),
            words.figure(_ratio(row, "train_flop_per_image", "forward_flop_per_image")),
            words.figure(_ratio(row, "train_flop_per_image", "parameters")),
        ]
        for row in rows
    ]
    return words.table(f"Work per image: {COUNTED}", columns, cells)


def _steps(evidence: Evidence) -> Block:
    table = evidence.material.measured.drop_duplicates(["task", "variant", "batch_size"])
    runs = evidence.material.runs.drop_duplicates("line").set_index("line")
    columns = [
        ("model", False),
        ("precision", False),
        ("batch", True),
        ("FLOP per step", True),
        ("bytes per step, least", True),
        ("most", True),
        ("FLOP/byte", True),
        ("peak memory", True),
    ]
    cells = []
    for line, row in zip(table.index, words.rows_of(table), strict=True):
        low, high = (_number(runs, line, f"bytes_{end}_per_step") for end in ("lower", "upper"))
        flop = row["train_flop_per_step"]
        intensity = words.between(words.quotient(flop, high), words.quotient(flop, low))
        cells.append(
            [
                row["task"],
                row["variant"],
                words.text(row["batch_size"]),
                words.si(flop, "FLOP"),
                words.si(low, "B"),
                words.si(high, "B"),
                intensity,
                words.si(row["peak_memory_bytes"], "B"),
            ]
        )
    return words.table(
        "Work per step: FLOP by formula; bytes modelled, from each tensor once to every operation from and to memory",
        columns,
        cells,
    )


def _number(table: pd.DataFrame, row: Any, column: str) -> float | None:
    value = float(pd.to_numeric(table[column]).loc[row])
    return value if words.is_known(value) else None


def _by_operation(evidence: Evidence, rows: list[dict[str, Any]]) -> list[Block]:
    shares: list[tuple[str, Mapping[str, float]]] = []
    for row in rows:
        complexity = evidence.record(row["run_id"]).get("complexity")
        found = complexity.get("flop_by_op") if isinstance(complexity, Mapping) else None
        if isinstance(found, Mapping):
            flop = {
                str(kind): float(value) for kind, value in found.items() if isinstance(value, int | float) and value > 0
            }
            shares.append((row["task"], flop))
    kinds = sorted({kind for _, flop in shares for kind in flop})
    if not kinds:
        return []
    columns = [("model", False), *((kind.replace("_", " "), True) for kind in kinds)]
    cells = [
        [task, *(words.percent(flop.get(kind, 0.0) / sum(flop.values())) if flop else words.ABSENT for kind in kinds)]
        for task, flop in shares
    ]
    return [words.table("Training FLOP by operation", columns, cells)]


def _words(rows: list[dict[str, Any]]) -> str:
    """What the table means for memory: little work per parameter or byte is what stresses it."""
    known = [row for row in rows if _ratio(row, "train_flop_per_step", "bytes_upper_per_step") is not None]
    if not known:
        return "No run has modelled bytes: what stresses memory most cannot be read from the formulas."
    intensities = {row["task"]: _ratio(row, "train_flop_per_step", "bytes_upper_per_step") or 0.0 for row in known}
    low, high = (
        min(intensities, key=lambda task: intensities[task]),
        max(intensities, key=lambda task: intensities[task]),
    )
    most = (
        f"By the model of bytes (every operation from and to memory), {low} does the least work per byte: "
        f"{words.figure(intensities[low])} FLOP"
    )
    if low == high:
        return f"{most}. The roofline says whether that is memory's or compute's side of a device."
    return (
        f"{most}, and {high} the most: {words.figure(intensities[high])}. The less work per byte, the more a "
        f"model depends "
        "on bandwidth; the roofline says on which side of a device's ridge it falls."
    )


def _big_o() -> Block:
    columns = [
        ("layer", False),
        ("forward FLOP", False),
        ("order", False),
        ("training", False),
        ("bytes", False),
        ("arithmetic intensity", False),
    ]
    cells = [
        [row[name] for name in ("layer", "forward", "order", "training", "bytes", "intensity")] for row in _layers()
    ]
    caption = (
        "Growth by layer type: N images, C channels in, K out, H x W pixels out, R x S filter, G groups, T "
        "tokens of width "
        "D, F features; 1 fused multiply-add = 2 FLOP"
    )
    return words.table(caption, columns, cells)


@functools.cache
def _layers() -> tuple[dict[str, str], ...]:
    return tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["layer"])


def _ratio(row: Mapping[str, Any], over: str, by: str) -> float | None:
    return words.quotient(row[over], row[by])

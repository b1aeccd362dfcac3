"""Rooflines: what the devices do, where steps and kernels stand below that, and how batch and precision move them."""

from typing import Any

import pandas as pd

from analysis.figures.figure import Figure
from analysis.operators import SHOWN, longest
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import Evidence
from analysis.report.sections.answer import headline
from workload.contract.spec import Device

OF_OPERATORS = (
    "Operators by torch.profiler, per step: self time on the CPU, without that of the operators which each one calls; "
    "the profiler slows down small operators most"
)
OF_KERNELS = "Kernels by torch.profiler, per step: their time on the GPU"


def section(evidence: Evidence) -> Section:
    """Roofs, steps, shifts, kernels, operators."""
    blocks: list[Block] = [_roofs(evidence)]
    blocks += [Picture(figure=each) for each in others(evidence, "roofline_")]
    parts = [Section(name="intensity", title="Intensity, batch and precision", blocks=_intensity(evidence))]
    kernels = others(evidence, "kernel_roofline_", "kernel_breakdown")
    if len(evidence.material.kernel_points):
        shown: list[Block] = [*(Picture(figure=each) for each in kernels), _families(evidence)]
        parts.append(Section(name="kernels", title="Kernels", blocks=shown))
    if tables := _operators(evidence):
        parts.append(Section(name="operators", title="Operators", blocks=tables))
    return Section(name="roofline", title="Roofline", blocks=blocks, parts=parts)


def others(evidence: Evidence, *names: str) -> list[Figure]:
    """Those that do not stand at the top of the page."""
    top = {figure.name for figure in headline(evidence)}
    return [figure for figure in evidence.figures(*names) if figure.name not in top]


def _roofs(evidence: Evidence) -> Block:
    roofs = evidence.material.roofs
    if roofs.empty:
        return Paragraph(text="No ceiling was measured, and no vendor's peak is known for these devices.")
    columns = [
        ("environment", False),
        ("device", False),
        ("precision", False),
        ("kind", False),
        ("FLOP/s", True),
        ("bandwidth", True),
        ("ridge, FLOP/byte", True),
        ("source", False),
        ("note", False),
    ]
    cells = [
        [
            row["env"],
            words.text(row["device_name"]),
            words.text(row["precision"]),
            words.text(row["kind"]),
            words.si(row["flop_per_s"], "FLOP/s"),
            words.si(row["bytes_per_s"], "B/s"),
            words.figure(words.quotient(row["flop_per_s"], row["bytes_per_s"])),
            words.text(row["source"]),
            words.text(row.get("note")),
        ]
        for row in words.rows_of(roofs)
    ]
    return words.table("Ceilings measured on the machine, and the vendors' peaks (dense)", columns, cells)


def _intensity(evidence: Evidence) -> list[Block]:
    blocks: list[Block] = [Picture(figure=each) for each in evidence.figures("ai_vs_batch_")]
    shifts = evidence.shifts
    if shifts.empty:
        return blocks or [Paragraph(text="No model ran with two batch sizes or two precisions in one environment.")]
    columns = [
        ("environment", False),
        ("model", False),
        ("bytes", False),
        ("changed", False),
        ("from", False),
        ("to", False),
        ("at", False),
        ("FLOP/byte from", True),
        ("to", True),
        ("FLOP/s, ratio", True),
        ("limited by", False),
    ]
    cells = [_shift(row) for row in words.rows_of(shifts)]
    caption = "How batch size and precision move a step (medians, without intervals: they are no claim by themselves)"
    return [*blocks, words.table(caption, columns, cells)]


def _shift(row: dict[str, Any]) -> list[str]:
    bounds = [words.text(row[f"bound_{side}"]) for side in ("left", "right")]
    return [
        words.text(row["place"]),
        words.text(row["model"]),
        words.text(row["source"]),
        words.text(row["changed"]).replace("_", " "),
        words.text(row["left"]),
        words.text(row["right"]),
        words.text(row["at"]),
        words.figure(row["intensity_left"]),
        words.figure(row["intensity_right"]),
        words.figure(row["flop_per_s_ratio"]),
        bounds[0] if bounds[0] == bounds[1] else " to ".join(bounds),
    ]


def _families(evidence: Evidence) -> Block:
    columns = [
        ("environment", False),
        ("model", False),
        ("batch", True),
        ("precision", False),
        ("kernels", False),
        ("launches", True),
        ("time", True),
        ("share", True),
        ("FLOP/byte", True),
        ("FLOP/s", True),
        ("SM", True),
        ("DRAM", True),
    ]
    cells = [
        [
            row["env"],
            row["task"],
            words.text(row["batch_size"]),
            row["variant"],
            words.text(row["family"]),
            words.figure(row["launches"]),
            words.seconds(row["duration_s"]),
            words.percent(row["share_of_time"]),
            words.figure(row["intensity_flop_per_byte"]),
            words.si(row["flop_per_s"], "FLOP/s"),
            f"{words.figure(row['sm_percent'])} %" if words.is_known(row.get("sm_percent")) else words.ABSENT,
            f"{words.figure(row['dram_percent'])} %" if words.is_known(row.get("dram_percent")) else words.ABSENT,
        ]
        for row in words.rows_of(evidence.material.kernel_points)
    ]
    return words.table("Kernel families of each profile", columns, cells)


def _operators(evidence: Evidence) -> list[Block]:
    """A table of the operators that torch.profiler timed on CPUs, and one of the kernels that it timed on GPUs."""
    traced, _ = evidence.operators
    if traced.empty:
        return []
    shown = longest(traced, SHOWN)
    on_cpu = shown["device_type"] == Device.CPU
    tables: list[Block] = []
    for rows, name, caption in (
        (shown[on_cpu], "operator", OF_OPERATORS),
        (shown[~on_cpu], "kernel", OF_KERNELS),
    ):
        if len(rows):
            tables.append(_timed(rows, name, f"{caption}; the {SHOWN} longest of each profile, and the whole"))
    return tables


def _timed(rows: pd.DataFrame, name: str, caption: str) -> Block:
    columns = [
        ("environment", False),
        ("model", False),
        ("batch", True),
        ("precision", False),
        (name, False),
        ("calls", True),
        ("own time", True),
        ("share", True),
        ("FLOP/s", True),
        ("note", False),
    ]
    cells = [
        [
            words.text(row["place"]),
            words.text(row["model"]),
            words.text(row["batch_size"]),
            words.text(row["precision"]),
            words.text(row["name"]),
            words.figure(row["launches"]),
            words.seconds(row["duration_s"]),
            words.percent(row["share_of_time"]),
            words.si(row["flop_per_s"], "FLOP/s"),
            words.text(row["note"]),
        ]
        for row in words.rows_of(rows)
    ]
    return words.table(caption, columns, cells)

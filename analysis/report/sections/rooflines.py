"""Section on rooflines: roofs of devices, position of steps and kernels below them, effect of batch and precision."""

from dataclasses import replace

from analysis.figures import Figure
from analysis.kernels.operators import SHOWN, longest
from analysis.loading.rows import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Picture, Section
from analysis.report.evidence import ReportEvidence
from analysis.report.sections.answer import headline
from workload.contract.spec import Device
from workload.contract.tables import Column, facts

ROOFS = (
    *facts(env="place", device_name="device", precision="precision", kind="kind"),
    Column(name="flop_per_s", heading="FLOP/s", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="bytes_per_s", heading="bandwidth", unit="B/s", prefixed=True, digits=3),
    Column(name="ridge", heading="ridge, FLOP/byte", digits=3),
    *facts(source="source", note="note"),
)
SHIFTS = (
    *facts(place="place", model="model", source="bytes", changed="changed", left="from", right="to", at="at"),
    Column(name="intensity_left", heading="FLOP/byte from", digits=3),
    Column(name="intensity_right", heading="to", digits=3),
    Column(name="flop_per_s_ratio", heading="FLOP/s, ratio", digits=3),
    *facts(bounds="limited by"),
)
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
OPERATOR_COLUMNS = (
    *words.AS_RECORDED,
    *facts(name="operator"),
    Column(name="launches", heading="calls", digits=3),
    Column(name="duration_s", heading="own time", unit="s", prefixed=True),
    Column(name="share_of_time", heading="share", unit="%", digits=2),
    Column(name="flop_per_s", heading="FLOP/s", unit="FLOP/s", prefixed=True, digits=3),
    *facts(note="note"),
)
OF_OPERATORS = (
    "Operators by torch.profiler, per step: self time on the CPU, without the time of called operators; "
    "the profiler slows down small operators most"
)
OF_KERNELS = "Kernels by torch.profiler, per step: their time on the GPU"
IMPORTED_OPERATOR_COLUMNS = (
    *words.AS_RECORDED,
    *facts(family="family", name="operator"),
    Column(name="launches", heading="calls", digits=3),
    Column(name="duration_s", heading="time", unit="s", prefixed=True, digits=3),
    Column(name="share_of_time", heading="share", unit="%", digits=2),
    Column(name="flop", heading="FLOP", unit="FLOP", prefixed=True, digits=3),
    Column(name="flop_per_s", heading="FLOP/s", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="bytes_lower", heading="bytes from", unit="B", prefixed=True, digits=3),
    Column(name="bytes_upper", heading="to", unit="B", prefixed=True, digits=3),
    *facts(note="note"),
)
OF_TRACES = (
    "Operators of imported traces, per step. Time: on a CPU the operator's own time, on a GPU the time of the kernels "
    "that it launched. FLOP: by formula, from the recorded shapes. Bytes: modelled, least if each tensor is moved "
    "once, most if each operator reads and writes memory. Unattributed work has neither FLOP nor bytes"
)


def section(evidence: ReportEvidence) -> Section:
    """The section: roofs and sources of imported figures; shifts, kernels and operators are folded."""
    blocks: list[Block] = [*_roofs(evidence), *_imported(evidence)]
    blocks += [Picture(figure=figure) for figure in others(evidence, "roofline_")]
    intensity: list[Block] = [Picture(figure=figure) for figure in evidence.figures("ai_vs_batch_")]
    kernels: list[Block] = [
        Picture(figure=figure) for figure in others(evidence, "kernel_roofline_", "kernel_breakdown")
    ]
    parts = (
        ("intensity", "Intensity, batch and precision", [*intensity, *_shifts(evidence)]),
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


def _roofs(evidence: ReportEvidence) -> list[Block]:
    roofs = evidence.material.roofs
    rows = [row | {"ridge": words.quotient(row["flop_per_s"], row["bytes_per_s"])} for row in rows_of(roofs)]
    return (
        [words.table("Ceilings measured on the machine, and the vendors' peaks (dense)", ROOFS, rows)] if rows else []
    )


def _imported(evidence: ReportEvidence) -> list[Block]:
    """Table of the sources of imported figures."""
    runs = evidence.material.every
    rows = [row | {"details": "; ".join(row["notes"]) or None} for row in rows_of(runs[runs["imported"].eq(True)])]
    return [words.table("Imported, measured by others", IMPORTED, rows)] if rows else []


def _shifts(evidence: ReportEvidence) -> list[Block]:
    shifts = evidence.shifts
    rows = []
    for row in rows_of(shifts):
        bounds = dict.fromkeys(words.text(row[f"bound_{side}"]) for side in ("left", "right"))
        rows.append(row | {"changed": row["changed"].replace("_", " "), "bounds": " to ".join(bounds)})
    caption = "Effect of batch size and precision (medians without intervals: a small difference may be chance)"
    return [words.table(caption, SHIFTS, rows)] if rows else []


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
    alone, kernels = evidence.listed_alone, traced[traced["device_type"] != Device.CPU]
    own = longest(alone[alone["device_type"] == Device.CPU], SHOWN)
    for table, name, caption in ((own, "operator", OF_OPERATORS), (longest(kernels, SHOWN), "kernel", OF_KERNELS)):
        if len(table):
            columns = [
                replace(column, heading=name) if column.name == "name" else column for column in OPERATOR_COLUMNS
            ]
            tables.append(words.table(f"{caption}; {selection}", columns, rows_of(table)))
    return tables

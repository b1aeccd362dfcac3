"""Section on runs of several devices: throughput, efficiency, and what limits scaling."""

from typing import Any

from analysis.loading import units
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from workload.contract.tables import Column, facts

TABLE = (
    *facts(env="place", task="model"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(precision="precision"),
    Column(name="threads", heading="threads each", digits=0),
    Column(name="devices", heading="devices", digits=0),
    Column(name="runs", heading="runs", digits=0),
    Column(name="all_images_per_s", heading="{unit}/s of all"),
    Column(name="images_per_s", heading="of each"),
    Column(name="efficiency", heading="efficiency", unit="%", digits=3),
    *facts(interval="interval"),
    Column(name="collectives_share", heading="collectives", unit="%", digits=2),
    Column(name="slow_rank_share", heading="waits for slower ranks", unit="%", digits=2),
    Column(name="rank_input_share", heading="input", unit="%", digits=2),
    *facts(limit="limits scaling", why="why no interval", note="note"),
)
EXPLANATION = (
    "Efficiency is the throughput of each device over that of one device alone, at the same batch size and threads per "
    "device. A rank is the process of one device. Waits are shares of a step, averaged over the ranks. Collectives: "
    "all gradients of a rank are computed, and it still exchanges them; this is the wait of the rank that waits least. "
    "The other ranks wait longer, for slower ranks. Input: a rank waits for its next batch. Devices also share memory, "
    "power and cooling, which slows each of them without a wait."
)


def section(evidence: ReportEvidence) -> Section:
    """The section; empty without runs on several devices."""
    blocks: list[Block] = []
    if rows := [{**row, "interval": _interval(row)} for row in evidence.scaling]:
        columns = units.headed(TABLE, evidence.material.unit)
        blocks = [Picture(figure=figure) for figure in evidence.figures("devices_efficiency")]
        blocks += [Paragraph(text=EXPLANATION), words.table("Runs on several devices", columns, rows)]
    return Section(name="scaling", title="Several devices", blocks=blocks)


def _interval(row: dict[str, Any]) -> str:
    if not words.is_known(row["level"]):
        return words.ABSENT
    ends = (words.percent(row["efficiency_low"], 3), words.percent(row["efficiency_high"], 3))
    return f"{words.percent(row['level'])}: {' to '.join(ends)}"

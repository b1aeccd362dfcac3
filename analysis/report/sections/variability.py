"""Variability: how far runs of one configuration lie apart, and why."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import Evidence


def section(evidence: Evidence) -> Section:
    """The figure of the fixed configuration, the table between runs, and the causes found."""
    blocks: list[Block] = [Picture(figure=each) for each in evidence.figures("variance_fixed_config")]
    if evidence.between.empty:
        blocks.append(Paragraph(text="No run timed its steps: nothing is said about how they vary."))
    else:
        blocks += [_between(evidence), *_causes(evidence)]
    return Section(name="variability", title="Variability", blocks=blocks)


def _between(evidence: Evidence) -> Block:
    columns = [
        ("environment", False),
        ("model", False),
        ("batch", True),
        ("precision", False),
        ("runs", True),
        ("CoV between runs", True),
        ("95 % interval", True),
        ("CoV within runs", True),
        ("steps are worth", True),
        ("note", False),
    ]
    cells = [
        [
            words.text(row["place"]),
            words.text(row["model"]),
            words.text(row["batch_size"]),
            words.text(row["precision"]),
            words.text(row["runs"]),
            words.percent(row["cov_between"]),
            f"{words.percent(row['cov_between_low'])} to {words.percent(row['cov_between_high'])}"
            if words.is_known(row["cov_between_low"])
            else words.ABSENT,
            words.percent(row["cov_within"]),
            words.figure(row["effective_steps"]),
            words.text(row["note"]),
        ]
        for row in words.rows_of(evidence.between)
    ]
    caption = (
        "Variation of step times (standard deviation of the logarithm): between runs, and within a run; what "
        "the steps are "
        "worth as independent ones"
    )
    return words.table(caption, columns, cells)


def _causes(evidence: Evidence) -> list[Block]:
    """One line per cause and environment: how many runs, and the strongest case."""
    env_of = dict(zip(evidence.material.runs["run_id"], evidence.material.runs["env"], strict=True))
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in words.rows_of(evidence.causes):
        found[env_of.get(row["run_id"], words.ABSENT), row["cause"]].append(row)
    no_telemetry = evidence.results.telemetry.empty
    if not found:
        looked = "No cause of variation was found in the telemetry."
        return [Paragraph(text="No run has telemetry to look for causes in." if no_telemetry else looked)]
    columns = [
        ("environment", False),
        ("cause", False),
        ("runs", True),
        ("share explained, most", True),
        ("95 % interval", True),
        ("of", False),
        ("a fault", False),
        ("evidence of that run", False),
        ("cure", False),
    ]
    cells = []
    for (env, cause), rows in found.items():
        worst = max(rows, key=lambda row: row["share_explained"] if words.is_known(row["share_explained"]) else -1.0)
        cells.append(
            [
                env,
                cause,
                str(len(rows)),
                words.percent(worst["share_explained"]),
                f"{words.percent(worst['share_low'])} to {words.percent(worst['share_high'])}"
                if words.is_known(worst["share_low"])
                else words.ABSENT,
                words.text(worst["share_of"]),
                words.text(worst["is_fault"]),
                words.text(worst["evidence"]),
                words.text(worst["cure"]),
            ]
        )
    return [words.table("Causes found, and how much they explain", columns, cells)]

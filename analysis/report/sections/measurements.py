"""Sections on measurements (effects of settings, every configuration, cost), on their variability, and on scaling."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.compare.pairing import value_text
from analysis.figures import registry
from analysis.figures.material import NAMING
from analysis.loading import units
from analysis.loading.configurations import CONFIGURATION, completed, label, shown
from analysis.loading.tables import rows as rows_of
from analysis.report import words
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from analysis.summary import spent
from workload.contract.spent import STEPS, time_text
from workload.contract.tables import Column, facts
from workload.contract.text import counted

# Maximum number of pairs of one fact in the table; `analyze compare` prints all.
MOST_PAIRS = 100
SUMMARY = (
    *facts(env="place", task="model", precision="precision"),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="runs", heading="runs", digits=0),
    Column(name="images_per_s", heading="{unit}/s, median"),
    Column(name="interval", heading="95 % interval"),
    Column(name="step_s", heading="step", unit="s", prefixed=True),
    Column(name="peak_memory_bytes", heading="peak memory", unit="B", prefixed=True, digits=3),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True, digits=3),
    Column(name="intensity", heading="FLOP/byte", digits=3),
    Column(name="fraction_of_roof", heading="of the roof", unit="%", digits=2),
    *facts(bound="limited by", busy="busy"),
    Column(name="data_wait_fraction", heading="data waits", unit="%", digits=2),
)
COMPARED = (
    *facts(fact="compared", model="model"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(precision="precision", left="left", right="right"),
    Column(name="ratio", heading="right/left", digits=3),
    Column(name="interval", heading="jointly 95 %"),
    Column(name="p_holm", heading="p (Holm)", digits=2),
    *facts(verdict="verdict", note="note"),
)

CHEAPEST = (
    *facts(task="model", env="place"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(variant="precision"),
    Column(name="usd_per_million_images", heading="USD per million {unit}", digits=3),
    Column(name="interval", heading="95 % interval"),
    Column(name="usd_per_h", heading="USD/h", digits=3),
    Column(name="runs", heading="runs", digits=0),
    *facts(price="price from"),
)
TIME = (
    *facts(env="place"),
    Column(name="runs", heading="runs", digits=0),
    Column(name="took", heading="took together"),
    Column(name="usd", heading="USD", digits=2),
    Column(name="steps", heading="steps", unit="%", digits=2),
    *facts(rest="the rest"),
)
BETWEEN = (
    *words.AS_IN_CHARTS,
    Column(name="runs", heading="runs", digits=0),
    Column(name="cov_between", heading="CoV between runs", unit="%", digits=2),
    Column(name="interval", heading="95 % interval"),
    Column(name="cov_within", heading="CoV within runs", unit="%", digits=2),
    Column(name="effective_steps", heading="independent steps", digits=3),
    *facts(note="note"),
)
CAUSES = (
    *facts(env="place", cause="cause"),
    Column(name="runs", heading="runs", digits=0),
    Column(name="share_explained", heading="largest share explained", unit="%", digits=2),
    Column(name="interval", heading="95 % interval"),
    *facts(share_of="share of", is_fault="a fault", evidence="evidence, from the run with that share", cure="cure"),
)
FIGURES = (
    "throughput_comparison",
    "throughput_env-",
    "batch_size_scaling",
    "model_comparison",
    "efficiency_comparison",
)


def section(evidence: ReportEvidence) -> Section:
    """The section: figures, every configuration, comparisons, cost."""
    blocks: list[Block] = [Picture(figure=figure) for figure in evidence.figures(*FIGURES)]
    blocks += [*_summary(evidence), *_compared(evidence), *_cheapest(evidence), *_time(evidence)]
    return Section(name="measurements", title="Measurements", blocks=blocks)


def _compared(evidence: ReportEvidence) -> list[Block]:
    number_of: Counter[str] = Counter()
    rows = []
    for contrast in evidence.contrasts:
        fact, row = contrast.fact, contrast.row
        number_of[fact] += 1
        if number_of[fact] <= MOST_PAIRS:
            left, right = (value_text(fact, side.value) for side in contrast.pair.sides)
            interval = words.between(row["ratio_low"], row["ratio_high"])
            rows.append({**row, "fact": label(fact), "left": left, "right": right, "interval": interval})
    if not rows:
        return []
    pairs = ", ".join(f"{counted(number, 'pair')} by {label(fact)}" for fact, number in number_of.items())
    more = (
        f"; the first {MOST_PAIRS} of each, analyze compare prints all" if len(rows) < len(evidence.contrasts) else ""
    )
    caption = (
        f"Ratio of {evidence.material.unit}/s; intervals and p-values corrected for the pairs of one fact (Holm): "
        f"{pairs}{more}"
    )
    return [words.table(caption, COMPARED, rows)]


def _cheapest(evidence: ReportEvidence) -> list[Block]:
    costs = registry.cheapest(evidence.material.costs)
    rows = [
        row | {"interval": words.between(row["usd_per_million_images_low"], row["usd_per_million_images_high"])}
        for row in rows_of(costs)
    ]
    if not rows:
        return []
    columns = units.headed(CHEAPEST, evidence.material.unit)
    return [words.table("Cheapest configuration of each model and place", columns, rows)]


def _time(evidence: ReportEvidence) -> list[Block]:
    runs, rows, is_whole = completed(evidence.material.every), [], True
    for env in evidence.material.environments:
        time = spent(runs[runs["env"] == env])
        if time.runs:
            row = {"env": env, "runs": time.runs, "took": time_text(time.wall_s), "usd": time.usd, "rest": time.rest()}
            rows.append({**row, "steps": time.shares().get(STEPS, 0.0)})
            # Only the time of rented machines, which is paid for, is known as a whole.
            is_whole &= time.usd is not None
    caption = "Where the time of the completed runs went" + (
        "" if is_whole else ", without the launcher's own (its start, its checks before and after each run)"
    )
    caption += ". Parts of less than 1 % are left out"
    return [words.table(caption, TIME, rows)] if rows else []


def _summary(evidence: ReportEvidence) -> list[Block]:
    # The roofline point of each configuration: from counters if available, else modelled.
    points: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in rows_of(evidence.material.points):
        key = (point["env"], point["task"], point["variant"], point["batch_size"])
        if point["source"] == "counters" or key not in points:
            points[key] = point
    rows = []
    for row in rows_of(evidence.material.measured):
        point = points.get((row["env"], row["task"], row["variant"], row["batch_size"]), {})
        rows.append(
            row
            | {
                "precision": row["series"].partition(" · ")[2],
                "interval": words.between(row["images_per_s_low"], row["images_per_s_high"], 4),
                "intensity": point.get("intensity_flop_per_byte"),
                "fraction_of_roof": point.get("fraction_of_roof"),
            }
        )
    columns = units.columns(_headed(SUMMARY, evidence), evidence.material.measured)
    return [words.table("Every configuration", columns, rows)] if rows else []


def _headed(columns: Sequence[Column], evidence: ReportEvidence) -> list[Column]:
    """Copy columns; the heading `precision` becomes `settings` if its cells name other settings too."""
    heading = evidence.material.variant_title.lower()
    return [replace(column, heading=heading) if column.heading == "precision" else column for column in columns]


# --- variability


def variability(evidence: ReportEvidence) -> Section:
    """The section on variability: figure of one repeated configuration, variation between runs, and causes."""
    blocks: list[Block] = [Picture(figure=figure) for figure in evidence.figures("variance_fixed_config")]
    if len(evidence.between):
        blocks += [*_between(evidence), *_causes(evidence)]
    return Section(name="variability", title="Variability", blocks=blocks)


def _between(evidence: ReportEvidence) -> list[Block]:
    known = evidence.between.dropna(subset=["cov_between", "cov_within"], how="all")
    name_of = {tuple(run[fact] for fact in NAMING): run for run in rows_of(evidence.material.every)}
    rows = []
    for row in rows_of(known):
        run = name_of[tuple(row[fact] for fact in NAMING)]
        # Its names say how the configuration differs from others.
        said = {shown(fact, row[fact]) for fact in CONFIGURATION}
        notes = [note for note in (row["note"] or "").split("; ") if note not in said]
        names = {name: run[name] for name in ("env", "task", "variant")}
        rows.append({**row, **names, "interval": _share_interval(row, "cov_between"), "note": "; ".join(notes) or None})
    rows.sort(key=lambda row: (row["env"], row["task"], row["variant"], row["batch_size"] or 0))
    caption = (
        "Coefficient of variation (CoV) of step times: between the runs of a configuration, and within a run. "
        "Independent steps: the number of independent steps that would be as informative as all steps, because "
        "neighbouring steps are alike"
    )
    return [words.table(caption, _headed(BETWEEN, evidence), rows)] if rows else []


def _causes(evidence: ReportEvidence) -> list[Block]:
    env_of = dict(zip(evidence.material.runs["run_id"], evidence.material.runs["env"], strict=True))
    by_cause: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows_of(evidence.causes):
        by_cause[env_of.get(row["run_id"], words.ABSENT), row["cause"]].append(row)
    strongest = []
    for (env, _), rows in by_cause.items():
        worst = max(rows, key=lambda row: row["share_explained"] if words.is_known(row["share_explained"]) else -1.0)
        strongest.append({**worst, "env": env, "runs": len(rows), "interval": _share_interval(worst, "share")})
    caption = "Causes of slow or uneven runs, and the share that each explains"
    return [words.table(caption, CAUSES, strongest)] if strongest else []


def _share_interval(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{words.percent(low)} to {words.percent(high)}" if words.is_known(low) else words.ABSENT


SCALING = (
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


def scaling(evidence: ReportEvidence) -> Section:
    """The section; empty without runs on several devices."""
    blocks: list[Block] = []
    if rows := [
        row
        | {
            "interval": f"{words.percent(row['level'])}: {words.percent(row['efficiency_low'], 3)} to "
            f"{words.percent(row['efficiency_high'], 3)}"
            if words.is_known(row["level"])
            else words.ABSENT
        }
        for row in evidence.scaling
    ]:
        columns = units.headed(SCALING, evidence.material.unit)
        blocks = [Picture(figure=figure) for figure in evidence.figures("devices_efficiency")]
        blocks += [Paragraph(text=EXPLANATION), words.table("Runs on several devices", columns, rows)]
    return Section(name="scaling", title="Several devices", blocks=blocks)

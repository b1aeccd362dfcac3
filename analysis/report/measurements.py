"""Sections on measured throughput, times, variation, scaling, rooflines and the work of models."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.figures import Figure, registry
from analysis.figures.material import NAMING
from analysis.kernel_profiles import IMPORTED_OPERATOR_COLUMNS, OPERATOR_COLUMNS
from analysis.kernels import SHOWN, longest, operators
from analysis.loading import units
from analysis.loading.configurations import CONFIGURATION, completed, label, shown
from analysis.loading.tables import rows as rows_of
from analysis.pairing import value_text
from analysis.report import content
from analysis.report.answer import headline
from analysis.report.content import Block, Paragraph, Picture, Section
from analysis.report.evidence import ReportEvidence
from analysis.roofline.points import SHIFT_COLUMNS
from analysis.roofline.roofs import COLUMNS as ROOF_COLUMNS
from analysis.summary import spent
from workload.contract import formulas
from workload.contract.spec import Device
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
    Column(name="joules_per_image", heading="J per {one}", digits=3),
    Column(name="intensity", heading="FLOP/byte", digits=3),
    Column(name="fraction_of_roof", heading="of the roof", unit="%", digits=2),
    Column(name="mfu", heading="MFU", unit="%", digits=2),
    Column(name="hfu", heading="HFU", unit="%", digits=2),
    *facts(mfu_peak="dense peak of MFU"),
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
    Column(name="epoch_s", heading="time", unit="s", prefixed=True, digits=3),
    Column(name="epoch_usd", heading="USD", digits=3),
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
    *content.AS_IN_CHARTS,
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
    "energy_comparison",
)


def throughput(evidence: ReportEvidence) -> Section:
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
            interval = content.between(row["ratio_low"], row["ratio_high"])
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
    return [content.table(caption, COMPARED, rows)]


def _cheapest(evidence: ReportEvidence) -> list[Block]:
    costs = registry.cheapest(evidence.material.costs)
    rows = [row | {"interval": content.between(row["epoch_usd_low"], row["epoch_usd_high"])} for row in rows_of(costs)]
    if not rows:
        return []
    caption = f"Cheapest configuration of each model and place: time and cost of {rows[0]['epoch_of']}"
    return [content.table(caption, CHEAPEST, rows)]


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
    return [content.table(caption, TIME, rows)] if rows else []


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
                "interval": content.between(row["images_per_s_low"], row["images_per_s_high"], 4),
                "intensity": point.get("intensity_flop_per_byte"),
                "fraction_of_roof": point.get("fraction_of_roof"),
            }
        )
    columns = units.columns(_headed(SUMMARY, evidence), evidence.material.measured)
    return [content.table("Every configuration", columns, rows)] if rows else []


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
    return [content.table(caption, _headed(BETWEEN, evidence), rows)] if rows else []


def _causes(evidence: ReportEvidence) -> list[Block]:
    env_of = dict(zip(evidence.material.runs["run_id"], evidence.material.runs["env"], strict=True))
    by_cause: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows_of(evidence.causes):
        by_cause[env_of.get(row["run_id"], content.ABSENT), row["cause"]].append(row)
    strongest = []
    for (env, _), rows in by_cause.items():
        worst = max(rows, key=lambda row: row["share_explained"] if content.is_known(row["share_explained"]) else -1.0)
        strongest.append({**worst, "env": env, "runs": len(rows), "interval": _share_interval(worst, "share")})
    caption = "Causes of slow or uneven runs, and the share that each explains"
    return [content.table(caption, CAUSES, strongest)] if strongest else []


def _share_interval(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{content.percent(low)} to {content.percent(high)}" if content.is_known(low) else content.ABSENT


SCALING = (
    *facts(env="place", task="model"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(precision="precision"),
    Column(name="threads", heading="threads each", digits=0),
    Column(name="machines", heading="machines", digits=0),
    Column(name="devices", heading="devices", digits=0),
    Column(name="runs", heading="runs", digits=0),
    Column(name="all_images_per_s", heading="{unit}/s of all"),
    Column(name="images_per_s", heading="of each"),
    Column(name="efficiency", heading="efficiency", unit="%", digits=3),
    *facts(interval="interval", gain="together"),
    Column(name="collectives_share", heading="collectives", unit="%", digits=2),
    Column(name="slow_rank_share", heading="waits for slower ranks", unit="%", digits=2),
    Column(name="rank_input_share", heading="input", unit="%", digits=2),
    *facts(limit="limits scaling", why="why no interval", note="note"),
)
EXPLANATION = (
    "Efficiency is the throughput of each device over that of one device alone, at the same batch size and threads per "
    "device; of several machines, over that of a device of one machine. A rank is the process of one device. Waits are "
    "shares of a step, averaged over the ranks. Collectives: a rank does nothing but exchange "
    "gradients or weights; this is the wait of the rank that waits least. The other ranks wait longer, for slower "
    "ranks. Input: a rank waits for its next batch. Devices also share memory, power and cooling, which slows each of "
    "them without a wait."
)


def scaling(evidence: ReportEvidence) -> Section:
    """The section; empty without runs on several devices."""
    blocks: list[Block] = []
    has_machines = any(row["by"] == "machines" for row in evidence.scaling)
    if rows := [
        row
        | {
            "machines": row["machines"] if has_machines else None,
            "interval": f"{content.percent(row['level'])}: {content.percent(row['efficiency_low'], 3)} to "
            f"{content.percent(row['efficiency_high'], 3)}"
            if content.is_known(row["level"])
            else content.ABSENT,
        }
        for row in evidence.scaling
    ]:
        columns = units.headed(SCALING, evidence.material.unit)
        blocks = [Picture(figure=figure) for figure in evidence.figures("devices_efficiency")]
        blocks += [Paragraph(text=EXPLANATION), content.table("Runs on several devices", columns, rows)]
    return Section(name="scaling", title="Several devices", blocks=blocks)


IMPORTED = (*content.AS_IN_CHARTS, *facts(imported_file="file", details="details"))
FAMILY_COLUMNS = (
    *content.AS_IN_CHARTS,
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


def roofs(evidence: ReportEvidence) -> Section:
    """The section: roofs and sources of imported figures; shifts, kernels and operators are folded."""
    roofs = [
        row | {"ridge": content.quotient(row["flop_per_s"], row["bytes_per_s"])}
        for row in rows_of(evidence.material.roofs)
    ]
    runs = evidence.material.every
    imported = [row | {"details": "; ".join(row["notes"]) or None} for row in rows_of(runs[runs["imported"].eq(True)])]
    blocks: list[Block] = [
        content.table(caption, columns, rows)
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
        intensity.append(content.table(caption, SHIFT_COLUMNS, shifts))
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
            name: f"{content.figure(row[name])} %" if content.is_known(row.get(name)) else None
            for name in ("sm_percent", "dram_percent")
        }
        for row in rows_of(evidence.material.kernel_points)
    ]
    return [content.table("Kernel families of each profile", FAMILY_COLUMNS, rows)] if rows else []


def _operators(evidence: ReportEvidence) -> list[Block]:
    """Tables of operators in imported traces, of operators timed on CPUs, and of kernels timed on GPUs."""
    traced, _ = evidence.operators
    if traced.empty:
        return []
    works, _ = evidence.attributed
    selection = f"the {SHOWN} longest of each profile, and the total of all"
    rows = rows_of(longest(works, SHOWN))
    tables: list[Block] = [content.table(f"{OF_TRACES}; {selection}", IMPORTED_OPERATOR_COLUMNS, rows)] if rows else []
    # On a CPU, the operators of imported traces are already in the first table; on a GPU, kernels are not operators.
    alone, _ = operators(evidence.results, with_attributed=False)
    kernels = traced[traced["device_type"] != Device.CPU]
    own = longest(alone[alone["device_type"] == Device.CPU], SHOWN)
    for table, name, caption in ((own, "operator", OF_OPERATORS), (longest(kernels, SHOWN), "kernel", OF_KERNELS)):
        if len(table):
            columns = [
                replace(column, heading=name) if column.name == "name" else column for column in OPERATOR_COLUMNS
            ]
            tables.append(content.table(f"{caption}; {selection}", columns, rows_of(table)))
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
STEP_WORK = (
    *facts(task="model", variant="precision"),
    Column(name="batch_size", heading="batch", digits=0),
    Column(name="train_flop_per_step", heading="FLOP per step", unit="FLOP", prefixed=True, digits=3),
    Column(name="bytes_lower_per_step", heading="bytes per step, least", unit="B", prefixed=True, digits=3),
    Column(name="bytes_upper_per_step", heading="most", unit="B", prefixed=True, digits=3),
    Column(name="intensity", heading="FLOP/byte"),
    Column(name="activations_bytes", heading="activations", unit="B", prefixed=True, digits=3, optional=True),
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
    blocks += [*_by_operation(evidence, by_operation), *_stated(rows_of(runs))]
    blocks.append(
        content.table(f"Growth by layer type: {formulas.GROWTH_SYMBOLS}", LAYERS, formulas.growth_of_layers())
    )
    return Section(name="complexity", title="Model complexity", blocks=blocks, folded=True)


def _traced(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that were imported from traces with tensor shapes."""
    return runs[runs["traced_busy_s"].notna() & runs["train_flop_per_step"].notna()]


def _models(rows: list[dict[str, Any]], unit: str) -> Block:
    known = [
        row
        | {
            "over_forward": content.quotient(row["train_flop_per_image"], row["forward_flop_per_image"]),
            "per_parameter": content.quotient(row["train_flop_per_image"], row["parameters"]),
        }
        for row in rows
    ]
    return content.table(f"Work per {units.singular(unit)}: {COUNTED}", units.headed(MODELS, unit), known)


def _steps(evidence: ReportEvidence) -> list[Block]:
    configuration = ["task", "variant", "batch_size"]
    ends = ["bytes_lower_per_step", "bytes_upper_per_step"]
    counted = [*ends, "activations_bytes"]
    # The bytes of a group of runs are those of its first run.
    first_runs = evidence.material.runs.drop_duplicates("line").set_index("line")[counted]
    tables = (
        evidence.material.measured.join(first_runs).drop_duplicates(configuration),
        _traced(evidence.material.every).drop_duplicates(configuration),
    )
    rows = []
    for row in (row for table in tables for row in rows_of(table)):
        flop, low, high = (row[name] for name in ("train_flop_per_step", *ends))
        intensity = content.between(content.quotient(flop, high), content.quotient(flop, low))
        rows.append(row | {"intensity": intensity})
    caption = (
        "Work per step: FLOP by formula; bytes modelled (least if each tensor is moved once, most if every operation "
        "reads and writes memory); activations are what the forward pass keeps for the backward pass"
    )
    return [content.table(caption, STEP_WORK, rows)] if rows else []


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
    return [content.table("Training FLOP by operation", columns, rows_of_shares)]


def _stated(rows: list[dict[str, Any]]) -> list[Block]:
    intensities = {
        f"{row['task']} at batch {content.text(row['batch_size'])}, {row['variant']}": intensity
        for row in rows
        if (intensity := content.quotient(row["train_flop_per_step"], row["bytes_upper_per_step"])) is not None
    }
    if len(set(intensities.values())) < 2:  # noqa: PLR2004 - least and most
        return []
    low, high = (end(intensities, key=lambda name: intensities[name]) for end in (min, max))
    text = (
        f"If every operation moves its tensors from and to memory, {low} does the least work per byte: "
        f"{content.figure(intensities[low])} FLOP; {high}, the most: {content.figure(intensities[high])}. The "
        "less work per byte, the more a step depends on the memory's bandwidth; the roofline shows whether "
        "bandwidth or compute limits it."
    )
    return [Paragraph(text=text)]

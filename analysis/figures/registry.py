"""Builders of all figures by name: their data, the conditions for leaving them out, titles and captions. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import altair as alt
import pandas as pd

from analysis.figures import Figure, labels, rooflines, style, throughput
from analysis.figures.material import Material, legible
from analysis.kernels import ALL
from analysis.loading import units
from analysis.loading.configurations import devices_of, together
from analysis.loading.tables import rows as rows_of
from analysis.roofline.points import TRACED_TIME
from workload.contract.spent import joules_text
from workload.contract.tables import number
from workload.contract.text import counted, percent, si, signed_percent

Builder: TypeAlias = Callable[[Material], Iterator[Figure]]
T = TypeVar("T")

# Maximum number of figures of a kind; the tables show further environments or models.
MOST_OF_A_KIND = 24
# Maximum number of points that a figure's text names.
MOST_LISTED = 6
# Least number of values for a figure; a table is easier to read for fewer.
LEAST_DOTS, LEAST_ON_A_CURVE = 4, 3


class Bars(StrEnum):
    """Bars of throughput figures: a 95 % interval, or the mean plus and minus one standard deviation."""

    INTERVAL = "interval"
    SD = "sd"


# Column of the table of a figure whose bars are no intervals.
BARS = "bars"
DEVIATIONS = "Bars are the mean ± 1 standard deviation over runs, where there are at least two."
INTERVALS = "Bars are 95 % intervals over runs, where there are at least three."
ARROWS = "An arrowhead means that the interval continues outside of the figure."
EACH_DEVICE = "Where several devices train together, the figure is that of one of them. "
COUNTERS = "counters"
# Up to this many environments, two batch sizes make a curve; with more, batch_size_scaling compares them instead.
FEW_ENVIRONMENTS = 3
# An environment with fewer points gets no roofline of its own: the combined roofline shows its only point.
MOST_IN_COMBINED = 2


def figures(material: Material, bars: Bars = Bars.INTERVAL) -> list[Figure]:
    """All figures that have data, in the order of the report. `bars`: what the bars of throughput show."""
    if bars is Bars.SD:
        table = material.measured
        mean, sd = table["images_per_s_mean"].astype(float), table["images_per_s_sd"].astype(float)
        table = table.assign(
            images_per_s_low=mean - sd, images_per_s_high=mean + sd, interval="mean ± 1 SD", **{BARS: bars.value}
        )
        material = replace(material, measured=table)
    # Altair validates every part against its schema, which takes 10 s for 40 figures. Only the tests validate.
    with alt.utils.schemapi.debug_mode(False):
        return [drawn for build in REGISTRY.values() for drawn in built(build, material)]


def built(build: Builder, material: Material) -> Iterator[Figure]:
    """Figures of one builder, limited to `material.MOST_ENVIRONMENTS` environments; captions mention the rest."""
    shown, left_out = legible(material)
    for drawn in build(shown):
        yield replace(drawn, caption=f"{left_out}{drawn.caption}")


def _throughput_env(material: Material) -> Iterator[Figure]:
    stems = labels.distinct(material.environments)
    few = len(material.environments) <= FEW_ENVIRONMENTS
    known = material.measured[material.measured["images_per_s"].notna()]
    curves = {
        env: table
        for env in material.environments
        if len(table := _in(known, env)) >= LEAST_ON_A_CURVE and _has_batches(table, "series", least=2 if few else 3)
    }
    shown, more = _first(list(curves.items()), "places")
    for env, table in shown:
        failed = _in(material.failed, env)
        yield Figure(
            name=f"throughput_env-{stems[env]}",
            title=f"Throughput against batch size: {env}",
            caption=f"{more}{_shared(table, 'task', 'variant')}{', '.join(_devices(table)) or 'Unknown device'}. "
            f"{_intervals(table, 'images_per_s')}"
            + (" A cross at the bottom marks a batch size with no completed run." if len(failed) else ""),
            text=_rate_text(table),
            chart=throughput.against_batch(material, table, failed),
        )


def _variance(material: Material) -> Iterator[Figure]:
    runs = fixed_configuration(material)
    if runs is None:
        return
    rows = throughput.variance_rows(runs)
    first, spread = runs.iloc[0], rows.groupby("env", sort=False)["relative"].agg(["min", "max", "size"])
    configuration = f"{first['task']}, batch {first['batch_size']:g}, {first['variant']}"
    known = rows[["slow", "fast"]].notna().all(axis=1)
    where = "" if known.all() else ", where its steps are known"
    ranges = (
        f"The line through it{where}: the throughput if all steps were as slow as the run's 95th percentile (left end) "
        "or as fast as its 5th (right end), with the same waits for data."
        if known.any()
        else "No run recorded how its steps vary."
    )
    yield Figure(
        name="variance_fixed_config",
        title=f"Variability of one configuration: {configuration}",
        caption=f"Each point is a run, relative to the median of its place. {ranges} This is the "
        "configuration that was repeated in the most places."
        + (f" At most {throughput.MOST_RUNS} runs of each place are drawn." if len(rows) < len(runs) else ""),
        text="; ".join(
            f"{env}: {size:g} runs from {signed_percent(low)} to {signed_percent(high)}"
            for env, low, high, size in spread.itertuples(name=None)
        ),
        chart=throughput.variance(material, rows),
    )


def fixed_configuration(material: Material) -> pd.DataFrame | None:
    """Runs of the configuration that is repeated in the most environments; None if no configuration is repeated.

    Among several such configurations, the one with the most runs is chosen. A repeated configuration has at least two
    runs in an environment.
    """
    runs = material.runs[material.runs["images_per_s"].notna()]
    best: tuple[tuple[int, int], pd.DataFrame] | None = None
    for _, repeats in runs.groupby(["task", "batch_size", "variant"], sort=True):
        # One configuration and environment can have several rows in `measured`, which must not be pooled: keep the row
        # with the most runs.
        lines = repeats.groupby(["env", "line"]).size().reset_index(name="runs")
        lines = lines.sort_values("runs", ascending=False, kind="stable").drop_duplicates("env")
        lines = lines[lines["runs"] > 1]
        rank = (len(lines), int(lines["runs"].sum()))
        if len(lines) and (best is None or rank > best[0]):
            best = rank, repeats[repeats["line"].isin(lines["line"])]
    return best[1] if best else None


def _roofline_env(material: Material) -> Iterator[Figure]:
    stems = labels.distinct(material.environments)
    points = drawable(material.points)
    tables = {env: table for env in material.environments if len(table := _in(points, env))}
    # The combined roofline already shows an environment with a single point.
    several = {env: table for env, table in tables.items() if len(table) >= MOST_IN_COMBINED or len(tables) == 1}
    shown, more = _first(list(several.items()), "places")
    for env, table in shown:
        # With its devices, because figures are also shown outside the report.
        title = f"Roofline: {', '.join([env, *(name for name in _devices(table) if name not in env)])}"
        yield roofline(material, table, name=f"roofline_{stems[env]}", title=title, before=more)


def roofline(material: Material, points: pd.DataFrame, *, name: str, title: str, before: str = "") -> Figure:
    """Roofline with these points of one environment. `before`: beginning of its caption."""
    roofs = usable_roofs(_in(material.roofs, points["env"].iloc[0]), points)
    return Figure(
        name=name,
        title=title,
        caption=f"{before}{_shared(points, 'task', 'variant')}{_roofline_caption(points, roofs)}"
        + (" The numbers are batch sizes, if there is room for them." if points["batch_size"].notna().any() else ""),
        text=_points_text(points),
        chart=rooflines.steps(material, points, roofs),
    )


def _roofline_combined(material: Material) -> Iterator[Figure]:
    points = drawable(material.points)
    if points.empty or points["env"].nunique() < 2:  # noqa: PLR2004
        return
    # Lower bounds cannot be ranked: they come last, and are drawn only if there is no other point.
    ranked = points.sort_values(["flop_is_lower_bound", "flop_per_s"], ascending=[True, False], kind="stable")
    points = points.loc[ranked.groupby(["env", "task", "source"], sort=False).head(1).index.sort_values()]
    roofs = _one_roof_each(usable_roofs(material.roofs, points), points)
    yield Figure(
        name="roofline_combined",
        title="Roofline: all places",
        caption=f"{_shared(points, 'task')}The configuration of each model and place with the most FLOP/s. "
        f"{_roofline_caption(points, roofs)}"
        + (" Each place has one roof, for its most frequent precision." if len(roofs) else ""),
        text=_points_text(points),
        chart=rooflines.combined(material, points, roofs),
    )


def _intensity(material: Material) -> Iterator[Figure]:
    points = material.points
    if len(points):
        points = points[points["intensity_flop_per_byte"].notna() & (points["intensity_flop_per_byte"] > 0)]
    stems = labels.distinct(material.tasks)
    curves = {
        task: table
        for task in material.tasks
        if len(points)
        and len(table := points[points["task"] == task]) >= LEAST_ON_A_CURVE
        and _has_batches(table, "env", "variant", "source")
    }
    shown, more = _first(list(curves.items()), "models")
    for task, table in shown:
        yield Figure(
            name=f"ai_vs_batch_{stems[task]}",
            title=f"Arithmetic intensity against batch size: {task}",
            caption=f"{more}{_shared(table, 'env', 'variant')}{_source_caption(table)}"
            + (" Points of the same batch size are side by side." if len(set(table["env"])) > 1 else ""),
            text=_intensity_text(table),
            chart=rooflines.against_batch(material, table),
        )


def _throughput_comparison(material: Material) -> Iterator[Figure]:
    best = throughput.best(material.measured)
    if len(best) < LEAST_DOTS:
        return
    yield Figure(
        name="throughput_comparison",
        title="Best throughput of each model and place",
        caption=f"{_shared(best, 'env')}The fastest batch size and precision of each model and place. "
        f"{_intervals(best, 'images_per_s')}",
        text=_rate_text(best),
        chart=throughput.comparison(material, best),
    )


def _scaling(material: Material) -> Iterator[Figure]:
    known = material.measured[material.measured["images_per_s"].notna()]
    table = throughput.relative_to_smallest(known)
    # For a single environment, throughput_env shows the same.
    if table.empty or table["env"].nunique() < 2:  # noqa: PLR2004
        return
    top = table.sort_values("relative").iloc[-1]
    point = f"{top['series']} at batch {top['batch_size']:g}, {top['env']}"
    gain = (
        f"Largest gain: {number(top['relative'], 3)} times, {point}"
        if top["relative"] > 1
        else "No larger batch was faster than the smallest"
    )
    yield Figure(
        name="batch_size_scaling",
        title="Throughput gained by larger batches",
        caption=f"{_shared(table, 'env', 'task', 'variant')}Throughput relative to the smallest batch of the same "
        "model, precision and place. A flat line means that larger batches do not help any more.",
        text=gain,
        chart=throughput.scaling(material, table),
    )


def _over_devices(material: Material) -> Iterator[Figure]:
    table = material.scaling
    table = table[table["efficiency"].notna()].reset_index(drop=True) if len(table) else table
    if not (rows := rows_of(table)):
        return
    # In `variant`, the number of devices stands beside the other settings that differ.
    settings = [
        f"{row['task']}, batch {_batch(row)}, {row['variant'].replace(f', {together(row)}', '')}"
        + ("" if row["by"] == "devices" else f", machines of {counted(int(row['devices'] or 1), 'device')}")
        for row in rows
    ]
    table = table.assign(setting=settings, number=[row[row["by"]] for row in rows])
    yield Figure(
        name="devices_efficiency",
        title="Efficiency of several devices",
        caption=f"{_shared(table, 'env', 'setting')}Throughput of each of several devices divided by that of one "
        "device alone, or of several machines by that of one, at the same batch size and threads per device. At 100 %, "
        f"the dashed line, 4 together are 4 times as fast as one. {_intervals(table, 'efficiency')}",
        text=_listed([_devices_text(row) for row in rows_of(table)[:MOST_LISTED]], len(table)),
        chart=throughput.over_devices(material, table),
    )


def _devices_text(row: dict[Any, Any]) -> str:
    value, *ends = (
        f"{number(100 * row[name], 3)} %"
        for name in ("efficiency", "efficiency_low", "efficiency_high")
        if row[name] is not None
    )
    between = f" ({' to '.join(ends)})" if ends else ""
    return f"{row['setting']}, {row['env']}, {together(row)}: {value}{between}"


def _efficiency(material: Material) -> Iterator[Figure]:
    table = efficiencies(material)
    if len(table) < LEAST_DOTS:
        return
    roofs = style.present(throughput.EFFICIENCY.values(), table["of"])
    yield Figure(
        name="efficiency_comparison",
        title="Attained share of the device's roof",
        caption=f"{_shared(table, 'env')}The model's FLOP divided by the step time without a profiler, for the "
        "fastest configuration of each model and place, divided by "
        f"{' and by '.join(roof.removeprefix('of ') for roof in roofs)} of its precision. "
        f"{_intervals(table, 'fraction')}",
        text="; ".join(
            f"{row['task']}, {row['env']}: {percent(row['fraction'], decimals=1)} {row['of']}"
            for row in table.to_dict("records")[:12]
        ),
        chart=throughput.efficiency(material, table),
    )


def efficiencies(material: Material) -> pd.DataFrame:
    """A row per model, environment and kind of roof (`of`): `fraction` of the roof, for the fastest configuration."""
    best = throughput.best(material.measured)
    best = best[best["flop_per_s"].notna()]
    if best.empty or material.roofs.empty:
        return pd.DataFrame(columns=["fraction"])
    roofs = material.roofs[material.roofs["flop_per_s"] > 0]
    roofs = roofs.drop_duplicates(["env", "precision", "kind"])[["env", "precision", "kind", "flop_per_s"]]
    table = best.drop(columns=["run_ids"]).merge(roofs, on=["env", "precision"], suffixes=("", "_roof"))
    factor = table["flop_per_s"] / table["flop_per_s_roof"]
    return table.assign(
        of=table["kind"].map(throughput.EFFICIENCY),
        fraction=factor,
        # FLOP per image are constant, so the relative interval is that of the throughput.
        fraction_low=factor * table["images_per_s_low"] / table["images_per_s"],
        fraction_high=factor * table["images_per_s_high"] / table["images_per_s"],
    ).reset_index(drop=True)


def _energy(material: Material) -> Iterator[Figure]:
    known = material.measured[material.measured["joules_per_image"] > 0]
    if len(known) < 2:  # noqa: PLR2004 - nothing to compare
        return
    least = known.nsmallest(MOST_OF_A_KIND, "joules_per_image")
    rows = least.to_dict("records")
    names = [f"{row['task']}, batch {_batch(row)}, {row['variant']}" for row in rows]
    more = f"The {len(least)} of {len(known)} configurations with the least energy. " if len(least) < len(known) else ""
    each, named = units.singular(material.unit), replace(material, tasks=list(dict.fromkeys(names)))
    texts = [
        f"{name}, {row['env']}: {joules_text(row['joules_per_image'])}" for name, row in zip(names, rows, strict=True)
    ]
    yield Figure(
        name="energy_comparison",
        title=f"Energy per {each}",
        caption=f"{more}{_shared(least, 'env')}Energy of the measured steps for each {each}, of all devices of a run; "
        f"idle power is not subtracted. {_intervals(least, 'joules_per_image')}",
        text=_listed(texts[:MOST_LISTED], len(texts)),
        chart=throughput.comparison(named, least.assign(task=names), "joules_per_image", "Energy [J per {one}]"),
    )


def _models(material: Material) -> Iterator[Figure]:
    best = throughput.best(material.measured)
    known = best[best["train_flop_per_image"] > 0]
    if known["task"].nunique() < 2 or len(known) < LEAST_DOTS:  # noqa: PLR2004
        return
    yield Figure(
        name="model_comparison",
        title=f"Models: work per {units.singular(material.unit)} and throughput",
        caption=f"{_shared(known, 'env')}Best throughput against training FLOP per {units.singular(material.unit)}. "
        "On a dotted diagonal the attained FLOP/s are equal: a model further up and to the right uses the device "
        f"better. {_intervals(known, 'images_per_s')}",
        text=_rate_text(known),
        chart=throughput.models(material, known),
    )


def _kernel_rooflines(material: Material) -> Iterator[Figure]:
    points = material.kernel_points
    if len(points):
        points = points[(points["flop_per_s"] > 0) & (points["intensity_flop_per_byte"] > 0)]
        points = points[points["family"] != ALL]
    if points.empty:
        return
    groups = [(str(task), str(env), rows) for (task, env), rows in points.groupby(["task", "env"], sort=False)]
    environments = Counter(task for task, _, _ in groups)
    tables = {f"{task} {env}" if environments[task] > 1 else task: (env, rows) for task, env, rows in groups}
    stems = labels.distinct(tables)
    shown, more = _first(list(tables.items()), "profiles")
    for name, (env, rows) in shown:
        # The profiled configuration with the largest batch.
        size = rows["batch_size"].max()
        largest = rows[rows["batch_size"] == size] if pd.notna(size) else rows
        table = largest[largest["variant"] == largest["variant"].iloc[0]].drop_duplicates("family")
        first = table.iloc[0]
        roofs = usable_roofs(_in(material.roofs, env), table)
        l2 = f" L2 bytes are {first['l2_bytes_are']}." if isinstance(first.get("l2_bytes_are"), str) else ""
        rates = f"Rates are those of the profiled kernels, not of whole steps.{l2}"
        yield Figure(
            name=f"kernel_roofline_{stems[name]}",
            title=f"Kernel families: {first['task']}, batch {_batch(first)}, {first['variant']}, {env}",
            caption=f"{more}Each point is a kernel family, its area the share of the profiled time; if L2 or L1 "
            f"bytes were counted, each level of memory has its own shape. {rates}"
            + " ".join(["", *_lower_bound_caption(table)]),
            text="; ".join(
                f"{row['task']}, {row['family']}: {percent(row['share_of_time'])} of the time"
                for row in table.nlargest(MOST_LISTED, "share_of_time").to_dict("records")
            ),
            chart=rooflines.kernels(table, roofs, throughput.FAMILY_COLOURS),
        )


def cheapest(costs: pd.DataFrame) -> pd.DataFrame:
    """The row of `costs` with the lowest cost, for each model and environment."""
    if costs.empty:
        return costs
    known = costs[costs["epoch_usd"].notna()]
    return known.loc[known.groupby(["env", "task"], sort=False)["epoch_usd"].idxmin()].reset_index(drop=True)


REGISTRY: dict[str, Builder] = {
    "throughput_comparison": _throughput_comparison,
    "throughput_env": _throughput_env,
    "batch_size_scaling": _scaling,
    "devices_efficiency": _over_devices,
    "model_comparison": _models,
    "variance_fixed_config": _variance,
    "roofline_env": _roofline_env,
    "roofline_combined": _roofline_combined,
    "ai_vs_batch": _intensity,
    "efficiency_comparison": _efficiency,
    "energy_comparison": _energy,
    "kernel_roofline": _kernel_rooflines,
}


# --- rows


def drawable(points: pd.DataFrame) -> pd.DataFrame:
    """Points with both coordinates, one per configuration: from GPU counters if available, else modelled."""
    if points.empty:
        return points
    known = points[(points["intensity_flop_per_byte"] > 0) & (points["flop_per_s"] > 0)]
    keys = ["env", "task", "variant", "batch_size"]
    counted = set(known.loc[known["source"] == COUNTERS, keys].itertuples(index=False, name=None))
    has_counters = [row in counted for row in known[keys].itertuples(index=False, name=None)]
    return known[(known["source"] == COUNTERS) | ~pd.Series(has_counters, index=known.index, dtype=bool)]


def usable_roofs(roofs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Roofs that have FLOP/s, and the precision of at least one point."""
    if roofs.empty or points.empty:
        return roofs.iloc[:0]
    usable = roofs[(roofs["flop_per_s"] > 0) & roofs["precision"].isin(list(points["precision"].dropna()))]
    return usable.reset_index(drop=True)


def _one_roof_each(roofs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """A roof per environment for the most frequent precision of its points: measured if available, else the peak."""
    if roofs.empty:
        return roofs
    rows = []
    for env, roofs_of_env in roofs.groupby("env", sort=False):
        precisions = points.loc[points["env"] == env, "precision"].value_counts()
        rank = {name: index for index, name in enumerate(precisions.index)}
        kept = roofs_of_env[roofs_of_env["precision"].isin(list(rank))]
        if len(kept):
            order = [(str(row["kind"]) != "measured", rank[row["precision"]]) for row in kept.to_dict("records")]
            rows.append(kept.iloc[[min(range(len(kept)), key=order.__getitem__)]])
    return pd.concat(rows, ignore_index=True) if rows else roofs.iloc[:0]


def _has_batches(table: pd.DataFrame, *series: str, least: int = 2) -> bool:
    """Whether any series has at least `least` batch sizes; `series`: the columns that tell one series from another."""
    if table.empty:
        return False
    sizes = table.drop_duplicates([*series, "batch_size"]).groupby(list(series), dropna=False).size()
    return int(sizes.max()) >= least


def _in(table: pd.DataFrame, env: str) -> pd.DataFrame:
    return table[table["env"] == env] if len(table) else table


# --- words


def _first(items: Sequence[T], noun: str) -> tuple[Sequence[T], str]:
    """The first `MOST_OF_A_KIND` items, and a sentence for their captions (empty if no item is left out)."""
    left_out = f"The first {MOST_OF_A_KIND} of {len(items)} {noun}. " if len(items) > MOST_OF_A_KIND else ""
    return items[:MOST_OF_A_KIND], left_out


def _shared(table: pd.DataFrame, *fields: str) -> str:
    """Beginning of a caption: values in the columns `fields` that all rows share; the legend names other values."""
    names = [labels.shown(table[field].iloc[0]) for field in fields if len(set(table[field])) == 1]
    return f"{', '.join(names)}. " if names else ""


def _intervals(table: pd.DataFrame, field: str) -> str:
    """Caption text on the interval bars, and on arrowheads if bars are cut off."""
    is_of_each = field != "efficiency" and "devices" in table and any(devices_of(row) > 1 for row in rows_of(table))
    each = EACH_DEVICE if is_of_each else ""
    if not style.has_bars(table, field):
        is_single = "runs" in table and bool((table["runs"] <= 1).all())
        return f"{each}One run each: no intervals." if is_single else f"{each}No intervals."
    what = DEVIATIONS if BARS in table and field in ("images_per_s", "fraction") else INTERVALS
    return f"{each}{what} {ARROWS}" if style.is_cut(table, field) else f"{each}{what}"


def _devices(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(labels.shown(name) for name in table["device_name"].dropna()))


def _listed(parts: Sequence[str], total: int) -> str:
    """Text of the `parts`, and the number of further parts up to `total`: `a; b; and 3 more`."""
    return "; ".join([*parts, *([f"and {total - len(parts)} more"] if total > len(parts) else [])])


def _rate_text(table: pd.DataFrame) -> str:
    rows = table.sort_values("images_per_s", ascending=False).to_dict("records")
    parts = [
        f"{row['series']}, batch {_batch(row)}, {row['env']}: {number(row['images_per_s'])} {units.unit_of(row)}/s"
        + (
            ""
            if pd.isna(row.get("images_per_s_low"))
            else f" ({number(row['images_per_s_low'])} to {number(row['images_per_s_high'])})"
        )
        for row in rows[:MOST_LISTED]
    ]
    return _listed(parts, len(rows))


def _batch(row: Any) -> str:
    return f"{row['batch_size']:g}" if pd.notna(row["batch_size"]) else "unknown"


def _roofline_caption(points: pd.DataFrame, roofs: pd.DataFrame) -> str:
    texts = {"measured": "solid roofs are measured ceilings", "peak": "dashed roofs are the vendor's peaks"}
    meanings = "; ".join(texts[kind] for kind in style.present(texts, roofs["kind"] if len(roofs) else ()))
    roof_text = (
        f" {meanings[0].upper()}{meanings[1:]}."
        if meanings
        else " There is no roof, because no ceiling was measured and no peak is known."
    )
    bars = f" {_intervals(points, 'flop_per_s')}" if style.has_bars(points, "flop_per_s") else ""
    has_imports = points["env"].str.endswith("(imported)").any()
    imported = " Imported: measured by others." if has_imports else ""
    return _source_caption(points) + roof_text + bars + imported


def _source_caption(points: pd.DataFrame) -> str:
    meanings = {
        "counters": "Filled points: FLOP and DRAM bytes from the GPU's counters.",
        "under the profiler": "Pale points: rates of a profile's kernels over their own time, not over a step's time.",
        "modelled": "Hollow points: FLOP by formula, bytes by a model. The dashed line goes from the bytes if every "
        "operation reads and writes memory (low intensity) to those if every tensor is moved once (high intensity).",
    }
    texts = [text for source, text in meanings.items() if source in set(points["source"])]
    if "note" in points and points["note"].astype(str).str.contains(TRACED_TIME, regex=False).any():
        texts.append("The time of an imported trace was measured under torch.profiler.")
    return " ".join([*texts, *_lower_bound_caption(points)])


def _lower_bound_caption(points: pd.DataFrame) -> list[str]:
    if "flop_is_lower_bound" not in points or not points["flop_is_lower_bound"].any():
        return []
    return ["≥ marks a lower bound: some FLOP were not counted, and the true point is further up and to the right."]


def _points_text(points: pd.DataFrame) -> str:
    order = ["flop_is_lower_bound", "flop_per_s"]
    rows = points.sort_values(order, ascending=[True, False], kind="stable").to_dict("records")
    parts = [
        f"{row['task']}, {row['variant']}, batch {_batch(row)}, {row['env']}: "
        f"{'at least ' if row['flop_is_lower_bound'] else ''}{si(row['flop_per_s'], 'FLOP/s')} "
        f"at {number(row['intensity_flop_per_byte'], 3)} FLOP/byte ({row['source']})"
        for row in rows[:MOST_LISTED]
    ]
    return _listed(parts, len(rows))


def _intensity_text(points: pd.DataFrame) -> str:
    rows: Sequence[dict[Any, Any]] = points.sort_values("batch_size").to_dict("records")
    ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
    return "; ".join(
        f"batch {_batch(row)}, {row['variant']}, {row['env']}: {number(row['intensity_flop_per_byte'], 3)} FLOP/byte "
        f"({row['source']})"
        for row in ends
    )

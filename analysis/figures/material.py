"""Tables from which figures are drawn: one row per configuration and environment, with names for all figures. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pandas as pd

from analysis.figures import labels, style
from analysis.loading import units
from analysis.loading.configurations import (
    CONFIGURATION,
    FIGURES,
    NUMBERS,
    SOFTWARE,
    Group,
    completed,
    group,
    measured,
    shown,
    together,
)
from analysis.loading.tables import Tables, cells, joined
from analysis.statistics.samples import over_runs
from workload.contract.record import Status

# Upper limit of plausible figures: ten million times what all computers of the world do per second, in FLOP or bytes.
LARGEST = 1e30
# Columns that are part of the task's name, and not of the variant's.
TASK = ("model", "image_size", "dataset")
# Columns of `measured`: names, facts of the configuration, its figures by `Group.figures`, and others.
NAMES = ("env", "task", "variant", "place", "device_name", "device_type")
FACTS = ("model", "batch_size", "precision", "unit", *NUMBERS)
MEDIANS = ("train_flop_per_image", "train_flop_per_step", "usd_per_h", "peak_memory_bytes", "mfu", "hfu")
MEASURED_COLUMNS = (*NAMES, "series", *FACTS, *FIGURES, "flop_per_s", *MEDIANS, "mfu_peak", "bound_why", "run_ids")


@dataclass(frozen=True, kw_only=True)
class Material:
    """Tables for figures. Their columns of names: `env`: place, with device or threads if these differ there.

    `task`: model, with image size and data set if they differ; `variant`: precision and the other settings that differ,
    without the batch size; `series`: task and variant, and the software if only this distinguishes two rows.

    `every`: all runs. `measured`: one row per group of poolable runs, columns as in `MEASURED_COLUMNS`. `runs`: the
    runs in `measured`; column `line` is the row number there. `failed`: configurations of which no run completed.
    `points` and `roofs` are tables of `analysis.roofline`, `kernel_points` of `analysis.kernels`, `costs` of
    `analysis.summary`, `scaling` of `analysis.scaling`; `roofs` has only `env`. `unit`: what throughput counts; the
    word `units` if the runs count different things. `environments`, `tasks` and `variants`: all names, in the order of
    the figures.
    """

    every: pd.DataFrame
    runs: pd.DataFrame
    measured: pd.DataFrame
    failed: pd.DataFrame
    points: pd.DataFrame = field(default_factory=pd.DataFrame)
    roofs: pd.DataFrame = field(default_factory=pd.DataFrame)
    kernel_points: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    scaling: pd.DataFrame = field(default_factory=pd.DataFrame)
    unit: str = units.IMAGES
    environments: Sequence[str] = ()
    tasks: Sequence[str] = ()
    variants: Sequence[str] = ()

    @property
    def environment_colours(self) -> Mapping[str, str]:
        return style.colours(self.environments)

    @property
    def variant_title(self) -> str:
        """Title of a legend of variants."""
        return "Settings" if any(", " in variant for variant in self.variants) else "Precision"

    @property
    def task_colours(self) -> Mapping[str, str]:
        return style.colours(self.tasks)


# Facts that decide the names of a run.
NAMING = tuple(dict.fromkeys(("place", "device_name", "threads", "imported", *CONFIGURATION)))


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with `env`, `task` and `variant` added."""
    facts = [dict(zip(NAMING, row, strict=True)) for row in _tuples(runs, NAMING)]
    environments = [
        f"{env} (imported)" if fact["imported"] else env
        for env, fact in zip(labels.environments(facts), facts, strict=True)
    ]
    return runs.assign(env=environments, task=labels.tasks(facts), variant=_variants(facts))


MakeTable: TypeAlias = Callable[[Tables], pd.DataFrame]


def make(
    results: Tables,
    *,
    points: MakeTable | None = None,
    roofs: MakeTable | None = None,
    kernel_points: MakeTable | None = None,
    costs: MakeTable | None = None,
    scaling: MakeTable | None = None,
) -> Material:
    """Make the material from results.

    The other parameters are functions that make the table of the same name; without its function, a table is empty.
    """
    every = named(results.runs)
    groups = group(measured(every))
    rows = [_row(pool) for pool in groups]
    table = _plausible(pd.DataFrame(rows, columns=list(MEASURED_COLUMNS)))
    table = units.filled(table)
    table["series"] = _series(groups, rows)
    table = table.sort_values(["env", "task", "variant", "series", "batch_size"], kind="stable").reset_index(drop=True)
    row_number_of = {run_id: number for number, run_ids in enumerate(table["run_ids"]) for run_id in run_ids}
    kept = every[every["run_id"].isin(list(row_number_of))]
    names = ("env", "task", "variant")
    keys_of_names = ("place", "device_name", "model", "batch_size", "precision")
    return Material(
        every=every,
        runs=_plausible(kept).assign(line=kept["run_id"].map(row_number_of)),
        measured=table,
        failed=_failed(every),
        points=_split(results, every, points, keys_of_names, names),
        roofs=_split(results, every, roofs, ("place", "device_name"), ("env",)),
        kernel_points=_split(results, every, kernel_points, keys_of_names, names),
        costs=_split(results, every, costs, keys_of_names, names),
        scaling=_split(results, every, scaling, NAMING, names),
        environments=by_speed(every, table, "env"),
        tasks=by_speed(every, table, "task"),
        variants=sorted(set(every["variant"])),
        unit=units.common(every["unit"]),
    )


def _split(
    results: Tables, every: pd.DataFrame, make_table: MakeTable | None, keys: Sequence[str], names: Sequence[str]
) -> pd.DataFrame:
    """The table that `make_table` makes, with added columns `names`, copied from a run of `every` with equal `keys`.

    If runs in `every` with equal `keys` have different `names`, the table is made in parts, each from a part of the
    runs (see `_rounds`).
    """
    if make_table is None:
        return pd.DataFrame()
    parts = []
    for rows in _rounds(every, keys, names):
        # Reuse the same results if all runs are chosen: they cache the profiles that were read.
        chosen = results if len(rows) == len(every) else replace(results, runs=results.runs.iloc[rows])
        part = make_table(chosen)
        if len(part):
            runs = every.iloc[rows]
            known = dict(zip(_tuples(runs, keys), _tuples(runs, names), strict=True))
            looked_up = pd.DataFrame([known[key] for key in _tuples(part, keys)], columns=list(names), index=part.index)
            parts.append(pd.concat([part, looked_up], axis=1))
    return _plausible(pd.concat(parts, ignore_index=True)) if parts else pd.DataFrame()


def _plausible(table: pd.DataFrame) -> pd.DataFrame:
    """Replace impossible figures by NaN, because no axis can show them: a bundle may claim 1e300 images/s."""
    numbers = table.select_dtypes("float")
    size = numbers.abs()
    # `assign` puts each column into memory of its own; pandas warns if columns are added to a table of a hundred.
    return table.assign(**numbers.where((size == 0) | ((size > 1 / LARGEST) & (size < LARGEST)))).copy()


def _rounds(every: pd.DataFrame, keys: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Row numbers of `every`, split into as few parts as possible.

    Within a part, rows with equal values in the columns `keys` also have equal values in the columns `names`.
    """
    seen: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = defaultdict(dict)
    rounds: dict[int, list[int]] = defaultdict(list)
    for number, (key, name) in enumerate(zip(_tuples(every, keys), _tuples(every, names), strict=True)):
        round_of = seen[key]
        rounds[round_of.setdefault(name, len(round_of))].append(number)
    return list(rounds.values())


def _tuples(table: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in cells(table[list(columns)])]


def by_speed(every: pd.DataFrame, table: pd.DataFrame, column: str) -> list[str]:
    """Names in `column` of `every`, fastest first by `images_per_s` of `table`; names without throughput come last."""
    # 0 instead of NaN, which has no order: the result would depend on the order of a set.
    best = table.groupby(column)["images_per_s"].max().fillna(0.0) if len(table) else pd.Series(dtype=float)
    return sorted(set(every[column]), key=lambda name: (-float(best.get(name, 0.0)), name))


def _variants(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Precision of each run, machines and devices that train together, and facts that differ between runs of its model.

    Of scripts, the arguments are named, and no fact that each script alone decides.
    """
    columns = [name for name in CONFIGURATION if name not in (*TASK, "batch_size", "precision", *NUMBERS, "script")]
    arguments, values = labels.arguments(facts), labels.known_values(facts, "model", columns)
    of_script = defaultdict[tuple[Any, str, Any], set[Any]](set)
    for run in facts:
        for name in columns:
            of_script[run["model"], name, run["script"]].add(run[name])
    undecided = {(model, name) for (model, name, _), found in of_script.items() if len(found) > 1}
    variants = []
    for run in facts:
        text = arguments.get((run["model"], run["script"]))
        varying = [name for name in columns if len(values[run["model"]][name]) > 1]
        kept = [name for name in varying if text is None or (run["model"], name) in undecided]
        parts = [run["precision"] or "unknown precision"]
        parts += filter(None, [together(run)])
        parts += [*([text] if text else []), *(shown(name, run[name]) for name in kept)]
        variants.append(", ".join(map(labels.shown, parts)))
    return variants


def _row(pool: Group) -> dict[str, Any]:
    steps = zip(pool.numbers("train_flop_per_step"), pool.numbers("step_median_s"), strict=True)
    # The reason of a run whose limit is known, if there is one; of several limits, that of the first in the alphabet.
    reasons = [
        (bound if isinstance(bound, str) else None, why)
        for bound, why in zip(pool.values("bound"), pool.values("bound_why"), strict=True)
        if isinstance(why, str)
    ]
    return {
        **{name: pool.values(name)[0] for name in NAMES},
        **{name: pool[name] for name in FACTS},
        **pool.figures(),
        "flop_per_s": over_runs([flop / step_s for flop, step_s in steps if step_s]).value,
        **{name: pool.median(name) for name in MEDIANS},
        "mfu_peak": joined(dict.fromkeys(pool.texts("mfu_peak"))),
        "bound_why": min(reasons, key=lambda pair: (pair[0] is None, pair[0] or ""), default=(None, None))[1],
        "run_ids": pool.values("run_id"),
    }


def _series(groups: Sequence[Group], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Task and variant of each row, with the software if only the software distinguishes two rows."""
    names = [(row["env"], row["task"], row["variant"], row["batch_size"]) for row in rows]
    number = Counter(names)

    def software(pool: Group) -> list[str]:
        words = {shown(name, pool[name]) for name in SOFTWARE}
        return [labels.shown(text) for text in pool.apart if text in words]

    return [
        " · ".join([row["task"], row["variant"], *(software(pool) if number[name] > 1 else ())])
        for pool, row, name in zip(groups, rows, names, strict=True)
    ]


def _failed(every: pd.DataFrame) -> pd.DataFrame:
    keys = ["env", "task", "variant", "model", "batch_size", "precision"]
    broken = every[~every["status"].isin([Status.COMPLETED, Status.RUNNING])]
    done = set(completed(every)[keys].itertuples(index=False, name=None))
    endings: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in broken[[*keys, "status"]].itertuples(index=False, name=None):
        if row[:-1] not in done:
            endings[row[:-1]][row[-1]] += 1
    rows = [(*key, " and ".join(status.replace("_", " ") for status in counts)) for key, counts in endings.items()]
    return pd.DataFrame(rows, columns=[*keys, "ending"])


# The number of colours and symbols: with more environments, two would look alike in the legend.
MOST_ENVIRONMENTS = 8


def legible(material: Material) -> tuple[Material, str]:
    """Material with only the `MOST_ENVIRONMENTS` fastest environments, and a sentence for captions on the others.

    The sentence is empty if no environment is left out.
    """
    count = len(material.environments)
    if count <= MOST_ENVIRONMENTS:
        return material, ""
    names = material.environments[:MOST_ENVIRONMENTS]
    tables = ("every", "measured", "runs", "failed", "points", "roofs", "kernel_points", "costs", "scaling")
    kept = {
        name: table[table["env"].isin(names)].reset_index(drop=True) if len(table) else table
        for name, table in ((name, getattr(material, name)) for name in tables)
    }
    # Renumber the lines: these row numbers of `measured` have changed.
    line_of = {run_id: line for line, run_ids in enumerate(kept["measured"]["run_ids"]) for run_id in run_ids}
    kept["runs"] = kept["runs"].assign(line=kept["runs"]["run_id"].map(line_of))
    tasks = [task for task in material.tasks if task in set(kept["every"]["task"])]
    words = f"{count} places: the {MOST_ENVIRONMENTS} fastest are drawn; the tables show all. "
    return replace(material, **kept, environments=names, tasks=tasks), words

"""Tables from which figures are drawn: one row per configuration and environment, with names for all figures. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, TypeAlias

import pandas as pd

from analysis.figures import labels, style
from analysis.loading import units
from analysis.loading.configurations import CONFIGURATION, SOFTWARE, Group, completed, group, measured, shown
from analysis.loading.tables import Tables, cells
from analysis.statistics.intervals import over_runs
from workload.contract.record import Status
from workload.contract.text import counted

# Upper limit of plausible figures: ten million times what all computers of the world do per second, in FLOP or bytes.
LARGEST = 1e30
# Columns that are part of the task's name, and not of the variant's.
TASK = ("model", "image_size", "dataset")
MEASURED_COLUMNS = (
    "env",
    "task",
    "variant",
    "series",
    "model",
    "batch_size",
    "precision",
    "place",
    "device_name",
    "device_type",
    "runs",
    "unit",
    "images_per_s",
    "images_per_s_low",
    "images_per_s_high",
    "interval",
    "images_per_s_mean",
    "images_per_s_sd",
    "step_s",
    "flop_per_s",
    "train_flop_per_image",
    "train_flop_per_step",
    "bound",
    "bound_why",
    "busy",
    "devices",
    "data_wait_fraction",
    "peak_memory_bytes",
    "usd_per_h",
    "run_ids",
)


MEDIANS = ("train_flop_per_image", "train_flop_per_step", "usd_per_h", "peak_memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Material:
    """Tables for figures. Their columns of names: `env`: place, with device or threads if these differ there.

    `task`: model, with image size and data set if they differ; `variant`: precision and the other settings that differ,
    without the batch size; `series`: task and variant, and the software if only this distinguishes two rows.

    `every`: all runs. `measured`: one row per group of poolable runs, columns as in `MEASURED_COLUMNS`. `runs`: the
    runs in `measured`; column `line` is the row number there. `failed`: configurations of which no run completed.
    `points` and `roofs` are tables of `analysis.roofline`, `kernel_points` of `analysis.kernels`, `costs` of
    `analysis.summary`, `scaling` of `analysis.compare`; `roofs` has only `env`. `unit`: what throughput counts; the
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
    return table.assign(**numbers.where((size == 0) | ((size > 1 / LARGEST) & (size < LARGEST))))


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
    """Precision of each run, its number of devices if above 1, and the facts that differ between runs of its model.

    Of scripts, the arguments are named, and no fact that each script alone decides.
    """
    columns = [name for name in CONFIGURATION if name not in (*TASK, "batch_size", "precision", "devices", "script")]
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
        parts += [counted(int(run["devices"]), "device")] if (run["devices"] or 1) > 1 else []
        parts += [*([text] if text else []), *(shown(name, run[name]) for name in kept)]
        variants.append(", ".join(map(labels.shown, parts)))
    return variants


def _row(pool: Group) -> dict[str, Any]:
    flops = over_runs(_ratio(pool.numbers("train_flop_per_step"), pool.numbers("step_median_s")))
    return {
        **{name: pool.values(name)[0] for name in ("env", "task", "variant", "place", "device_name", "device_type")},
        **{name: pool[name] for name in ("model", "batch_size", "precision", "unit", "devices")},
        **pool.figures(),
        "flop_per_s": flops.value,
        **{name: pool.median(name) for name in MEDIANS},
        "bound_why": _reason(pool),
        "run_ids": pool.values("run_id"),
    }


def _reason(pool: Group) -> str | None:
    """Why the runs are limited as they are: the reason of one run, if possible of one whose limit is known.

    If the runs have several limits, the reason is that of the first limit in alphabetical order.
    """
    pairs = zip(pool.values("bound"), pool.values("bound_why"), strict=True)
    reasons = [(bound if isinstance(bound, str) else None, why) for bound, why in pairs if isinstance(why, str)]
    return min(reasons, key=lambda pair: (pair[0] is None, pair[0] or ""), default=(None, None))[1]


def _ratio(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [above / below for above, below in zip(left, right, strict=True) if below]


def _series(groups: Sequence[Group], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Task and variant of each row, with the software if only the software distinguishes two rows."""
    names = [(row["env"], row["task"], row["variant"], row["batch_size"]) for row in rows]
    number = Counter(names)
    return [
        " · ".join([row["task"], row["variant"], *(_software(pool) if number[name] > 1 else ())])
        for pool, row, name in zip(groups, rows, names, strict=True)
    ]


def _software(pool: Group) -> list[str]:
    words = {shown(name, pool[name]) for name in SOFTWARE}
    return [labels.shown(text) for text in pool.apart if text in words]


def _failed(every: pd.DataFrame) -> pd.DataFrame:
    """Configurations and environments without any completed run, a row each, with how the runs ended."""
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

# An environment and a task, whose rows the reduced figures keep.
Pair = tuple[str, str]


def legible(material: Material) -> tuple[Material, str]:
    """Material with at most `MOST_ENVIRONMENTS` environments, and a sentence for captions on the others.

    Machines with the same device are merged into one environment named after the device. For each task, the merged
    environment has the rows of a single machine: among the machines with the most configurations, the machine with the
    middle throughput. Figures are not averaged. If all machines have the same device, the fastest environments are
    kept. The sentence is empty if no environment is left out.
    """
    count = len(material.environments)
    if count <= MOST_ENVIRONMENTS:
        return material, ""
    device_of = _devices(material)
    if len(set(device_of.values())) == 1:
        kept = _of_one_device(material, device_of)
        words = f"{count} places with one device: the {MOST_ENVIRONMENTS} fastest are drawn"
    else:
        kept = _by_device(material, device_of)
        words = f"{count} places: for each device and model, the machine with the middle throughput is drawn"
        drawn = list(dict.fromkeys(kept.values()))
        if len(drawn) > MOST_ENVIRONMENTS:
            order = by_speed(_renamed(material.every, kept), _renamed(material.measured, kept), "env")
            fastest = set(order[:MOST_ENVIRONMENTS])
            kept = {pair: name for pair, name in kept.items() if name in fastest}
            words += f"; of {counted(len(drawn), 'device')} the {MOST_ENVIRONMENTS} fastest"
    return _reduced(material, kept), f"{words}; the tables show all. "


def _devices(material: Material) -> dict[str, str]:
    """Name of each environment's device, followed by the number of machines with this device if there are several."""
    rows = material.every.drop_duplicates("env")
    facts = rows[["device_name", "threads"]].astype(object)
    facts = facts.where(facts.notna(), None)
    names = labels.devices([{str(name): value for name, value in row.items()} for row in facts.to_dict("records")])
    machines = Counter(names)
    return {
        env: f"{name} ({machines[name]} machines)" if machines[name] > 1 else name
        for env, name in zip(rows["env"], names, strict=True)
    }


def _of_one_device(material: Material, device_of: Mapping[str, str]) -> dict[Pair, str]:
    fastest = [env for env in material.environments if env in device_of][:MOST_ENVIRONMENTS]
    return {(env, task): env for env in fastest for task in material.tasks}


def _by_device(material: Material, device_of: Mapping[str, str]) -> dict[Pair, str]:
    """Pairs (environment, task) to keep, with the device's name: one machine's environment for each device and task."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for table in (material.measured, material.points, material.kernel_points):
        rates = table["images_per_s"] if table is material.measured else [0.0] * len(table)
        for env, task, rate in zip(table.get("env", ()), table.get("task", ()), rates, strict=True):
            lines = rows[device_of[env], task][env]
            if table is material.measured or not lines:
                lines.append(log(rate) if rate and rate > 0 else 0.0)
    return {(_middle(machines), task): device for (device, task), machines in rows.items()}


def _middle(machines: Mapping[str, Sequence[float]]) -> str:
    most = max(map(len, machines.values()))
    widest = [env for env, lines in machines.items() if len(lines) == most]
    ordered = sorted(widest, key=lambda env: (sum(machines[env]), env))
    return ordered[(len(ordered) - 1) // 2]


def _reduced(material: Material, kept: Mapping[Pair, str]) -> Material:
    every, measured, runs = (_renamed(table, kept) for table in (material.every, material.measured, material.runs))
    device_of = {env: name for (env, _), name in kept.items()}
    roofs = material.roofs
    if len(roofs):
        roofs = roofs[roofs["env"].isin(list(device_of))]
        # If several machines represent a device, keep one machine's roofs for each precision and kind.
        roofs = roofs.assign(env=roofs["env"].map(device_of)).drop_duplicates(["env", "precision", "kind"])
    # Renumber the lines: these row numbers of `measured` have changed.
    line_of = {run_id: line for line, run_ids in enumerate(measured["run_ids"]) for run_id in run_ids}
    return replace(
        material,
        every=every,
        measured=measured,
        runs=runs.assign(line=runs["run_id"].map(line_of)),
        failed=_renamed(material.failed, kept),
        points=_renamed(material.points, kept),
        kernel_points=_renamed(material.kernel_points, kept),
        costs=_renamed(material.costs, kept),
        scaling=_renamed(material.scaling, kept),
        roofs=roofs.reset_index(drop=True),
        environments=by_speed(every, measured, "env"),
        tasks=[task for task in material.tasks if task in set(every["task"])],
    )


def _renamed(table: pd.DataFrame, kept: Mapping[Pair, str]) -> pd.DataFrame:
    """Rows of the pairs (environment, task) in `kept`; column `env` becomes the pair's name in `kept`."""
    if table.empty:
        return table
    names = [kept.get(pair) for pair in zip(table["env"], table["task"], strict=True)]
    is_kept = [name is not None for name in names]
    return table[is_kept].assign(env=[name for name in names if name is not None]).reset_index(drop=True)

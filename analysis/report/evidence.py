"""All tables and figures of a report, each made once; tables that cannot be made carry the reason."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from analysis import audit, causes, compare, kernels, scaling, summary
from analysis.audit.rule import Finding, breaches
from analysis.figures import Figure, material, registry
from analysis.figures.material import Material
from analysis.kernels import kernel_points
from analysis.loading.cases import Case, OfRuns, arguments_in, cases, with_arguments
from analysis.loading.configurations import ARGUMENT, CONFIGURATION, NUMBERS, measured
from analysis.loading.index import Problem
from analysis.loading.tables import Tables
from analysis.loading.tables import rows as rows_of
from analysis.pairing import Pair, Side, pair_up
from analysis.roofline.points import points, shifts
from analysis.roofline.roofs import roofs
from analysis.statistics.comparison import ALPHA
from analysis.variance import between
from workload.contract.errors import RooflaunchError, UsageError
from workload.contract.fields import encode
from workload.contract.record import Record, Spec
from workload.contract.record_sections import Environment, SlurmFacts
from workload.contract.spec import Device, Profile, arguments
from workload.contract.text import printable

# Facts that a contrast may be about. Settings and places are compared among all runs; another model or unit is another
# task, and numbers of machines and devices have a section of their own. Zone, hypervisor, backend and runtime are
# compared among the runs of one device.
SETTINGS = tuple(fact for fact in CONFIGURATION if fact not in ("model", "unit", *NUMBERS))
PLACEMENT = ("zone", "hypervisor", "backend", "runtime")


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A pair of sides that differ in `fact` alone, and its `row` of `analysis.compare`."""

    fact: str
    pair: Pair
    row: Mapping[str, Any]

    @property
    def is_certain(self) -> bool:
        """Whether the interval, corrected for all pairs of this fact, excludes 1 by enough to name a winner."""
        ends = (self.row["ratio_low"], self.row["ratio_high"])
        p = self.row["p_holm"]
        return p is not None and p < ALPHA and any(end and abs(end - 1) >= compare.SAME_WITHIN for end in ends)

    @property
    def is_average(self) -> bool:
        """Whether the row is an average over combinations of other options."""
        return bool(self.row["combinations"])

    @property
    def effect(self) -> float:
        """The throughput of the faster side over that of the slower one; 1 if the ratio is unknown."""
        ratio = self.row["ratio"]
        return max(ratio, 1 / ratio) if ratio else 1.0

    @property
    def grows(self) -> bool:
        """Whether the right side, which has the larger value, is the faster one."""
        return (self.row["ratio"] or 1.0) >= 1

    @property
    def by_speed(self) -> tuple[Side, Side]:
        """The faster and the slower side."""
        left, right = self.pair.sides
        return (right, left) if self.grows else (left, right)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportEvidence:
    """Results, and the tables and figures made from them.

    `of_runs`: all runs, and results that depend on a single run. `points`: of `analysis.roofline.points`.
    """

    results: Tables
    of_runs: OfRuns
    material: Material
    drawn: Sequence[Figure]
    points: pd.DataFrame

    @cached_property
    def between(self) -> pd.DataFrame:
        return between(self.results, self.of_runs.cases)

    @cached_property
    def causes(self) -> pd.DataFrame:
        return causes.causes(self.results, self.of_runs)

    @cached_property
    def findings(self) -> list[Finding]:
        return audit.audit(self.results, of_runs=self.of_runs)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Pairs for every fact in which otherwise equal runs differ."""
        runs = measured(self.results.runs)
        facts = [fact for fact in ("place", *SETTINGS) if len(runs[fact].dropna().unique()) > 1]
        every = self.of_runs.cases
        measured_runs = set(runs["run_id"])
        arguments = arguments_in(with_arguments([case for case in every if case.run_id in measured_runs]))
        contrasts = [contrast for fact in arguments for contrast in _contrasts(self.results, every, fact)]
        if contrasts:
            facts = [fact for fact in facts if fact != "script"]
        contrasts += [contrast for fact in facts for contrast in _contrasts(self.results, every, fact)]
        for fact in PLACEMENT:
            for _, table in runs[runs[fact].notna()].groupby("device_name", sort=False):
                if len(table[fact].dropna().unique()) > 1:
                    placed = replace(self.results, runs=self.results.runs.loc[table.index])
                    contrasts += _contrasts(placed, every, fact)
        return contrasts

    @cached_property
    def scaling(self) -> list[dict[str, Any]]:
        """Rows of `analysis.scaling`, with names as in the charts."""
        return rows_of(self.material.scaling)

    def compare(self) -> None:
        """Make the tables that take longest and need nothing of `of_runs` but the cases."""
        _ = self.contrasts, self.between, self.shifts

    @cached_property
    def imported(self) -> frozenset[str]:
        """Ids of imported runs."""
        runs = self.results.runs
        return frozenset(runs.loc[runs["imported"].eq(True), "run_id"])

    @cached_property
    def operators(self) -> tuple[pd.DataFrame, list[Problem]]:
        return kernels.operators(self.results)

    @cached_property
    def attributed(self) -> tuple[pd.DataFrame, list[Problem]]:
        """Work of operators in imported traces, and problems with unreadable files."""
        return kernels.attributed(self.results, ("family", "name"))

    @cached_property
    def shifts(self) -> pd.DataFrame:
        return shifts(self.points)

    def figures(self, *names: str) -> list[Figure]:
        """Figures whose name is in `names`, or begins with a name that ends in `_` or `-`."""
        beginnings = tuple(name for name in names if name.endswith(("_", "-")))
        return [drawn for drawn in self.drawn if drawn.name in names or drawn.name.startswith(beginnings)]

    def record(self, run_id: str) -> Record | None:
        """The record (run.json) of a run; None if the file can no longer be read."""
        with suppress(RooflaunchError):
            return self.results.record(run_id)
        return None


def _contrasts(results: Tables, every: Sequence[Case], fact: str) -> Iterator[Contrast]:
    """Compare the runs that differ in `fact` alone, such as the batch size; yield nothing if there are none.

    If `fact` is an argument of a script that was swept together with others, averages over the others come first.
    """
    try:
        pairing = pair_up(results, fact, every=every)
    except RooflaunchError:
        return
    if fact.startswith(ARGUMENT):
        averages = zip(compare.averaged_pairs(pairing), rows_of(compare.effects(pairing)), strict=True)
        yield from (Contrast(fact=fact, pair=pair, row=row) for pair, row in averages)
    for pair, row in zip(pairing.pairs, rows_of(compare.of_pairs(pairing)), strict=True):
        yield Contrast(fact=fact, pair=pair, row=row)


def gather(
    results: Tables,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    bars: registry.Bars = registry.Bars.INTERVAL,
    judges: bool = True,
) -> ReportEvidence:
    """Make the tables that figures need, and the figures; other tables are made on first access.

    `judges`: also let other processes compute findings, causes and command lines of the runs, which only a page needs.
    """
    on_stage("tables")
    of_runs = OfRuns(cases=cases(results))
    if judges:
        of_runs.begin(breaches, causes.causes_of, command_of)
    found_points, work = points(results), summary.Work.of(results.runs)
    tables = material.make(
        results,
        points=lambda found: found_points if found is results else points(found),
        roofs=roofs,
        kernel_points=kernel_points,
        costs=lambda found: summary.costs(found, work),
        scaling=lambda found: pd.DataFrame(scaling.scaling(found, of_runs.cases)),
    )
    on_stage("figures")
    drawn = registry.figures(tables, bars)
    return ReportEvidence(results=results, of_runs=of_runs, material=tables, drawn=drawn, points=found_points)


SHOWN_RUNS = 3


def commands(every: pd.DataFrame, of_runs: OfRuns) -> list[str]:
    """Two lines per configuration and place: a comment with the runs, and the command.

    `every`: the runs of `of_runs`, with the columns `run_id` and `env`.
    """
    by_command: dict[tuple[str, str], list[str]] = {}
    for run_id, env, line in zip(every["run_id"], every["env"], of_runs.of(command_of), strict=True):
        by_command.setdefault((env, line), []).append(run_id)
    lines: list[str] = []
    for (env, line), run_ids in by_command.items():
        more = f" and {len(run_ids) - SHOWN_RUNS} more" if len(run_ids) > SHOWN_RUNS else ""
        if len(run_ids) > 1 and not line.startswith(("#", "analyze ")):
            # Words after ` -- ` belong to a user's script.
            ours, dashes, script = line.partition(" -- ")
            line = f"{ours} --repeats {len(run_ids)}{dashes}{script}"  # noqa: PLW2901 - the same command, of all
        lines += [f"# {env}: {printable(', '.join(run_ids[:SHOWN_RUNS]))}{more}", line]
    return lines


def command_of(case: Case) -> str:
    """The command that repeats a run, or a comment that tells why there is none; see `analysis.loading.cases`."""
    return command(case.stored_record) if case.stored_record else "# the bundle can no longer be read"


def command(record: Record) -> str:
    """The command that repeats a run, for example `launch local --cpu --model resnet18 …`.

    If the spec cannot be read or the GPU is unknown, a comment that gives this reason.
    """
    if record.imported:
        options = encode(record.imported.given) if record.imported.given else {}
        words = [
            word
            for name, value in options.items()
            for word in ("--gpu-index" if name == "device" else f"--{name.replace('_', '-')}", printable(str(value)))
        ]
        return shlex.join(["analyze", "import", printable(record.imported.file or "FILE"), *words])
    place = _place_words(record.environment, record.spec.device)
    if isinstance(place, str):
        return f"# {place}"
    try:
        # Each repeat was a separate run with a record of its own. The launcher has a switch for each device.
        words_of_spec = (
            _script_words(record.spec)
            if record.spec.script
            else [printable(word) for word in arguments(replace(record.spec.run_spec(), repeats=1, device=Device.AUTO))]
        )
    except UsageError:
        return "# the spec in the bundle cannot be read"
    return shlex.join(["launch", *place, *words_of_spec])


def _place_words(environment: Environment, device: str | None) -> list[str] | str:
    """Backend of `launch` and its options that name the place of a run; the reason if the bundle does not tell it.

    A value that a bundle keeps private is a blank to fill in: `USER@HOST`.
    """
    cloud, backend = environment.cloud, environment.backend or "local"
    runtime = {"runtime": environment.runtime} if environment.runtime in ("process", "docker") else {}
    # Without it, a machine with a GPU would use the GPU.
    on_cpu = {"device": device} if device == Device.CPU else {}
    options: dict[str, str | bool | None]
    match backend:
        case "local":
            options = {**runtime, "device": None if device == Device.AUTO else device}
        case "ssh":
            # A place is named after its host, with `-` for every other character; user and port are not recorded.
            name = (environment.place or "").removeprefix("ssh-")
            options = {"host": name if name.isalnum() else "USER@HOST", **runtime, **on_cpu}
        case "slurm":
            job = environment.slurm or SlurmFacts()
            gpus = job.gpus_on_node if device != Device.CPU else None
            node = {"partition": job.partition, "constraint": job.constraint, "gres": gpus and f"gpu:{gpus}"}
            options = {**node, **on_cpu}
        case _:
            # A machine that a cloud rents out; `launch batch` takes the region instead of finding one.
            zone = (cloud and cloud.zone) or ""
            named = (environment.place or "").removeprefix(f"{backend}-").removesuffix(f"-{zone}")
            if not zone or environment.place != f"{backend}-{named}-{zone}":
                return f"measured by the backend {printable(backend)}, on a GPU that the bundle does not name"
            region = {"region": zone.rpartition("-")[0]} if backend == "batch" else {}
            machine = (cloud.machine_type, bool(cloud.spot)) if cloud else (None, None)
            options = {**region, "gpu": named, "zone": zone, "machine_type": machine[0], "spot": machine[1]}
    words: list[str] = [backend]
    for key, value in options.items():
        if key == "device" and value:
            words.append(f"--{value}")
        elif value:
            flag = f"--{key.replace('_', '-')}"
            words += [flag] if value is True else [flag, printable(str(value))]
    return words


def _script_words(spec: Spec) -> list[str]:
    """Options and command of a user's script, to be run in the folder in which the script was measured."""
    argv = (spec.script and spec.script.argv) or ("train.py",)
    options = [("--warmup", spec.warmup), ("--iterations", spec.iterations)]
    options += [("--samples-per-step", spec.samples_per_step), ("--samples", spec.samples)]
    words_of_spec = [word for flag, value in options if value is not None for word in (flag, f"{value:.0f}")]
    words_of_spec += ["--change", printable(spec.change)] if spec.change else []
    if spec.profile not in (None, Profile.NONE):
        words_of_spec += ["--profile", str(spec.profile), "--profile-steps", f"{spec.profile_steps or 1:g}"]
        words_of_spec += ["--ncu-metrics", printable(spec.ncu_metrics)] if spec.ncu_metrics else []
    return [*words_of_spec, "--", *(printable(str(word)) for word in argv)]

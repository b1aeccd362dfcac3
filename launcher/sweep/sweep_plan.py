"""Plan of a sweep before anything runs: its runs, those that are done, the expected time and the cost.

No network is used: prices come from a cache or a table, times from earlier runs in the folder of results. Where neither
is known, the plan says so.
"""

import hashlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.backends import BACKENDS
from launcher.images import build
from launcher.jobs.commands import Script
from launcher.machine.runtime import Workplace
from launcher.protocol.backend import Backend, Estimate, Job
from launcher.protocol.records import Task
from launcher.script import files, local_script
from launcher.script.files import ScriptFiles
from launcher.script.options import HereOptions, ThereOptions
from launcher.sweep.matrix import Matrix, PlaceMatrix, line_of_matrix
from launcher.sweep.places import LOCAL, PlacePlan, Sweep, Until, code_of, is_by_tag, plan_place, run_key
from launcher.sweep.work import ExistingRuns, existing_runs, too_large_text
from launcher.values import Runtime
from workload.contract.bundle import DAMAGED
from workload.contract.errors import UsageError
from workload.contract.record import Status
from workload.contract.script_words import command_line, without_secrets
from workload.contract.spec import Resolved, RunSpec
from workload.contract.text import counted, dollars, duration, minutes, si, wrapped

# Documentation files do not change what a script does.
NOTES = (".md", ".rst")


@dataclass(frozen=True, kw_only=True)
class PlacedScript:
    """Script at a place. `workplace`: only for this machine; `script_files`: only for other machines.

    `code`: hash of the files that the script may run. `options`: the place's `HereOptions` or `ThereOptions`; `text`: a
    line for the plan.
    """

    options: Any
    workplace: Workplace | None = None
    script_files: ScriptFiles | None = None
    code: str
    text: str


def placed(matrix: Matrix, *, file: Path, folder: Path, environment: Mapping[str, str]) -> Matrix:
    """Matrix with its script at every place. Raises `UsageError` if a place cannot run the script."""
    places = []
    for place in matrix.places:
        with_script = _on_this_machine if isinstance(place.place.script, HereOptions) else _on_other_machines
        try:
            places.append(with_script(place, file, folder, environment) if place.place.script else place)
        except UsageError as error:
            raise UsageError(f"{file}: [[on]] {place.place.name}: {error}", hint=error.hint) from error
    return replace(matrix, places=tuple(places))


def _on_this_machine(place: PlaceMatrix, file: Path, folder: Path, environment: Mapping[str, str]) -> PlaceMatrix:
    """Place on this machine with the script, which runs in the user's current folder."""
    options: HereOptions = place.place.script
    commands = [configuration.spec.script for configuration in place.configurations]
    workplace = Workplace(folder=folder)
    for words in commands:
        workplace = local_script.workplace_of(words, options, folder, environment, line_of_matrix(file))
        workplace.require(words)
        if getattr(place.place.options, "runtime", None) is Runtime.PROCESS:
            local_script.require_module(words, folder)
    requirements = build.read(options.requirements) if options.requirements else b""
    code = _digest(folder, _code_files(folder, commands), file, requirements)
    script = PlacedScript(options=options, workplace=workplace, code=code, text="runs in this folder")
    return replace(place, place=replace(place.place, script=script))


def _on_other_machines(place: PlaceMatrix, file: Path, folder: Path, environment: Mapping[str, str]) -> PlaceMatrix:
    """Place on other machines with the script, which runs in a copy of the current folder, with relative paths."""
    options: ThereOptions = place.place.script
    backend = place.place.backend
    is_fresh: bool = importlib.import_module(f"{BACKENDS[backend]}.options").COMMAND.is_fresh
    typed = [configuration.spec.script for configuration in place.configurations]
    script = Script(words=typed[0], options=options, is_fresh=is_fresh)
    _, sent = script.packed(backend, folder, environment)
    words_of = {}
    for words in typed:
        words_of[words] = files.relative_words(words, folder, line_of_matrix(file))
        files.place_of_data(options.data, words_of[words], is_fresh=is_fresh)
        files.require_script(words_of[words], sent.files, options.include)
    configurations = tuple(
        replace(each, spec=replace(each.spec, script=words_of[each.spec.script])) for each in place.configurations
    )
    text = "; ".join((f"sends {counted(len(sent.files), 'file')}, {si(len(sent.content), 'B')}", *sent.notes))
    placed_script = PlacedScript(
        options=options, script_files=sent, code=_digest(folder, sent.files, file, sent.requirements), text=text
    )
    return replace(place, place=replace(place.place, script=placed_script), configurations=configurations)


# --- what identifies a script


def _code_files(folder: Path, commands: Iterable[Sequence[str]]) -> list[str]:
    """Files that a script may read as code or settings: all files that git tracks, and every other Python file."""
    tracked = files.names_in_git(folder)
    if tracked is None:
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.is_file()}
        names = {name for name in names if not any(part.startswith(".") for part in name.split("/"))}
        names = {name for name in names if "site-packages" not in name.split("/")}
    else:
        names = {*tracked, *(name for name in files.names_in_git(folder, others=True) or () if name.endswith(".py"))}
    return sorted({*names, *(words[0] for words in commands if words[0] != "-m")})


def _digest(folder: Path, names: Iterable[str], matrix: Path, requirements: bytes) -> str:
    """Hash of the names and contents of the files and of the `requirements`; notes and the matrix are left out."""

    def rows() -> Iterator[str]:
        for name in sorted(names):
            path = folder / name
            if path.is_file() and path.suffix not in NOTES and path.resolve() != matrix.resolve():
                yield f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"

    return hashlib.sha256("".join(rows()).encode() + requirements).hexdigest()[:16]


SECONDS_PER_H = 3600
TEXT_COLUMN = 12
# Most configurations to name in a line.
FEW = 4
BackendOf = Callable[[str], Backend]
# Placeholder in a plan for the random digits that a launch gets when it is submitted.
NO_TOKEN = "000000"  # noqa: S105 - a part of a name


@dataclass(frozen=True, kw_only=True)
class PlaceForecast:
    """Expected time and cost of a place. None: unknown.

    `seconds`: until the last machine has ended. `machines`: number of machines that have runs to do; `usd`, `most_usd`:
    sums of their expected and of their highest costs. `measured`: number of runs to do whose configuration has a known
    time. `is_paid`: the place has a price per hour. `too_large`: number of runs left out, as a smaller batch ran out of
    memory.
    """

    plan: PlacePlan
    seconds: float | None = None
    usd: float | None = None
    most_usd: float | None = None
    machines: int = 0
    measured: int = 0
    is_paid: bool = False
    is_most_partial: bool = False
    notes: tuple[str, ...] = ()
    too_large: int = 0

    @property
    def missing(self) -> int:
        """Number of runs to start."""
        return sum(len(task.runs) for task in self.plan.missing) - self.too_large


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Plan of a whole sweep. `damaged`: why a bundle does not count, by run_id."""

    sweep: Sweep
    places: tuple[PlaceForecast, ...]
    output: Path
    damaged: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Number of runs to start."""
        return sum(place.missing for place in self.places)

    @property
    def usd(self) -> float | None:
        """Expected cost of all places; None if the cost of a paid place is unknown."""
        return _sum([place.usd for place in self.places if place.is_paid])

    @property
    def most_usd(self) -> float | None:
        """Highest cost: every machine runs into its time limit. None if the highest cost of a paid place is unknown."""
        return _sum([place.most_usd for place in self.places if place.is_paid])

    @property
    def seconds(self) -> float | None:
        """Expected time: places run side by side, but places on this machine run in turn. None if unknown."""
        known = [place.seconds for place in self.places if place.missing]
        local = [place.seconds for place in self.places if place.missing and place.plan.place.backend == LOCAL]
        if None in known:
            return None
        return max((value for value in [*known, _sum(local)] if value is not None), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--dry-run --format json`."""
        return {
            "name": self.sweep.name,
            "repeats": self.sweep.repeats,
            "seed": self.sweep.seed,
            "output": str(self.output),
            "runs": sum(len(place.plan.runs) for place in self.places),
            "missing": self.missing,
            "expected_s": self.seconds,
            "expected_usd": self.usd,
            "most_usd": self.most_usd,
            "places": [_to_json(place) for place in self.places],
            "damaged": dict(self.damaged),
            "notes": list(self.notes),
        }

    def text(self, width: int | None = None) -> str:
        """Plan as text for the user, printed before anything starts."""
        return "\n".join(wrapped(text, width, indent=TEXT_COLUMN, first=label) for label, text in self._rows() if text)

    def _rows(self) -> Iterator[tuple[str, str]]:
        sweep, runs = self.sweep, sum(len(place.plan.runs) for place in self.places)
        done = sum(len(place.plan.done) for place in self.places)
        configurations = {configuration.text for place in self.places for configuration in place.plan.configurations}
        size = f"{counted(len(configurations), 'configuration')}, {counted(sweep.repeats, 'block')}"
        places = counted(len(self.places), "place")
        yield "sweep", f"{sweep.name}: {size}, {places}: {counted(runs, 'run')}, {done} done"
        reversing = "; every second block reverses the order of the block before" if sweep.repeats > 1 else ""
        yield "order", f"random, the same at every place (seed {sweep.seed}){reversing}"
        scripts = (dict.fromkeys(each.spec.script for each in place.configurations) for place in sweep.places)
        commands = max(scripts, key=len)
        if script := next(iter(commands)):
            others = f" (and {counted(len(commands) - 1, 'other')})" if len(commands) > 1 else ""
            yield "command", f"{command_line(script)}{others}"
        for place in self.places:
            yield place.plan.place.name, _place_text(place)
            if place.plan.place.script:
                yield "", f"the script {place.plan.place.script.text}"
            for note in place.notes:
                yield "", note
        if len(self.places) > 1:
            paid = [place for place in self.places if place.is_paid]
            is_partial = any(place.is_most_partial for place in paid)
            cost = f"; {_cost_text(self.usd, self.most_usd, is_partial=is_partial)}" if paid else ""
            yield "all", f"{_time_text(self.seconds)}, with all places at the same time{cost}"
        if self.damaged:
            texts = ", ".join(f"{run_id} ({why})" for run_id, why in list(self.damaged.items())[:FEW])
            texts += f" and {len(self.damaged) - FEW} more" if len(self.damaged) > FEW else ""
            damaged = f"{counted(len(self.damaged), 'bundle')} to be repeated"
            yield "damaged", f"{damaged}; a start moves the damaged files to {self.output / DAMAGED}/: {texts}"
        for note in self.notes:
            yield "note", note
        yield "bundles", f"{self.output}/"


def make_plan(
    matrix: Matrix,
    *,
    file: Path,
    output: Path,
    backend_of: BackendOf = backends.load,
    now: datetime | None = None,
    only: Sequence[str] = (),
    offline: bool = True,
    is_fresh: bool = False,
    until: Until | None = None,
    max_cost_usd: float | None = None,
) -> SweepPlan:
    """Make the plan of a matrix with the runs that the folder of results has.

    `file`: path of the matrix, for messages. `only`: names of places; empty: all. `is_fresh`: measure everything again,
    under a name with the time. `until`: plan at least the blocks that exist, because `--until` may have added some.

    Raises `UsageError` for a script or options that a place cannot run, and if the sweep is expected to cost more than
    `max_cost_usd`.
    """
    now = now or datetime.now(UTC)
    if any(place.place.script for place in matrix.places):
        matrix = placed(matrix, file=file, folder=Path.cwd(), environment=os.environ)
    existing = existing_runs(output)
    fresh = f"{now:%Y%m%d-%H%M%S}" if is_fresh else ""
    every = [_planned(place, matrix, fresh) for place in matrix.places]
    if until is not None:
        every = [plan.with_blocks(max(matrix.repeats, _last_block(plan, existing))) for plan in every]
    keys = frozenset(run.run_key for plan in every for run in plan.runs)
    existing = existing.verified(keys, output)
    chosen = [replace(plan, done=existing.done(plan)) for plan in every if not only or plan.place.name in only]
    plan = SweepPlan(
        sweep=Sweep(name=chosen[0].tasks[0].job, repeats=matrix.repeats, seed=matrix.seed, places=tuple(chosen)),
        places=tuple(_forecast(place, existing, backend_of, now, file, offline=offline) for place in chosen),
        output=output,
        damaged=existing.damaged,
        notes=tuple(_notes(chosen, offline=offline, is_fresh=is_fresh, until=until)),
    )
    require_affordable(plan, max_cost_usd)
    return plan


def require_affordable(plan: SweepPlan, most_usd: float | None) -> None:
    """Raise `UsageError` if a sweep is expected to cost more than `--max-cost`."""
    if most_usd is None or plan.usd is None or plan.usd <= most_usd:
        return
    raise UsageError(
        f"the sweep is expected to cost {plan.usd:.2f} USD, more than --max-cost {most_usd:g}",
        hint=f"--max-cost {plan.usd * 1.01 + 0.01:.2f}, fewer repeats, or --on NAME for some of the places",
    )


def _last_block(plan: PlacePlan, existing: ExistingRuns) -> int:
    """Number of the last block to plan, counting existing blocks that directly follow the planned blocks."""
    last = max(run.block for run in plan.runs)
    while any(
        run_key(each.spec, last + 1, code=plan.code, asked=plan.place.asked, devices=plan.devices) in existing.by_key
        for each in plan.configurations
    ):
        last += 1
    return last


def _planned(place: PlaceMatrix, matrix: Matrix, fresh: str) -> PlacePlan:
    code = code_of(place.place)
    return plan_place(
        place.place,
        place.configurations,
        name=f"{matrix.name}-{fresh}" if fresh else matrix.name,
        repeats=matrix.repeats,
        seed=matrix.seed,
        code=f"{code} {fresh}" if fresh else code,
        origin=place.origin,
    )


def _notes(plans: Sequence[PlacePlan], *, offline: bool, is_fresh: bool, until: Until | None) -> Iterator[str]:
    rented = [plan.place.name for plan in plans if plan.place.backend != LOCAL]
    if rented and offline:
        stores = f"the {'stores' if len(rented) > 1 else 'store'} of {', '.join(rented)}"
        yield f"no store was checked: runs in {stores} may be done already; a start checks this first"
    for plan in plans:
        if any(configuration.spec.devices < plan.devices for configuration in plan.configurations):
            place, share = plan.place.name, f"1/{plan.devices} of the CPUs"
            yield f"{place}: a block's runs of all numbers of devices share a machine, and each device gets {share}"
    several = [plan.place.name for plan in plans if len(plan.tasks) < len({run.block for run in plan.runs})]
    if several:
        yield f"{', '.join(several)}: one machine runs several blocks, so the difference between machines stays unknown"
    if is_fresh:
        yield "--fresh: everything is measured again under another name, and existing results are kept"
    for plan in plans:
        if is_by_tag(plan.place):
            change = "if the tag's image changes, earlier runs still count as done"
            yield f"{plan.place.name} runs an image by its tag: {change}"
    if until is not None:
        yield f"blocks are added until {until}"


# Functions for the forecast of a place.


def _forecast(
    plan: PlacePlan,
    existing: ExistingRuns,
    backend_of: BackendOf,
    now: datetime,
    file: Path,
    *,
    offline: bool,
) -> PlaceForecast:
    out_of_memory = existing.out_of_memory(plan)
    too_large = {key: size for key, size in plan.too_large(out_of_memory).items() if key not in plan.done}
    tasks = plan.without({*plan.done, *too_large})
    drafts = []
    if plan.place.backend != LOCAL:
        backend = backend_of(plan.place.backend)
        drafts = [_draft(plan, task, backend, now, file, offline=offline) for task in tasks]
    estimates = [getattr(draft, "estimate", Estimate()) for draft in drafts] or [Estimate() for _ in tasks]
    known = _seconds_of_runs(existing, plan)
    seconds = [_machine_s(task, estimate, known) for task, estimate in zip(tasks, estimates, strict=True)]
    notes = list(_limit_notes(seconds, estimates))
    if too_large:
        sizes = " and ".join(map(str, sorted(set(too_large.values()))))
        notes = [f"{counted(len(too_large), 'run')} left out: {too_large_text(sizes)}", *notes]
    return PlaceForecast(
        plan=plan,
        seconds=None if None in seconds else max((value for value in seconds if value is not None), default=0.0),
        usd=_sum(
            [
                None if value is None or each.usd_per_h is None else each.usd_per_h * value / SECONDS_PER_H
                for value, each in zip(seconds, estimates, strict=True)
            ]
        ),
        most_usd=_sum([estimate.most_usd for estimate in estimates]),
        machines=len(tasks),
        measured=sum(run.spec in known for task in tasks for run in task.runs),
        is_most_partial=any(estimate.is_most_partial for estimate in estimates),
        is_paid=any(draft.request.machine_type or draft.request.prices for draft in drafts),
        notes=tuple(dict.fromkeys([*notes, *(note for draft in drafts for note in getattr(draft, "notes", ()))])),
        too_large=len(too_large),
    )


def _draft(plan: PlacePlan, task: Task, backend: Backend, now: datetime, file: Path, *, offline: bool) -> Any:
    place = plan.place
    try:
        settings = backend.settings(place.where, place.options, offline=offline)
        job = Job(resolved=Resolved(spec=task.runs[0].spec, origin=plan.origin), token=NO_TOKEN, task=task)
        return backend.plan(job, place.options, settings, now=now, offline=True)
    except UsageError as error:
        exclude = f', or [[exclude]] with on = "{place.name}"' if len(plan.configurations) > 1 else ""
        raise UsageError(f"{file}: [[on]] {place.name}: {error}", hint=f"{error.hint}{exclude}") from error


def _seconds_of_runs(existing: ExistingRuns, plan: PlacePlan) -> dict[RunSpec, float]:
    """Seconds that configurations take, process start included, as far as a block of this sweep has measured them."""
    known: dict[RunSpec, float] = {}
    for run in plan.runs:
        sealed = existing.by_key.get(run.run_key)
        if sealed and sealed.status == Status.COMPLETED and sealed.seconds:
            known.setdefault(run.spec, sealed.seconds)
    return known


def _machine_s(task: Task, estimate: Estimate, known: Mapping[RunSpec, float]) -> float | None:
    """Expected seconds of a machine for a task, at most the machine's time limit; None if unknown.

    `known`: seconds of configurations, by earlier runs. A run of another configuration takes what the backend assumes.
    """
    assumed = None if estimate.run_s is None else estimate.run_s / len(task.runs)
    runs = [known.get(run.spec, assumed) for run in task.runs]
    if None in runs:
        return None
    total_s = estimate.ready_s + sum(seconds for seconds in runs if seconds is not None)
    return total_s if estimate.limit_s is None else min(total_s, estimate.limit_s)


def _limit_notes(seconds: Sequence[float | None], estimates: Sequence[Estimate]) -> Iterator[str]:
    limited = [
        estimate.limit_s
        for value, estimate in zip(seconds, estimates, strict=True)
        if value is not None and estimate.limit_s is not None and value >= estimate.limit_s
    ]
    if limited:
        yield (
            f"the runs of a machine may not fit into its limit of {minutes(min(limited))}: a longer "
            "max_run_time, or more machines; the next start runs what is left"
        )


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


# Text and JSON.


def _place_text(forecast: PlaceForecast) -> str:
    plan = forecast.plan
    is_local = plan.place.backend == LOCAL
    machines = "this machine" if is_local else f"{counted(forecast.machines, 'machine')} of {plan.place.backend}"
    runs = f"{counted(len(plan.runs), 'run')}, {len(plan.done)} done"
    if not forecast.missing:
        return f"{runs}: nothing to do"
    text = f"{runs}, {forecast.missing} to do on {machines}; {_expected_text(forecast)}"
    if not forecast.is_paid:
        return text
    return f"{text}; {_cost_text(forecast.usd, forecast.most_usd, is_partial=forecast.is_most_partial)}"


def _expected_text(forecast: PlaceForecast) -> str:
    if forecast.seconds is None:
        known = f"measured before for {forecast.measured} of them" if forecast.measured else "none was measured before"
        return f"time unknown ({known})"
    if forecast.measured == forecast.missing:
        return f"{_time_text(forecast.seconds)} by earlier runs"
    assumed = "all" if not forecast.measured else str(forecast.missing - forecast.measured)
    return f"{_time_text(forecast.seconds)} (the time of {assumed} of them is assumed)"


def _time_text(seconds: float | None) -> str:
    return "time unknown" if seconds is None else f"expected {duration(seconds)}"


def _cost_text(usd: float | None, most_usd: float | None, *, is_partial: bool) -> str:
    if usd is None and most_usd is None:
        return "cost unknown: give your price with usd_per_h"
    expected = "cost unknown" if usd is None else f"expected {dollars(usd)}"
    most = "an unknown cost" if most_usd is None else dollars(most_usd)
    return f"{expected}, at most {most}{' where the price is known' if is_partial else ''}"


def _to_json(forecast: PlaceForecast) -> dict[str, Any]:
    plan = forecast.plan
    return {
        "name": plan.place.name,
        "backend": plan.place.backend,
        "asked": dict(plan.place.asked),
        "code": plan.code,
        "machines": forecast.machines,
        "runs": len(plan.runs),
        "done": len(plan.done),
        "missing": forecast.missing,
        "too_large": forecast.too_large,
        "measured_before": forecast.measured,
        "expected_s": forecast.seconds,
        "expected_usd": forecast.usd,
        "most_usd": forecast.most_usd,
        "notes": list(forecast.notes),
        "spec_origin": {name: str(origin) for name, origin in plan.origin.items()},
        "tasks": [
            {
                "number": task.number,
                "runs": [
                    {
                        "block": run.block,
                        "position": run.position,
                        "run_key": run.run_key,
                        "done": run.run_key in plan.done,
                        "spec": {**run.spec.to_json(), "script": list(without_secrets(run.spec.script))},
                    }
                    for run in task.runs
                ],
            }
            for task in plan.tasks
        ],
    }

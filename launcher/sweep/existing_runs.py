"""State of a sweep in a folder of results: which runs are there, and how long such runs take."""

import platform
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

from launcher.machine.task import FINAL
from launcher.sweep.places import LOCAL, NOT_IN_KEY, PlacePlan
from workload.contract import bundle
from workload.contract.errors import BundleError, UsageError
from workload.contract.record import Record, Status
from workload.contract.script import redacted, script_name, script_words, slug
from workload.contract.spec import SCRIPT_OPTIONS, Device, RunSpec
from workload.storage.inventory import SealedRun, sealed_in

# Most bundles to open in search of runs with the same options, or of the same script: the latest ones.
MOST_LOOKED_AT = 9
# Most configurations for which bundles are opened: a bundle takes milliseconds, and a plan should take a second or two.
MOST_CONFIGURATIONS = 50


@dataclass(frozen=True, kw_only=True)
class ExistingRuns:
    """Sealed runs of a folder. `by_key`: runs that need no repetition; `damaged`: damage of a bundle, by run_id."""

    runs: tuple[SealedRun, ...] = ()
    by_key: Mapping[str, SealedRun] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def verified(self, keys: Collection[str], results: Path) -> "ExistingRuns":
        """Copy without the runs of these keys whose bundle is damaged."""
        damaged: dict[str, str] = {}
        for run in self.runs:
            if run.run_key in keys and run.status in FINAL:
                try:
                    bundle.read(results / run.run_id)
                except BundleError as error:
                    damaged[run.run_id] = str(error).removeprefix(f"'{results / run.run_id}' is damaged: ")
        if not damaged:
            return self
        undamaged = _existing(run for run in self.runs if run.run_id not in damaged)
        return replace(undamaged, damaged=damaged)

    def done(self, plan: PlacePlan) -> frozenset[str]:
        """Keys of a place's runs that need not run again."""
        return frozenset(run.run_key for run in plan.runs if run.run_key in self.by_key)

    def out_of_memory(self, plan: PlacePlan) -> frozenset[str]:
        """Keys of this plan's runs that ran out of memory."""
        return frozenset(key for key in self.done(plan) if self.by_key[key].status == Status.OUT_OF_MEMORY)


def look(results: Path) -> ExistingRuns:
    """Read the manifests of a folder's bundles. A key counts as done if any bundle with the key has a final status."""
    return _existing(sealed_in(results))


def _existing(sealed: Iterable[SealedRun]) -> ExistingRuns:
    runs = tuple(sealed)
    return ExistingRuns(runs=runs, by_key={run.run_key: run for run in runs if run.run_key and run.status in FINAL})


def seconds_of_runs(
    existing: ExistingRuns, plan: PlacePlan, results: Path, *, place: str
) -> tuple[dict[RunSpec, float], dict[RunSpec, float]]:
    """Seconds that configurations with missing runs take, process start included, as measured by earlier runs.

    Returns those of runs with the same options, and those of the same script with other arguments. Of the former, runs
    of this sweep in another block come first. Other runs count if they were made on this host, or for rented machines
    at a place whose name begins with `place`. Configurations without such a run are left out.
    """
    completed = [run for run in existing.runs if run.status == Status.COMPLETED and run.seconds]

    @cache
    def seconds_of(spec: RunSpec) -> float:
        if spec.script:
            parts = [f"-{slug(script_name(spec.script))}-b"]
        else:
            batch = "" if spec.batch_size is None else f"{spec.batch_size}-"
            parts = [f"-{spec.model}-b{batch}", f"-{spec.precision}-"]
        named = [run for run in completed if all(part in run.run_id for part in parts)]
        like = [run.seconds or 0.0 for run in named[-MOST_LOOKED_AT:] if _is_like(results / run.run_id, spec)]
        return median(like) if like else 0.0

    def _is_like(folder: Path, spec: RunSpec) -> bool:
        with suppress(BundleError):
            record = bundle.read_record(folder)
            words = tuple((record.spec.script and record.spec.script.argv) or ())
            is_same_script = not spec.script or script_words(words) == redacted(spec.script)
            return is_same_script and _has_options(record, spec) and _is_at(record, plan, place)
        return False

    missing = {run.spec for task in plan.missing for run in task.runs}
    same: dict[RunSpec, float] = {}
    for run in plan.runs:
        sealed = existing.by_key.get(run.run_key)
        if sealed and sealed.status == Status.COMPLETED and sealed.seconds and run.spec in missing:
            same.setdefault(run.spec, sealed.seconds)
    unknown = [each.spec for each in plan.configurations if each.spec in missing - same.keys()]
    ours, of_scripts = [spec for spec in unknown if not spec.script], [spec for spec in unknown if spec.script]
    same |= {spec: seconds for spec in ours[:MOST_CONFIGURATIONS] if (seconds := seconds_of(spec))}
    scripts = {spec: seconds_of(replace(spec, script=script_words(spec.script))) for spec in of_scripts}
    return same, {spec: seconds for spec, seconds in scripts.items() if seconds}


def _has_options(record: Record, spec: RunSpec) -> bool:
    """Whether a recorded run had every option that `spec` sets. The script and its arguments are not compared."""
    try:
        recorded = asdict(record.spec.run_spec())
    except UsageError:
        return False
    names = (SCRIPT_OPTIONS if spec.script else recorded.keys() - {"script"}) - NOT_IN_KEY
    wanted = {name: value for name, value in asdict(spec).items() if name in names and value is not None}
    if spec.device is Device.AUTO:
        del wanted["device"]
    return all(recorded[name] == value for name, value in wanted.items())


def _is_at(record: Record, plan: PlacePlan, place: str) -> bool:
    environment = record.environment
    if environment.backend != plan.place.backend:
        return False
    if plan.place.backend == LOCAL:
        return environment.host is not None and environment.host.hostname == platform.node()
    return (environment.place or "").startswith(place)

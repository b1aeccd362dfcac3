"""State of a sweep in a folder of results: which runs are there, and how long such runs take."""

import platform
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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

# Form of a run_id (`bundle.make_run_id`). No model of torchvision has a dash in its name.
RUN_ID = re.compile(r"\d{8}T\d{6}Z-(?P<place>.+)-(?P<model>[^-]+)-b(?P<batch>\d+)-(?P<precision>[a-z0-9]+)-[0-9a-f]{6}")
# Most bundles to open for one configuration, in search of a run with the same options.
MOST_LOOKED_AT = 3
# Most bundles to open for a script: about one for each of its configurations, because times depend on the arguments.
MOST_OF_A_SCRIPT = 9
# Most configurations for which bundles are opened: a bundle takes milliseconds, and a plan should take a second or two.
MOST_CONFIGURATIONS = 100


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

    def of_job(self, name: str, but: frozenset[str]) -> Counter[str]:
        """Number of runs, by configuration, of the sweep `name`, without the runs whose keys are in `but`."""
        others = (run for run in self.runs if run.job == name and run.run_key not in but)
        names = ((run.run_id, RUN_ID.fullmatch(run.run_id)) for run in others)
        return Counter(
            f"{name['model']}, batch {name['batch']}, {name['precision']} at {name['place']}" if name else run_id
            for run_id, name in names
        )


def look(results: Path) -> ExistingRuns:
    """Read the manifests of a folder's bundles. A key counts as done if any bundle with the key has a final status."""
    return _existing(sealed_in(results))


def _existing(sealed: Iterable[SealedRun]) -> ExistingRuns:
    runs = tuple(sealed)
    return ExistingRuns(runs=runs, by_key={run.run_key: run for run in runs if run.run_key and run.status in FINAL})


def seconds_of_runs(existing: ExistingRuns, plan: PlacePlan, results: Path, *, place: str) -> dict[RunSpec, float]:
    """Seconds that each configuration with missing runs takes, process start included, as measured by earlier runs.

    First choice: a run of this sweep in another block. Second choice: another run with the same options, made on this
    host, or for rented machines at a place whose name begins with `place`. Configurations without such a run are left
    out.
    """
    missing = {run.spec for task in plan.missing for run in task.runs}
    seconds: dict[RunSpec, float] = {}
    for run in plan.runs:
        sealed = existing.by_key.get(run.run_key)
        if sealed and sealed.status == Status.COMPLETED and sealed.seconds and run.spec in missing:
            seconds.setdefault(run.spec, sealed.seconds)
    unknown = [each.spec for each in plan.configurations if each.spec in missing - seconds.keys()]
    others = _by_name(existing.runs) if unknown else {}
    for spec in unknown[:MOST_CONFIGURATIONS]:
        similar = others.get((spec.model, spec.batch_size, spec.precision), [])
        for sealed in similar[-MOST_LOOKED_AT:][::-1]:
            with suppress(BundleError):
                record = bundle.read_record(results / sealed.run_id)
                if _has_options(record, spec) and _is_at(record, plan, place):
                    timing = record.timing
                    seconds[spec] = float(
                        (timing.phases or {}).get("end") or (timing.setup_s or 0) + (timing.measured_s or 0)
                    )
                    break
    return {spec: value for spec, value in seconds.items() if value > 0}


def seconds_of_script(existing: ExistingRuns, plan: PlacePlan, results: Path, *, place: str) -> dict[RunSpec, float]:
    """Median seconds of the latest runs of each configuration's script, with the same options and any arguments.

    Only runs at this place count, as for `seconds_of_runs`. Configurations without such runs are left out.
    """

    @cache
    def seconds_of(spec: RunSpec) -> float:
        name = f"-{slug(script_name(spec.script))}-b"
        runs = [run for run in existing.runs if run.status == Status.COMPLETED and run.seconds and name in run.run_id]
        seconds = []
        for run in runs[-MOST_OF_A_SCRIPT:]:
            with suppress(BundleError):
                record = bundle.read_record(results / run.run_id)
                words = tuple((record.spec.script and record.spec.script.argv) or ())
                if (
                    script_words(words) == redacted(spec.script)
                    and _has_options(record, spec)
                    and _is_at(record, plan, place)
                ):
                    seconds.append(run.seconds or 0.0)
        return median(seconds) if seconds else 0.0

    specs = {run.spec for task in plan.missing for run in task.runs if run.spec.script}
    known = {spec: seconds_of(replace(spec, script=script_words(spec.script))) for spec in specs}
    return {spec: seconds for spec, seconds in known.items() if seconds}


def _by_name(runs: Iterable[SealedRun]) -> dict[tuple[str, int | None, str], list[SealedRun]]:
    """Completed runs by model, batch size and precision, as their run_ids state these, oldest first.

    Each run is also in a group with None as batch size, which has all batch sizes.
    """
    groups: dict[tuple[str, int | None, str], list[SealedRun]] = {}
    for sealed in runs:
        name = RUN_ID.fullmatch(sealed.run_id)
        if name and sealed.status == Status.COMPLETED:
            for batch in (int(name["batch"]), None):
                groups.setdefault((name["model"], batch, name["precision"]), []).append(sealed)
    return groups


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


def first_lines(counts: Sequence[tuple[str, int]], most: int) -> str:
    """Text with the first `most` entries, and the number of further ones."""
    shown = ", ".join(f"{text} ({count})" if count > 1 else text for text, count in counts[:most])
    return shown + (f" and {len(counts) - most} more" if len(counts) > most else "")

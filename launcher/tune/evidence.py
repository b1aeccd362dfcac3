"""Evidence of a tuning: a file that names the bundles behind each statement, and from which a tuning goes on.

It is written before and after each run. What it says follows from the bundles alone: `check` computes every statement
again, and finds bundles and statements that were edited.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.duel.contest import Limits, Measured, Rule, measured_of
from launcher.duel.decision import SEGMENTS, DuelVerdict, order
from launcher.duel.referee import Losses, Ruling, judge_work, losses_of
from launcher.tune.candidates import candidate_of
from workload.contract import bundle
from workload.contract.bundle import MANIFEST
from workload.contract.changes import Apart, distance_of_seeds
from workload.contract.errors import BundleError, RooflaunchError
from workload.contract.operating_system import replace_text
from workload.contract.record import Record
from workload.contract.text import percent

FILE = "evidence.json"
FORMAT = 1
# Chance that any accepted change of a tuning is no gain.
ERROR = 0.05


class Decision(StrEnum):
    """Decision on a change."""

    ACCEPTED = "accepted"
    BELOW = "below the margin"
    REFUSED = "refused"
    FAILED = "failed"
    OPEN = "not decidable"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Duel that tries one change: A is the script with the changes `base`, B the same with `change` too.

    `error`: the largest chance that the change is accepted although it is no gain. `name`: that of the duel.
    `line`: that of the constructor that the change is made to. `is_final`: the duel is that of all accepted changes
    together against the original. `changes`, `commands`: option --change and command of A and of B. `bundles`:
    SHA-256 of the manifest of each run, in order. `gain`, `low`, `high`: growth of throughput with its interval; None
    if unknown. `losses`: how they compare, in words. `at_most`: bound of the gain, from the run `bound_by`.
    """

    name: str
    change: str
    line: str | None = None
    base: tuple[str, ...] = ()
    changes: tuple[str | None, str | None] = (None, None)
    commands: tuple[str, str] = ("", "")
    error: float
    is_final: bool = False
    at_most: float | None = None
    bound_by: str | None = None
    bundles: Mapping[str, str] = field(default_factory=dict)
    decision: Decision = Decision.OPEN
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    losses: str = ""
    why: str = ""

    @property
    def is_unjudged(self) -> bool:
        """Whether the change failed or was refused before the first look at the times, which could not be false."""
        return self.decision in (Decision.FAILED, Decision.REFUSED) and len(self.bundles) < SEGMENTS


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A tuning so far. `command`: words of the script without secrets. `files`: SHA-256 of each file of the script.

    `originals`, `others`: SHA-256 of the manifest of each run of the script as it is, and with other seeds. `seeds`:
    how far the latter's losses are. `firsts`: growth of throughput by each change in one run, which decides only the
    order of trials. `patch`: SHA-256 of the patch file.
    """

    format: int = FORMAT
    rooflaunch: str
    command: tuple[str, ...]
    asked: tuple[str, ...] = ()
    margin: float
    losses: Losses
    files: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str | None] = field(default_factory=dict)
    originals: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    seeds: Apart | None = None
    firsts: Mapping[str, float] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    patch: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs_without_changes(self) -> Mapping[str, str]:
        """Runs of the script as it is, or only with another seed: SHA-256 of each manifest."""
        return {**self.originals, **self.others}

    @property
    def wealth(self) -> float:
        """Part of `ERROR` that is left: a trial spends its own part, unless it is accepted or never judged."""
        return ERROR - sum(
            trial.error for trial in self.trials if trial.decision is not Decision.ACCEPTED and not trial.is_unjudged
        )

    def with_trial(self, trial: Trial) -> "Evidence":
        """Copy of the evidence with this trial, which replaces one with the same name."""
        trials = {known.name: known for known in self.trials} | {trial.name: trial}
        return replace(self, trials=tuple(trials.values()))

    def write(self, folder: Path) -> None:
        """Write the file of the tuning in `folder`, atomically."""
        replace_text(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read(path: Path) -> Evidence:
    """Read an evidence file. Raises `BundleError` if it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") != FORMAT:
            raise BundleError(
                f"'{path}' has format {document.get('format')!r}, and this version reads {FORMAT}",
                hint="use the version of rooflaunch that wrote it, or tune again in another folder: -o FOLDER",
            )
        trials = tuple(Trial(**_typed(Trial, row)) for row in document["trials"])
        seeds = document.get("seeds") and Apart(**document["seeds"])
        return Evidence(**{**_typed(Evidence, document), "trials": trials, "seeds": seeds})
    except OSError as error:
        raise BundleError(f"'{path}' cannot be read: {error.strerror}", hint=f"FOLDER/{FILE} of a tuning") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BundleError(
            f"'{path}' is no evidence of launch tune: {error}", hint="copy it again, or tune again"
        ) from error


def _typed(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass from JSON: tuples for lists, members of enumerations for their texts."""
    enums = {"decision": Decision, "losses": Losses if kind is Evidence else str}
    known = {item.name for item in fields(kind)}
    if unknown := row.keys() - known:
        raise ValueError(f"unknown key '{min(unknown)}'")
    return {
        name: enums[name](value) if name in enums else tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
    }


def digest(folder: Path) -> str:
    """SHA-256 of the manifest of a bundle, which has the SHA-256 of every file in it."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


# --- decisions


def decide(
    trial: Trial,
    segments: Sequence[Measured],
    records: Mapping[str, Sequence[Record]],
    evidence: Evidence,
    ended: str = "",
) -> Trial:
    """The trial with its decision. `records`: those of the segments, by variant. `ended`: why no more runs follow."""
    limits, rule = Limits(same_within=evidence.margin, max_time_s=0), rule_of(trial)
    state = rule.state(segments, limits)
    ruling = Ruling(refusals=(), losses="")
    if records["A"] and records["B"]:
        made = candidate_of(trial.change)
        ruling = judge_work(
            records["A"],
            records["B"],
            effect=made.effect,
            precisions=made.precisions,
            rule=evidence.losses,
            seeds=evidence.seeds,
        )
    if ruling.refusals:
        decision, why = Decision.REFUSED, "; ".join(ruling.refusals)
    elif state.verdict is DuelVerdict.FASTER:
        decision, why = Decision.ACCEPTED, ""
    elif state.verdict or rule.is_not_faster(segments, limits):
        decision, why = Decision.BELOW, f"below {percent(evidence.margin)}"
    else:
        decision, why = Decision.OPEN, ended or "not decided yet"
    # The seconds of B over those of A, turned into growth of throughput.
    gain, low, high = (None if ratio is None else 1 / ratio - 1 for ratio in (state.ratio, state.high, state.low))
    return replace(trial, decision=decision, why=why, losses=ruling.losses, gain=gain, low=low, high=high)


def rule_of(trial: Trial) -> Rule:
    """Rule of a trial's duel.

    Only the verdict *faster* accepts, and it is false with half of the rule's error. The whole wall time counts, not
    the median step: with workers, most steps wait for no data, and every few steps wait long.
    """
    return Rule(error=2 * trial.error, by_wall=True, seeks_faster=True)


# --- the check


def segments_of(trial: Trial, folder: Path) -> tuple[list[Measured], dict[str, list[Record]]]:
    """Segments of a trial and their records by variant, from the bundles in `folder`. Raises `BundleError`."""
    segments, records = list[Measured](), {"A": list[Record](), "B": list[Record]()}
    for position, (run_id, variant) in enumerate(zip(trial.bundles, order(seed_of(trial.name)), strict=False)):
        sealed = bundle.read(folder / run_id)
        if digest(folder / run_id) != trial.bundles[run_id]:
            raise BundleError(f"'{folder / run_id}' was changed after the tuning", hint="tune again")
        job, spec, side = sealed.record.job, sealed.record.spec, 0 if variant == "A" else 1
        found = (job and job.name, job and job.variant, spec.change, spec.script and spec.script.command)
        if found != (trial.name, variant, trial.changes[side], trial.commands[side]):
            raise BundleError(f"'{folder / run_id}' is no run of {variant} in {trial.name}", hint="tune again")
        segments.append(measured_of(sealed, variant, position))
        records[variant].append(sealed.record)
    return segments, records


def seed_of(name: str) -> int:
    """Seed of the order of a duel's runs, from its name."""
    return int(name.rpartition("-")[2], 16)


def check(evidence: Evidence, folder: Path) -> Iterator[str]:
    """Contradictions between what the evidence says and what its bundles show, as sentences."""
    yield from _check_originals(evidence, folder)
    for number, trial in enumerate(evidence.trials):
        left = replace(evidence, trials=evidence.trials[:number]).wealth
        if trial.error > left * (1 + 1e-9):
            yield f"{trial.change}: its error {trial.error:.2g} is more than the {left:.2g} that is left of {ERROR:g}"
        if trial.decision is not Decision.FAILED:
            yield from _check_trial(trial, evidence, folder)
    for name, known in evidence.patch.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != known:
            yield f"'{path}' is missing, or was changed after the tuning"


def _check_originals(evidence: Evidence, folder: Path) -> Iterator[str]:
    for run_id, known in evidence.runs_without_changes.items():
        try:
            bundle.read(folder / run_id)
            if digest(folder / run_id) != known:
                yield f"the run '{run_id}' of the original was changed after the tuning"
        except BundleError as error:
            yield str(error)
            return
    if seeds_of(evidence, folder) != evidence.seeds:
        yield "how far losses of other seeds are is not what their runs show"


def seeds_of(evidence: Evidence, folder: Path) -> Apart | None:
    """How far the losses of the nearest run with other seeds are from the original's; None if that is unknown."""
    original, others = (
        [bundle.read_record(folder / each) for each in ids] for ids in (evidence.originals, evidence.others)
    )
    shifted = [losses_of(run) for run in others if (run.spec.change or "").startswith("seeds(")]
    return distance_of_seeds(losses_of(original[0]), shifted) if original else None


def _check_trial(trial: Trial, evidence: Evidence, folder: Path) -> Iterator[str]:
    try:
        again = decide(trial, *segments_of(trial, folder), evidence, trial.why)
        if trial.bound_by and not trial.is_final:
            run = bundle.read(folder / trial.bound_by)
            again = replace(again, at_most=candidate_of(trial.change).bound(run.record, run.steps()))
    except (RooflaunchError, ValueError) as error:
        yield f"{trial.change}: {error}"
        return
    for item in fields(Trial):
        stated, found = getattr(trial, item.name), getattr(again, item.name)
        if isinstance(stated, float) and isinstance(found, float) and abs(stated - found) <= 1e-9 * max(1, abs(found)):
            continue
        if stated != found:
            yield f"{trial.change}: {item.name} is stated as {_said(stated)}, and its bundles give {_said(found)}"


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"'{value}'"

"""Runs the duels of a tuning on this machine, and before them the unchanged script, whose figures give the bounds."""

import hashlib
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from launcher.duel import contest
from launcher.duel.contest import Limits, Measured, OutOfTimeError, Pair, Side, Variant, measured_of
from launcher.duel.referee import Losses, losses_of, refused_losses
from launcher.machine.local import LocalPlan
from launcher.machine.watcher import Watcher
from launcher.tune.candidates import Candidate, candidate_of, change_text, words_with
from launcher.tune.evidence import Decision, Evidence, Trial, decide, digest, rule_of, seeds_of, segments_of
from launcher.tune.tune import Base, Fought
from workload.contract import bundle
from workload.contract.changes import FIRST_RUNS, Effect, compare_losses
from workload.contract.errors import InterruptedRunError, RooflaunchError, UsageError
from workload.contract.record import Record
from workload.contract.record_sections import SoftwareFacts
from workload.contract.script_words import redacted
from workload.contract.text import signed_percent

# Makes the plan of a run of the script's words, with a change from outside or none, and with the machine's ceilings.
PlanOf = Callable[[Sequence[str], str | None, bool], LocalPlan]
# Seconds in which a run's process starts and warms up, until a run has shown it.
START_S = 5.0
ORIGINAL = "original"
# Runs with other seeds: the nearer of two is the limit, so that one odd seed does not widen it.
OTHER_SEEDS = ("seeds(shift=1)", "seeds(shift=2)")


class ScriptChangedError(Exception):
    """Raised if a file of the script was edited during the tuning; the text names the file."""


class _RefusedError(Exception):
    """Raised when the referee refuses B, to end the duel: no further run is needed."""


@dataclass(kw_only=True)
class LocalDuels:
    """Duels on this machine. `keep`: saves a trial; `evidence`: returns the evidence so far; `tell`: gets progress.

    `words`: the script as it is; `output`: folder of the bundles. `watcher`: gets each run's trainer; `on_run`: gets
    its sealed bundle before the evidence names it. `run_s`: seconds of the latest run and its start.
    """

    words: Sequence[str]
    output: Path
    plan_of: PlanOf
    keep: Callable[[Trial], None]
    evidence: Callable[[], Evidence]
    tell: Callable[[str], None]
    watcher: Watcher | None = None
    on_run: Callable[[Path], None] = lambda _: None
    run_s: float = START_S

    def side(self, variant: Variant, candidates: Sequence[Candidate], *, ceilings: bool = False) -> Side:
        """Side of a duel that runs the script with these changes."""
        plan = self.plan_of(words_with(self.words, candidates), change_text(candidates), ceilings)
        return Side(variant=variant, label=plan.spec.title, plan=plan)

    def run(self, side: Side, *, name: str, position: int, left_s: float, tell: Callable[[str], None]) -> Measured:
        """Run a segment, as `launcher.duel.contest.run_segment` does, and learn how long runs take."""
        began_s = time.monotonic()
        segment = contest.run_segment(side, name=name, position=position, left_s=left_s, tell=tell, also=self.watcher)
        self.on_run(segment.folder)
        self.run_s = time.monotonic() - began_s
        return segment

    def first(self, candidate: Candidate, *, max_time_s: float) -> float:
        """Run the script once with this change alone, and compare its throughput with that of the original runs."""
        side, run_s = self.side("B", [candidate]), self.run_s

        def tell(text: str) -> None:
            self.tell(f"{candidate.text}: {text}")

        try:
            segment = self.run(side, name=FIRST_RUNS, position=0, left_s=max_time_s, tell=tell)
        except OutOfTimeError:
            return -1.0
        # Other changes do not compile, so their runs take no longer than before.
        self.run_s = run_s
        without = [bundle.read(self.output / run_id) for run_id in self.evidence().runs_without_changes]
        gain = fmean(measured_of(run, "A", 0).wall_sample_s for run in without) / segment.wall_sample_s - 1
        tell(f"{signed_percent(gain)} in its first run, which proves nothing yet")
        return gain

    def fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], *, max_time_s: float) -> Fought:
        """Begin or continue the duel of a trial. A failure of B is its result; a failure of A raises its error."""
        pair = Pair(a=self.side("A", a), b=self.side("B", b), are_equal=False)
        plans = (pair.a.plan, pair.b.plan)
        commands = [shlex.join(redacted(plan.spec.script)) for plan in plans]
        trial = replace(
            trial, changes=(plans[0].spec.change, plans[1].spec.change), commands=(commands[0], commands[1])
        )
        begun, records = segments_of(trial, self.output)
        course = _Course(duels=self, trial=trial, segments=[*begun], records=records)
        limits = Limits(same_within=self.evidence().margin, max_time_s=max_time_s)
        ended, interrupted = "", None
        try:
            outcome = contest.fight(
                pair,
                limits,
                tell=lambda text: self.tell(f"{trial.change}: {text}"),
                measure=course.measure,
                name=trial.name,
                rule=rule_of(trial),
                begun=begun,
            )
            ended, interrupted = outcome.state.reason, outcome.interrupted
        except _RefusedError:
            pass
        except RooflaunchError as error:
            if course.last != "B" or isinstance(error, InterruptedRunError):
                raise
            return Fought(trial=replace(course.trial, decision=Decision.FAILED, why=str(error)))
        decided = decide(course.trial, course.segments, course.records, self.evidence(), ended)
        last = next((each for each in reversed(course.segments) if each.variant == "B"), None)
        return Fought(trial=decided, base=base_of(b, last.folder) if last else None, interrupted=interrupted)


@dataclass(kw_only=True)
class _Course:
    """Runs of one duel: keeps the trial after each of them, and ends the duel if the referee refuses B."""

    duels: LocalDuels
    trial: Trial
    segments: list[Measured]
    records: dict[str, list[Record]]
    last: str = ""

    def measure(self, side: Side, *, name: str, position: int, left_s: float, tell: Callable[[str], None]) -> Measured:
        """Run a segment, as `launcher.duel.contest.run_segment` does."""
        self.last = side.variant
        segment = self.duels.run(side, name=name, position=position, left_s=left_s, tell=tell)
        record = bundle.read_record(segment.folder)
        files = (record.spec.script and record.spec.script.files) or {}
        for file, known in self.duels.evidence().files.items():
            if files.get(file, known) != known:
                raise ScriptChangedError(f"{file} has changed")
        self.trial = replace(self.trial, bundles={**self.trial.bundles, segment.folder.name: digest(segment.folder)})
        self.duels.keep(self.trial)
        self.segments.append(segment)
        self.records[side.variant].append(record)
        if decide(self.trial, self.segments, self.records, self.duels.evidence()).decision is Decision.REFUSED:
            raise _RefusedError
        return segment


def unchanged(evidence: Evidence, folder: Path) -> bool:
    """Whether the evidence is from this machine, and the script's files in `folder` have not been edited since."""
    paths = {name: folder / name for name in evidence.files}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path.is_file()}
    return evidence.machine.get("host") == platform.node() and found == evidence.files


def base_of(candidates: Sequence[Candidate], folder: Path) -> Base:
    """Make the base of the next trials from a run of the script with these changes."""
    record = bundle.read_record(folder)
    return Base(candidates=tuple(candidates), run_id=folder.name, run=record, steps=bundle.read_steps(folder))


def measure_original(duels: LocalDuels, evidence: Evidence, *, left_s: float) -> tuple[Evidence, Base]:
    """Run the unchanged script twice: first with the machine's ceilings, then again to see whether its losses repeat.

    Two more runs, with other seeds, show how far losses of this script are apart, if a change may round differently.
    Raises `UsageError` if its losses cannot be judged, and the error of a run that fails.
    """
    records, folders = [], []
    for position in range(2):
        side = duels.side("A", (), ceilings=position == 0)
        segment = duels.run(side, name=ORIGINAL, position=position, left_s=left_s, tell=duels.tell)
        folders.append(segment.folder)
        records.append(bundle.read_record(segment.folder))
    script, environment = records[0].spec.script, records[0].environment
    software = environment.software or SoftwareFacts()
    evidence = replace(
        evidence,
        files={name: text for name, text in ((script and script.files) or {}).items() if text},
        machine={
            "host": platform.node(),
            "device": environment.device.name,
            "torch": software.torch,
            "python": software.python,
        },
        originals={folder.name: digest(folder) for folder in folders},
    )
    losses = [losses_of(record) for record in records]
    unusable = [*refused_losses(compare_losses(losses, losses), Effect.ROUNDING, [*losses[0], *losses[1]])]
    if unusable and evidence.losses is not Losses.ANY:
        raise UsageError(
            f"whether a change keeps the losses cannot be judged: {unusable[0]}",
            hint="--losses any tunes without this proof; torch.manual_seed(0) in the script makes its losses repeat",
        )
    if evidence.losses is Losses.ROUNDING:
        evidence = _with_other_seeds(duels, evidence, left_s=left_s)
    return evidence, base_of((), folders[0])


def _with_other_seeds(duels: LocalDuels, evidence: Evidence, *, left_s: float) -> Evidence:
    """The evidence with runs of other seeds; without them if the script sets no seed, or fails with another one."""
    others = {}
    for position, change in enumerate(OTHER_SEEDS, len(evidence.originals)):
        side = duels.side("A", [candidate_of(change)])
        try:
            segment = duels.run(side, name=ORIGINAL, position=position, left_s=left_s, tell=duels.tell)
        except InterruptedRunError:
            raise
        except RooflaunchError as error:
            duels.tell(f"other seeds are not known: {error}")
            return evidence
        others[segment.folder.name] = digest(segment.folder)
    evidence = replace(evidence, others=others)
    return replace(evidence, seeds=seeds_of(evidence, duels.output))

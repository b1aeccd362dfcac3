"""The course of a tuning: which change is tried next, with which chance of an error, until all are decided.

The change with the largest bound is tried first, in a duel of the script with all changes that are accepted so far (A)
against the same with this change too (B). The bounds of the others then come from the last run of the new A. In the end
all accepted changes together fight the original, if they are more than one.

**The chance that any accepted change is no gain is at most `ERROR`, 5 %, for the whole tuning.** Trial k accepts with a
chance of at most e_k if its change is no gain, whatever happened before: its duel is judged by fresh runs, at a level
that was fixed before the first of them, and is valid at every look (`launcher.duel.decision`). The levels come out of a
wealth of 5 %: a trial spends e_k, and gets it back if its change is accepted. Let k be the first trial whose accepted
change is no gain. All changes accepted before it were gains and have given their levels back, so the levels of all
trials of changes that are no gain, up to k, have been spent side by side: their sum is at most 5 %. The chance that such
a k exists is at most the expected sum of these levels (union bound), thus 5 %. It does not matter that later trials
depend on earlier results. (The fallback procedure of Wiens, Pharmaceutical Statistics 2, 2003; online: Tian & Ramdas,
Statistical Methods in Medical Research 30, 2021.)

Each trial gets an equal part of the wealth that is left: wealth / (changes still to try, and the final trial). Of 4 to
10 trials this has most power: a series such as 6 / (pi k)^2 leaves 0.03 % for the tenth trial where equal parts leave
0.5 %, and a duel needs about as many more runs as the logarithm of the level is larger.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from launcher.duel.contest import Limits, Measured, Outcome
from launcher.duel.decision import LEAST_QUADRUPLES, SEGMENTS
from launcher.tune.candidates import Candidate, declared_by, with_candidate
from launcher.tune.evidence import Decision, Evidence, Trial, decide
from workload.contract.errors import InterruptedRunError
from workload.contract.record import Record
from workload.contract.text import minutes, percent

# A duel may take at most this part of the time that is left for further trials, so that one close call cannot use it up.
MOST_OF_TIME = 0.5
ALL = "all of these together"


@dataclass(frozen=True, kw_only=True)
class Base:
    """Accepted candidates, and a run of the script with them from which bounds follow. `steps`: its rows of steps.csv."""

    candidates: tuple[Candidate, ...]
    run_id: str
    run: Record
    steps: Sequence[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Fought:
    """Result of a duel: the decided trial, and a run of B, None if no run of B ended well."""

    trial: Trial
    base: Base | None = None
    interrupted: InterruptedRunError | None = None


class Arena(Protocol):
    """Measures duels. Saves the evidence after each run, so that a killed tuning loses at most one run."""

    def fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], *, max_time_s: float) -> Fought:
        """Begin or continue the duel of a trial, until it is decided or the time is over."""
        ...

    @property
    def least_s(self) -> float:
        """Estimated seconds of the fewest runs that decide a duel."""
        ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the result: `candidate` with its decided trial, or why it was not tried."""

    text: str
    line: str | None = None
    at_most: float | None = None
    trial: Trial | None = None
    why_not: str = ""


@dataclass(kw_only=True)
class Tuning:
    """State of a tuning. `candidates`: returns what can be tried on a base. `save`: keeps the evidence."""

    evidence: Evidence
    base: Base
    candidates: Callable[[Base], Sequence[Candidate]]
    arena: Arena
    max_time_s: float
    save: Callable[[Evidence], None]
    now: Callable[[], float] = time.monotonic
    interrupted: InterruptedRunError | None = None
    why_ended: str = ""
    _rows: dict[str, Row] = field(default_factory=dict)
    _began_s: float = 0.0

    def run(self) -> Iterator[Row]:
        """Yield each row as it is decided."""
        self._began_s = self.now()
        seen = set[str]()
        while not self.interrupted and not self.why_ended:
            row = self._next(seen)
            if row is None:
                break
            seen.add(row.text)
            yield row
        yield from (row for row in self._not_tried() if row.text not in seen)
        if len(self.base.candidates) > 1 and not self.interrupted:
            yield self._final()

    # --- one trial

    def _next(self, seen: set[str]) -> Row | None:
        """Decide the open candidate with the largest bound; None if there is none."""
        left = [candidate for candidate in self._open() if candidate.text not in seen]
        if not left:
            return None
        candidate = left[0]
        bound = candidate.bound(self.base.run, self.base.steps)
        known = self._known(candidate)
        if known and known.decision is not Decision.OPEN:
            return self._row(candidate, known)
        # The final trial will need its time and its level too, if this one is accepted.
        has_final = bool(self.base.candidates)
        left_s = self._left_s() - has_final * self.arena.least_s
        if left_s < self.arena.least_s:
            self.why_ended = f"the time of {minutes(self.max_time_s)} was used up"
            return None
        waiting = [each for each in left if not self._known(each)]
        trial = known or self._new(candidate, self.base.candidates, planned=len(waiting) + 1)
        trial = replace(trial, at_most=bound.gain, bound_by=self.base.run_id if bound.share is not None else None)
        share_s = left_s if len(left) == 1 else max(MOST_OF_TIME * left_s, self.arena.least_s)
        fought = self._fight(trial, self.base.candidates, with_candidate(self.base.candidates, candidate), share_s)
        if fought.trial.decision is Decision.ACCEPTED and fought.base:
            self.base = fought.base
        return self._row(candidate, fought.trial)

    def _open(self) -> list[Candidate]:
        """Candidates that may reach the margin, those that the user named first, then by their bounds."""
        ranked = []
        for number, candidate in enumerate(self.candidates(self.base)):
            gain = candidate.bound(self.base.run, self.base.steps).gain
            is_small = gain is not None and gain < self.evidence.margin and not candidate.is_asked
            if not candidate.why_not and not is_small and candidate.text not in self.evidence.accepted:
                ranked.append(((not candidate.is_asked, gain is None, -(gain or 0.0), number), candidate))
        return [candidate for _, candidate in sorted(ranked, key=lambda each: each[0])]

    def _known(self, candidate: Candidate) -> Trial | None:
        """Trial of a candidate in an earlier session; an undecided one only if its duel can go on."""
        base = tuple(each.text for each in self.base.candidates)
        of_it = [each for each in self.evidence.trials if each.change == candidate.text and not each.is_final]
        return next((each for each in of_it if each.decision is not Decision.OPEN or each.base == base), None)

    def _new(self, candidate: Candidate, base: Sequence[Candidate], *, planned: int, is_final: bool = False) -> Trial:
        return Trial(
            name=f"tune-{secrets.token_hex(3)}",
            change=candidate.text,
            base=tuple(each.text for each in base),
            effect=candidate.declared.effect,
            precisions=tuple(sorted(candidate.declared.precisions)),
            error=self.evidence.wealth / planned,
            is_final=is_final,
        )

    def _fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], max_time_s: float) -> Fought:
        # The level is written down before the first run.
        self._keep(trial)
        fought = self.arena.fight(trial, a, b, max_time_s=max_time_s)
        self._keep(fought.trial)
        self.interrupted = fought.interrupted
        return fought

    def _keep(self, trial: Trial) -> None:
        self.evidence = self.evidence.with_trial(trial)
        self.save(self.evidence)

    def _row(self, candidate: Candidate, trial: Trial) -> Row:
        return Row(text=candidate.text, line=candidate.line, at_most=trial.at_most, trial=trial)

    def _left_s(self) -> float:
        return self.max_time_s - (self.now() - self._began_s)

    # --- the end

    def _not_tried(self) -> Iterator[Row]:
        tried = {trial.change for trial in self.evidence.trials}
        for candidate in self.candidates(self.base):
            if candidate.text in tried:
                continue
            gain = candidate.bound(self.base.run, self.base.steps).gain
            why = candidate.why_not
            if not why and gain is not None and gain < self.evidence.margin:
                why = f"at most {percent(gain)}"
            yield Row(
                text=candidate.text, line=candidate.line, at_most=gain, why_not=why or self.why_ended or "interrupted"
            )

    def _final(self) -> Row:
        """Duel of all accepted changes against the original."""
        base = self.base.candidates
        together = Candidate(text="; ".join(each.text for each in base))
        known = next((each for each in self.evidence.trials if each.is_final and each.change == together.text), None)
        if known and known.decision is not Decision.OPEN:
            return Row(text=ALL, trial=known)
        if self._left_s() < self.arena.least_s:
            self.why_ended = self.why_ended or f"the time of {minutes(self.max_time_s)} was used up"
            return Row(text=ALL, why_not=self.why_ended)
        trial = known or self._new(together, (), planned=1, is_final=True)
        declared = declared_by(base)
        trial = replace(trial, effect=declared.effect, precisions=tuple(sorted(declared.precisions)))
        return Row(text=ALL, trial=self._fight(trial, (), base, self._left_s()).trial)

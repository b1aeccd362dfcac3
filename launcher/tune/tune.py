"""The course of a tuning: which change is tried next, with which chance of an error, until all are decided.

First the script runs once with each change alone. These runs prove nothing, but the change that was fastest in them is
tried first, in a duel of the script with all changes that are accepted so far (A) against the same with this change too
(B). The bounds of the others then come from the last run of the new A. In the end all accepted changes together fight
the original, if they are more than one.

**The chance that any accepted change is no gain is at most `ERROR`, 5 %, for the whole tuning.** Trial k accepts with a
chance of at most e_k if its change is no gain, whatever happened before: its duel is judged by fresh runs, at a level
that was fixed before the first of them, and is valid at every look (`launcher.duel.decision`); the run that decided the
order is not among them. The levels come out of a wealth of 5 %: a trial spends e_k, and gets it back if its change is
accepted, or crashes or is refused before the first look at the times, so that it is never judged. Let k be the first
trial whose accepted change is no gain. All changes accepted before it were gains, so no judged trial of a change that
is no gain has got its level back up to k: these levels have been spent side by side, and their sum is at most 5 %. The
chance that there is such a k is at most the expected sum of these levels (union bound), thus 5 %. It does not matter
that later trials depend on earlier results.
(The fallback procedure of Wiens, Pharmaceutical Statistics 2, 2003; online: Tian & Ramdas, Statistical Methods in
Medical Research 30, 2021.)

Each trial gets an equal part of the wealth that is left: wealth / (changes still to try, and the final trial), or fewer
parts if there is no time for so many trials. Of 4 to 10 trials this has most power: a series such as 6 / (pi k)^2
leaves 0.03 % for the tenth trial where equal parts leave 0.5 %, and a duel needs about as many more runs as the
logarithm of the level is larger.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from launcher.duel.decision import SEGMENTS, least_quadruples
from launcher.tune.candidates import Candidate, joined, with_candidate
from launcher.tune.evidence import ERROR, Decision, Evidence, Trial
from workload.contract.errors import InterruptedRunError, RooflaunchError
from workload.contract.record import Record
from workload.contract.text import duration, minutes, percent

# A duel may take at most this part of the time that is left for several trials, so that one close call cannot use it
# up. A duel that is open then goes on once, after the first duels of the others. It is a large part, because the change
# that was fastest in its first run deserves it: half finds 76 % of simulated gains of 10 %, this 78 to 82 %.
MOST_OF_TIME = 0.7
# The first runs may take this part of the time. With half of the time for a duel, the order by one first run finds 76 %
# of the same gains, that by two or three no more, and that by bounds alone 54 % (benchmarks/tune.py).
MOST_FOR_FIRST_RUNS = 0.25
# Most duels of one change in a session.
MOST_DUELS = 2
# Runs may take this much longer than the latest, so that a duel that was given just enough time is not broken off.
SLACK = 1.2
# Less than this chance of an error is left for no trial.
LEAST_WEALTH = 1e-4
ALL = "all of these together"


@dataclass(frozen=True, kw_only=True)
class Base:
    """Accepted candidates, and a run of the script with them, which gives bounds. `steps`: rows of its steps.csv."""

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


class Duels(Protocol):
    """Measures duels. Saves the evidence after each run, so that a killed tuning loses at most one run."""

    def fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], *, max_time_s: float) -> Fought:
        """Begin or continue the duel of a trial, until it is decided or the time is over."""
        ...

    def first(self, candidate: Candidate, *, max_time_s: float) -> float:
        """Run the script once with this change alone. Raises the error of a run that fails.

        Returns the growth of throughput: 0.1 is 10 % more; -1 if the run was ended after `max_time_s`.
        """
        ...

    @property
    def run_s(self) -> float:
        """Estimated seconds of a run, with its start."""
        ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the result: a change with its decided trial, or why it was not tried.

    `is_open`: it may be worth a trial, for which there was no time.
    """

    text: str
    line: str | None = None
    at_most: float | None = None
    trial: Trial | None = None
    why_not: str = ""
    is_open: bool = False


def row_of(trial: Trial) -> Row:
    """Row of a trial."""
    return Row(text=ALL if trial.is_final else trial.change, line=trial.line, at_most=trial.at_most, trial=trial)


@dataclass(kw_only=True)
class Tuning:
    """State of a tuning. `candidates`: returns what can be tried on a base. `save`: keeps the evidence.

    `spent_s`: part of `max_time_s` that was used up before. `interrupted`: the error if the user ended it.
    `why_ended`: why further changes were not tried, else empty.
    """

    evidence: Evidence
    base: Base
    candidates: Callable[[Base], Sequence[Candidate]]
    duels: Duels
    max_time_s: float
    save: Callable[[Evidence], None]
    spent_s: float = 0.0
    now: Callable[[], float] = time.monotonic
    interrupted: InterruptedRunError | None = None
    why_ended: str = ""
    # How often the duel of a change in this session ended without a decision.
    _left_open: Counter[str] = field(default_factory=Counter)
    _began_s: float = 0.0

    def run(self) -> Iterator[Row]:
        """Try one change after the other; yields the row of each as soon as its duel has decided.

        Rows of changes that an earlier session has decided come first, those that stay undecided after the others.
        """
        self._began_s = self.now()
        self._run_first()
        yield from (row_of(trial) for trial in self._decided())
        while (trial := self._next()) is not None:
            if trial.decision is not Decision.OPEN:
                yield row_of(trial)
        is_decided = {trial.change for trial in self._decided()}
        left_open = {trial.change: trial for trial in self.evidence.trials if not trial.is_final}
        yield from (row_of(trial) for change, trial in left_open.items() if change not in is_decided)
        yield from self._not_tried()
        if len(self.base.candidates) > 1 and not self.interrupted:
            yield self._final()

    def _decided(self) -> list[Trial]:
        return [each for each in self.evidence.trials if not each.is_final and each.decision is not Decision.OPEN]

    # --- first runs

    def _run_first(self) -> None:
        """Run the script once with each change, if there are several, until a part of the time is used up."""
        worth_it, known = self._worth_it(), {trial.change for trial in self.evidence.trials}
        until_s = (1 - MOST_FOR_FIRST_RUNS) * self.max_time_s
        for candidate in worth_it if len(worth_it) > 1 else ():
            left_s = self._left_s() - until_s
            if candidate.text in {*known, *self.evidence.firsts} or left_s < SLACK * self.duels.run_s:
                continue
            try:
                gain = self.duels.first(candidate, max_time_s=left_s)
            except InterruptedRunError as error:
                self.interrupted = error
                return
            except RooflaunchError as error:
                failed = self._new(candidate, (), planned=1)
                self.keep(replace(failed, error=0.0, decision=Decision.FAILED, why=str(error)))
            else:
                self._save(replace(self.evidence, firsts={**self.evidence.firsts, candidate.text: gain}))

    # --- one trial

    def _next(self) -> Trial | None:
        """Fight for the undecided candidate whose first run was fastest; None if there is none, or no time."""
        done, often = {trial.change for trial in self._decided()}, self._left_open
        left = [each for each in self._worth_it() if each.text not in done and often[each.text] < MOST_DUELS]
        base, self.why_ended = self.base.candidates, ""
        for candidate in sorted(left, key=lambda each: often[each.text]) if not self.interrupted else ():
            known = self._begun(candidate, base)
            if not known and self.evidence.wealth < LEAST_WEALTH:
                self.why_ended = f"earlier changes have used up the {percent(ERROR)} of errors"
                continue
            # The final trial needs a part of the level.
            planned = max(self._planned(len(left) + 1), 2 if base else 1)
            trial = known or self._new(candidate, base, planned=planned)
            # The final trial takes time too, if it is sure to come.
            least_s = self._least_s(trial.error, done=len(trial.bundles))
            final_s = self._least_s(max(self.evidence.wealth, trial.error)) if len(base) > 1 else 0.0
            left_s = self._left_s() - final_s
            if left_s < least_s:
                self.why_ended = self._too_short(least_s, final_s)
                continue
            share_s = left_s if planned == 1 or often[candidate.text] else max(MOST_OF_TIME * left_s, least_s)
            fought = self._fight(trial, base, with_candidate(base, candidate), share_s)
            if fought.trial.decision is Decision.ACCEPTED and fought.base:
                self.base = fought.base
            elif fought.trial.decision is Decision.OPEN:
                often[candidate.text] += 1
            return fought.trial
        return None

    def _worth_it(self) -> list[Candidate]:
        """Candidates that may reach the margin, in the order in which they are tried.

        Those that the user named come first. Among the others, the gain in the first run decides, then the bound.
        """
        ranked, firsts = [], self.evidence.firsts
        for number, candidate in enumerate(self.candidates(self.base)):
            gain = self._gain(candidate)
            if not candidate.why_not and (candidate.is_asked or gain is None or gain >= self.evidence.margin):
                # A change without a first run comes after those that were faster in theirs.
                rank = (not candidate.is_asked, -firsts.get(candidate.text, 0.0), gain is None, -(gain or 0.0), number)
                ranked.append((rank, candidate))
        return [candidate for _, candidate in sorted(ranked, key=lambda each: each[0])]

    def _gain(self, candidate: Candidate) -> float | None:
        return candidate.bound(self.base.run, self.base.steps)

    def _begun(self, candidate: Candidate, base: Sequence[Candidate]) -> Trial | None:
        """Undecided trial of this change on this base, whose duel can go on."""
        texts = tuple(each.text for each in base)
        return next(
            (each for each in self.evidence.trials if (each.change, each.base) == (candidate.text, texts)), None
        )

    def _new(self, candidate: Candidate, base: Sequence[Candidate], *, planned: int, is_final: bool = False) -> Trial:
        gain = self._gain(candidate)
        return Trial(
            name=f"tune-{secrets.token_hex(3)}",
            change=candidate.text,
            line=candidate.line,
            base=tuple(each.text for each in base),
            error=self.evidence.wealth / planned,
            is_final=is_final,
            at_most=None if is_final else gain,
            bound_by=None if is_final or gain is None else self.base.run_id,
        )

    def _fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], max_time_s: float) -> Fought:
        # The level is written down before the first run.
        self.keep(trial)
        fought = self.duels.fight(trial, a, b, max_time_s=max_time_s)
        self.keep(fought.trial)
        self.interrupted = fought.interrupted
        return fought

    def keep(self, trial: Trial) -> None:
        """Save the evidence with this trial."""
        self._save(self.evidence.with_trial(trial))

    def _save(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.save(evidence)

    def _left_s(self) -> float:
        return self.max_time_s - self.spent_s - (self.now() - self._began_s)

    def _least_s(self, error: float, *, done: int = 0) -> float:
        """Estimated seconds of the fewest runs that decide a trial with this chance of an error, after `done` runs."""
        return max(least_quadruples(2 * error) * SEGMENTS - done, SEGMENTS) * SLACK * self.duels.run_s

    def _planned(self, wished: int) -> int:
        """Number of trials that there is time for, at most `wished`: the fewer they are, the fewer runs each needs."""
        # An open trial goes on with the level that it has, even if nothing is left for others.
        wealth, left_s = max(self.evidence.wealth, LEAST_WEALTH), self._left_s()
        return max((n for n in range(1, wished + 1) if n * self._least_s(wealth / n) <= left_s), default=1)

    def _too_short(self, least_s: float, final_s: float = 0.0) -> str:
        left = duration(max(0.0, self._left_s()))
        final = f", that of all changes together {duration(final_s)}" if final_s else ""
        return f"a duel takes {duration(least_s)} or more{final}, and {left} of {minutes(self.max_time_s)} are left"

    # --- the end

    def _not_tried(self) -> Iterator[Row]:
        tried = {trial.change for trial in self.evidence.trials}
        for candidate in self.candidates(self.base):
            if candidate.text not in tried:
                gain, why = self._gain(candidate), candidate.why_not
                if not why and gain is not None and gain < self.evidence.margin:
                    why = f"below {percent(self.evidence.margin)} at most"
                ended = self.why_ended or "the tuning was interrupted"
                yield Row(text=candidate.text, line=candidate.line, at_most=gain, why_not=why or ended, is_open=not why)

    def _final(self) -> Row:
        """Fight for all accepted changes against the original."""
        together = joined(self.base.candidates)
        known = next((each for each in self.evidence.trials if each.is_final and each.change == together.text), None)
        if known and known.decision is not Decision.OPEN:
            return row_of(known)
        trial = known or self._new(together, (), planned=1, is_final=True)
        if self._left_s() < (least_s := self._least_s(trial.error, done=len(trial.bundles))):
            self.why_ended = self._too_short(least_s)
            return Row(text=ALL, why_not=self.why_ended, is_open=True)
        return row_of(self._fight(trial, (), self.base.candidates, self._left_s()).trial)

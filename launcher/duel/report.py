"""Texts of a duel: its plan, and its result as text, as JSON, and as Markdown for a job's summary."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from launcher.duel.contest import MOST_MARGIN, STEPS, VARIANTS, Limits, Outcome, Pair, Work, singular
from launcher.duel.decision import LEAST_QUADRUPLES, MOST_EXPECTED, SEGMENTS, DuelState, DuelVerdict
from launcher.duel.referee import Ruling
from workload.contract import bundle
from workload.contract.bundle import RECORD
from workload.contract.changes import Change, Effect, Likeness, LossComparison, changes_of, compare_losses
from workload.contract.errors import ExitCode, UsageError
from workload.contract.text import MINUTE_S, counted, duration, minutes, percent, plain, printable, seconds
from workload.contract.verdict import FAULTS_CURE

CODES = {
    DuelVerdict.SAME: ExitCode.DONE,
    DuelVerdict.SLOWER: ExitCode.SLOWER,
    DuelVerdict.FASTER: ExitCode.FASTER,
    DuelVerdict.NOT_DECIDABLE: ExitCode.NOT_DECIDABLE,
}
EQUAL = "both sides are the same program: this duel shows how small a difference this machine can detect"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a duel, to be shown before the first segment runs. `output`: folder for the bundles."""

    pair: Pair
    limits: Limits
    output: Path

    def to_json(self) -> dict[str, Any]:
        """Plan as JSON values, for `--dry-run --format json`."""
        sides = {name: self.pair.side(name) for name in VARIANTS}
        return {
            **{name: {"label": side.label, **side.plan.to_json()} for name, side in sides.items()},
            **asdict(self.limits),
            **dict(self.pair.facts),
            "are_equal": self.pair.are_equal,
            "warnings": self.warnings,
        }

    @property
    def warnings(self) -> list[str]:
        """Sentences on doubts about the sides, and on a budget that is too small for a verdict."""
        too_little = self.limits.warning(self.pair.run_s)
        return [*self.pair.warnings, *([too_little] if too_little else [])]

    def text(self) -> str:
        """Plan as lines of text."""
        limit = f" or {self.limits.max_segments} runs" if self.limits.max_segments else ""
        least = counted(LEAST_QUADRUPLES * SEGMENTS, "run")
        rows = [
            *([("note", EQUAL)] if self.pair.are_equal else []),
            *((name, self.pair.side(name).label) for name in VARIANTS),
            *self.pair.facts,
            ("decides", f"whether B is slower or faster than A by {percent(self.limits.same_within)} or more"),
            (
                "takes",
                (
                    f"{least} or more, four at a time (ABBA or BAAB, chosen at random); at most "
                    f"{minutes(self.limits.max_time_s)}{limit}"
                ),
            ),
            ("bundles", f"{self.output}/"),
            *((f"command {name}", self.pair.side(name).plan.command_text()) for name in VARIANTS),
            *(("warning", warning) for warning in self.warnings),
        ]
        return _lines(rows)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Plan of a duel with its outcome, to be shown at the end. `output`: folder of the bundles.

    `ruling`: whether B does the same work as A; None if nobody asked.
    """

    pair: Pair
    limits: Limits
    outcome: Outcome
    output: Path
    ruling: Ruling | None = None

    @property
    def verdict(self) -> DuelVerdict:
        """Verdict of the duel; `NOT_DECIDABLE` if none was reached, for example after an interrupt."""
        return self.outcome.state.verdict or DuelVerdict.NOT_DECIDABLE

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the verdict, for CI."""
        return ExitCode.FINDINGS if self.refusals else CODES[self.verdict]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Reasons why the referee refuses B."""
        return self.ruling.refusals if self.ruling else ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """Changes of either side."""
        return tuple(change for name in VARIANTS for change in changes_of(self.pair.side(name).plan.spec.change))

    @property
    def losses(self) -> LossComparison | None:
        """Comparison of the losses of both sides; None if neither side has a change."""
        a, b = ([each.losses for each in self.outcome.segments if each.variant == name] for name in VARIANTS)
        return compare_losses(a, b) if self.changes else None

    @property
    def notes(self) -> list[str]:
        """Warnings about the comparison, each a sentence: files that changed, equal code, a busy machine."""
        notes = list(self.pair.warnings)
        state, wall = self.outcome.state, self.outcome.wall
        files = {segment.variant: segment.files for segment in self.outcome.segments if segment.files}
        if any(segment.files != files.get(segment.variant) for segment in self.outcome.segments):
            notes.append("the script's files changed during the duel: a duel of commits (--commit) compares copies")
        if self.pair.compares_code and not self.pair.are_equal and len(files) > 1 and len(set(files.values())) == 1:
            notes.append(
                "the commits differ, but the Python files that the script ran do not: the changed files "
                "were not imported, or were imported from another folder"
            )
        differ = self.losses and self.losses.likeness in (Likeness.CLOSE, Likeness.DIFFERENT)
        if differ and all(change.row.effect is Effect.SAME for change in self.changes):
            unless = "; or ".join(dict.fromkeys(change.row.unless for change in self.changes if change.row.unless))
            notes.append("the losses should be the same to the bit" + (f", unless {unless}" if unless else ""))
        if wall.verdict != state.verdict and wall.verdict in (DuelVerdict.SLOWER, DuelVerdict.FASTER):
            notes.append(
                f"by the whole wall time B is {wall.verdict} by {percent(wall.margin)} or more "
                f"({wall.interval}): single steps or the time between steps differ, which the median step "
                "does not show"
            )
        if state.verdict is DuelVerdict.NOT_DECIDABLE and not self.outcome.interrupted:
            wider = min(2 * self.limits.same_within, MOST_MARGIN)
            # A wider margin that is still below the noise would not lead to a verdict.
            is_of_use = self.limits.same_within < wider and (state.spread or 0.0) <= wider
            margin = f"--same-within {100 * wider:g}%, " if is_of_use else ""
            notes.append(f"to decide it: {self._longer}, {margin}or a machine with less other work")
        shares = [segment.faults.share if segment.faults else 0.0 for segment in self.outcome.segments]
        # Page faults that slow all runs down alike change no difference.
        are_uneven = max(shares, default=0.0) - min(shares, default=0.0) >= self.limits.same_within
        if are_uneven and state.verdict is DuelVerdict.NOT_DECIDABLE:
            slowed = f"{sum(share > 0 for share in shares)} of {counted(len(shares), 'run')}"
            notes.append(f"page faults take up to {percent(max(shares))} of the time in {slowed}; {FAULTS_CURE}")
        return notes

    @property
    def _longer(self) -> str:
        state, limits = self.outcome.state, self.limits
        if not state.expected:
            return f"more than {MOST_EXPECTED * SEGMENTS} runs" if state.fewest else "a longer --max-time"
        total = state.quadruples + state.expected
        needed_s = max(total * self.outcome.elapsed_s / state.quadruples, limits.max_time_s)
        runs = f" --max-runs {total * SEGMENTS}" if limits.max_segments else ""
        return f"--max-time {ceil(needed_s / MINUTE_S)}m{runs}"

    def to_json(self) -> dict[str, Any]:
        """Result as JSON values."""
        outcome = self.outcome
        segments = [
            {
                "position": segment.position,
                "variant": segment.variant,
                "s_per_step": segment.step_s,
                "s_per_sample": segment.sample_s,
                "wall_s_per_step": segment.wall_step_s,
                "wall_s_per_sample": segment.wall_sample_s,
                "busy": segment.busy,
                "page_faults_per_step": segment.faults and segment.faults.per_step,
                "bundle": str(segment.folder),
            }
            for segment in outcome.segments
        ]
        return {
            "name": outcome.name,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "compared": "throughput" if outcome.comparison.by_sample else "time of a step",
            "unit": outcome.comparison.unit,
            "are_equal": self.pair.are_equal,
            **_state_json(outcome.state),
            "wall_time": {"verdict": outcome.wall.verdict, **_state_json(outcome.wall)},
            **{
                name: {
                    "label": self.pair.side(name).label,
                    "spec": self.pair.side(name).plan.spec.to_json(),
                    "s": self._median_s(name),
                    "work": None if (work := self._work(name)) is None else asdict(work),
                }
                for name in VARIANTS
            },
            **asdict(self.limits),
            "elapsed_s": outcome.elapsed_s,
            "losses": self.losses and asdict(self.losses),
            "referee": self.ruling and asdict(self.ruling),
            "interrupted": bool(outcome.interrupted),
            "notes": self.notes,
            "segments": segments,
        }

    def text(self) -> str:
        """Result as lines of text."""
        outcome = self.outcome
        spread = outcome.state.spread
        noise = "" if spread is None else f"; runs of the same side differ by {percent(spread)}"
        rows = [
            *self._opening_rows(),
            ("verdict", f"{self._headline()}: {outcome.state.reason}"),
            *((name, f"{self._figure(name)}  ({self.pair.side(name).label})") for name in VARIANTS),
            *([("losses", self.losses.text)] if self.losses else []),
            *(
                [("referee", f"B does the work of A; losses: {self.ruling.losses}")]
                if self.ruling and not self.refusals
                else []
            ),
            ("runs", f"{len(outcome.segments)} in {duration(outcome.elapsed_s)}{noise}"),
            ("bundles", f"{self.output}/ ({outcome.name})"),
            *(("note", note) for note in self.notes),
        ]
        return _lines(rows)

    def markdown(self) -> str:
        """Result as Markdown, for the summary of a CI job."""
        outcome, state = self.outcome, self.outcome.state
        rows = [
            "| | A | B |",
            "|---|---|---|",
            _row("what", [self.pair.side(name).label for name in VARIANTS]),
            _row("median step", [self._figure(name) for name in VARIANTS]),
            _row("runs", [str(sum(each.variant == name for each in outcome.segments)) for name in VARIANTS]),
        ]
        facts = [
            state.against,
            f"{counted(SEGMENTS * state.quadruples, 'run')} in {duration(outcome.elapsed_s)}",
            *self._machine_facts(),
            *([f"losses: {self.losses.text}"] if self.losses else []),
            *([] if outcome.interrupted else [f"exit code {self.exit_code}"]),
        ]
        notes = "".join(f"\n- {_cell(note)}" for note in self.notes)
        return (
            f"### launch duel: {self._headline()}\n\n"
            + "".join(f"{_cell(text)}.\n\n" for text in (*(text for _, text in self._opening_rows()), state.reason))
            + "\n".join(rows)
            + f"\n\n{_cell('; '.join(facts))}.\n{notes}\n"
        )

    def _headline(self) -> str:
        if self.outcome.interrupted:
            return DuelVerdict.NOT_DECIDABLE.value
        if self.refusals:
            return f"the referee refuses B: {'; '.join(self.refusals)}"
        margin, sign = percent(self.limits.same_within), self.outcome.state.sign
        match self.verdict:
            case DuelVerdict.SAME:
                return f"B is {sign}, by less than {margin}" if sign else f"the same within {margin}"
            case DuelVerdict.NOT_DECIDABLE:
                undecided = "not decidable on this machine within the limits"
                return f"B is {sign}, and whether by {margin} or more is {undecided}" if sign else undecided
            case DuelVerdict.SLOWER | DuelVerdict.FASTER:
                return f"B is {self.verdict} by {margin} or more"

    def _opening_rows(self) -> list[tuple[str, str]]:
        different = self.outcome.comparison.text
        rows = [("note", EQUAL)] if self.pair.are_equal else []
        return [*rows, ("compared", different)] if different else rows

    def _work(self, variant: str) -> Work | None:
        return self.outcome.comparison.a if variant == "A" else self.outcome.comparison.b

    def _median_s(self, variant: str) -> float | None:
        comparison = self.outcome.comparison
        times = [comparison.seconds(each) for each in self.outcome.segments if each.variant == variant]
        return median(times) if times else None

    def _figure(self, variant: str) -> str:
        median_s, work, comparison = self._median_s(variant), self._work(variant), self.outcome.comparison
        if median_s is None or work is None:
            return "-"
        if comparison.by_sample:
            unit = comparison.unit
            return f"{seconds(median_s)} per {singular(unit)}, {plain(1 / median_s, 4)} {unit}/s"
        rate = "" if work.unit == STEPS else f", {plain(work.samples / median_s, 4)} {work.unit}/s"
        return f"{seconds(median_s)} a step with its wait for data{rate}"

    def _machine_facts(self) -> list[str]:
        folder = self.outcome.segments[0].folder if self.outcome.segments else None
        if folder is None or not (folder / RECORD).is_file():
            return []
        environment = bundle.read_record(folder).environment
        torch = environment.software and environment.software.torch
        return [text for text in (environment.device.name, f"torch {torch}" if torch else None) if text]


def require_writable(summary: Path | None) -> None:
    """Raise `UsageError` if the summary cannot be written, before anything is measured."""
    if summary is None:
        return
    try:
        with summary.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(
            f"the summary '{summary}' cannot be written: {error.strerror}", hint="--summary FILE, in a folder of yours"
        ) from error


def append(summary: Path, markdown: str) -> None:
    """Append `markdown` to the file `summary`, which a CI service shows with the job."""
    with summary.open("a", encoding="utf-8") as file:
        file.write(markdown)


def _state_json(state: DuelState) -> dict[str, Any]:
    names = ("reason", "ratio", "low", "high", "level", "quadruples", "sign", "busy", "spread")
    return {name: getattr(state, name) for name in names}


def _lines(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<10} {printable(text)}" for name, text in rows)


def _row(name: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([name, *map(_cell, cells)]) + " |"


def _cell(text: str) -> str:
    """Cell of a Markdown table, escaped so that a commit's subject cannot break the table."""
    line = printable(text)
    for character in "\\|<`*_[":
        line = line.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return line

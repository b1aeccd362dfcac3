"""Result of a tuning: rows for people and for programs, exit code, and the edits of the patch."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.tune.candidates import Candidate, candidate_of
from launcher.tune.evidence import FILE, Decision, read
from launcher.tune.patch import Argument, Patch, Statement, patch_of
from launcher.tune.tune import Row
from workload.contract.changes import Change, Via
from workload.contract.errors import BundleError, ExitCode, InterruptedRunError
from workload.contract.record import Record
from workload.contract.tables import Column, Role, TableFormat, facts, render
from workload.contract.text import counted, signed_percent
from workload.contract.verdict import NAMES

# A larger bound excludes nothing, so it is not shown.
MOST_SHOWN = 10.0
COLUMNS = (
    *facts(change="change", line="line"),
    Column(name="at_most", heading="at most"),
    Column(name="measured", heading="measured"),
    Column(name="losses", heading="losses"),
    Column(name="decided", heading="decided", role=Role.SENTENCE),
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Result of a tuning. `accepted`: the changes in the patch; `patch_file`: None if nothing could be written.

    `interrupted`: the error after Ctrl-C.
    """

    rows: Sequence[Row]
    accepted: Sequence[Candidate]
    patch: Patch
    patch_file: Path | None
    evidence: Path
    interrupted: InterruptedRunError | None

    @property
    def exit_code(self) -> ExitCode:
        """12 if the accepted changes make the script faster, 0 if no change does, 13 if the runs cannot decide it."""
        final = next((row for row in self.rows if row.trial and row.trial.is_final), None)
        if final and final.trial and final.trial.decision in (Decision.BELOW, Decision.REFUSED, Decision.FAILED):
            return ExitCode.NOT_DECIDABLE
        if self.accepted:
            return ExitCode.FASTER
        is_open = any(row.is_open or (row.trial and row.trial.decision is Decision.OPEN) for row in self.rows)
        return ExitCode.NOT_DECIDABLE if is_open else ExitCode.DONE


def headline(run: Record) -> str:
    """Sentence that says what limits a step of the unchanged script."""
    bound = run.bound
    if bound is None or bound.bound is None:
        return f"{run.spec.model}: what limits a step is unknown"
    return f"{run.spec.model}: a step is limited by {NAMES.get(bound.bound, bound.bound)}: {bound.why}"


def row_json(row: Row) -> dict[str, Any]:
    """A row for programs, with all figures as shares: a gain of 0.44 is 44 % more samples per second."""
    trial = row.trial
    return {
        "change": row.text,
        "line": row.line,
        "at_most": row.at_most,
        "decision": trial.decision if trial else "not tried",
        "gain": trial and trial.gain,
        "low": trial and trial.low,
        "high": trial and trial.high,
        "level": trial and 1 - 2 * trial.error,
        "losses": trial and trial.losses,
        "why": trial.why if trial else row.why_not,
        "runs": len(trial.bundles) if trial else 0,
        "duel": trial and trial.name,
    }


def _cells(row: Row) -> dict[str, Any]:
    trial = row.trial
    if trial is None:
        decided = f"not tried: {row.why_not}"
    else:
        runs = [counted(len(trial.bundles), "run")] if trial.bundles else []
        is_clear = trial.decision in (Decision.ACCEPTED, Decision.BELOW)
        decided = ", ".join(runs if is_clear else [f"{trial.decision}: {trial.why}", *runs])
    return {
        "change": row.text,
        "line": row.line,
        "at_most": None if row.at_most is None or row.at_most > MOST_SHOWN else signed_percent(row.at_most),
        "measured": _measured(row),
        "losses": (trial and trial.losses) or None,
        "decided": decided,
    }


def _measured(row: Row) -> str | None:
    trial = row.trial
    if trial is None or trial.gain is None:
        return None
    if trial.decision is Decision.BELOW:
        return trial.why
    if trial.low is None or trial.high is None:
        return signed_percent(trial.gain)
    # Two digits, and no sign of percent.
    figures = [f"{100 * share:.2g}" if abs(share) < 0.1 else f"{100 * share:.0f}" for share in (trial.low, trial.high)]  # noqa: PLR2004
    return f"{signed_percent(trial.gain)} ({figures[0]} to {figures[1]})"


def line(row: Row) -> str:
    """Line of progress that says how a change was decided."""
    cells = _cells(row)
    return f"{row.text}: " + "; ".join(str(cells[name]) for name in ("measured", "losses", "decided") if cells[name])


def text(tuned: Tuned, width: int | None = None) -> str:
    """Text that `launch tune` prints at its end: table of changes, what to do by hand, names of the written files."""
    lines = [render([_cells(row) for row in tuned.rows], COLUMNS, TableFormat.TABLE, width=width)]
    lines += [f"note       {note}" for note in tuned.patch.notes]
    lines += [tuned.patch.diff.rstrip("\n")] if tuned.patch_file else []
    lines += [f"patch      {tuned.patch_file}   (git apply {tuned.patch_file})"] if tuned.patch_file else []
    lines += [f"evidence   {tuned.evidence}   (launch tune --check {tuned.evidence})"]
    return "\n".join([*lines, f"page       analyze report {shlex.quote(str(tuned.evidence.parent))}"])


def end_json(tuned: Tuned) -> dict[str, Any]:
    """The object that `--format json` prints last: the result of the whole tuning."""
    return {
        "accepted": [candidate.text for candidate in tuned.accepted],
        "patch": tuned.patch_file and str(tuned.patch_file),
        "notes": list(tuned.patch.notes),
        "evidence": str(tuned.evidence),
        "interrupted": bool(tuned.interrupted),
        "exit_code": tuned.exit_code,
    }


# --- a tuning on another machine


def sent(rows: Sequence[Row], tuned: Tuned | None) -> bytes:
    """Rows of a tuning and its end, for `received`; the trials are in the evidence. `tuned`: None before the end."""
    values = [{**asdict(replace(row, trial=None)), "trial": row.trial and row.trial.name} for row in rows]
    accepted = [candidate.text for candidate in (tuned.accepted if tuned else ())]
    return json.dumps({"rows": values, "accepted": accepted, "patch": tuned and asdict(tuned.patch)}).encode()


def received(content: bytes, folder: Path, script: str) -> Tuned:
    """Make the result of a tuning from the rows that another machine sent; its evidence and bundles are in `folder`.

    Raises `BundleError` if the rows or the evidence cannot be read.
    """
    trials = {trial.name: trial for trial in read(folder / FILE).trials}
    try:
        values = json.loads(content)
        rows = [Row(**{**row, "trial": trials[row["trial"]] if row["trial"] else None}) for row in values["rows"]]
        patch = Patch(diff=values["patch"]["diff"], notes=tuple(values["patch"]["notes"]))
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(f"the tuning of '{script}' arrived damaged: {error}", hint="tune again") from error
    return Tuned(
        rows=rows,
        accepted=[candidate_of(text) for text in values["accepted"]],
        patch=patch,
        patch_file=folder / f"{script}.patch" if patch.diff else None,
        evidence=folder / FILE,
        interrupted=None,
    )


# --- the patch


def patch_for(accepted: Sequence[Candidate], script: Path | None, root: Path, folder: Path) -> Patch:
    """Patch with the accepted changes. `root`: folder of the script's lines; `script`: main file, None if unknown."""
    edits: list[Argument | Statement] = []
    notes = []
    for candidate in accepted:
        if candidate.argument:
            name, value = candidate.argument
            notes.append(f"--{name} {value} is an argument of the script")
        for change in candidate.changes:
            edit = _edit(change, candidate, script, root)
            if isinstance(edit, str):
                notes.append(edit)
            else:
                edits.append(edit)
    return patch_of(edits, folder, notes)


def _edit(change: Change, candidate: Candidate, script: Path | None, root: Path) -> Argument | Statement | str:
    """Edit that makes the change in a file, or a sentence that tells the user how to make it by hand."""
    match change.row.via:
        case Via.CONSTRUCTOR if candidate.line:
            name, _, number = candidate.line.rpartition(":")
            return Argument(
                path=root / name,
                line=int(number),
                callee=candidate.callee,
                argument=change.row.argument,
                value=str(change.value),
            )
        case Via.CONSTRUCTOR:
            return f"{change.code} is not in the patch: a library makes it"
        case Via.SETTING if script:
            return Statement(path=script, code=change.code)
        case Via.ENVIRONMENT:
            return f"before the script starts: {change.code}"
        case _:
            return f"to be written by hand: {change.code}"

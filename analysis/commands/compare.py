"""`analyze compare`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.commands.shared import load, tell
from analysis.compare import COLUMNS, of_pairs
from analysis.configurations import label
from analysis.pairing import Pairing, pair_up
from workload.contract.errors import ExitCode
from workload.contract.invocation import as_typed
from workload.contract.tables import Format, render
from workload.contract.text import counted, printable


def run(
    folders: Sequence[Path],
    *,
    by: str | None,
    allow_mixed: Sequence[str],
    verify: bool,
    form: Format,
    wide: bool = False,
) -> int:
    """Print a line per pair, then on stderr what was compared, what was kept apart, and the problems."""
    results = load(folders, verify=verify)
    pairing = pair_up(results, by, allow_mixed=allow_mixed)
    print(render(of_pairs(pairing), COLUMNS, form, wide=wide))
    sys.stdout.flush()
    for note in _notes(pairing, folders, chosen=by is None, allow_mixed=allow_mixed):
        print(f"note       {note}", file=sys.stderr)
    tell(results.problems)
    return ExitCode.DONE


def _notes(pairing: Pairing, folders: Sequence[Path], *, chosen: bool, allow_mixed: Sequence[str]) -> Iterator[str]:
    """What the figures do not say: what was chosen, and which runs are not in them."""
    if chosen:
        others = f"; also possible: {', '.join(f'--by {fact}' for fact in pairing.also)}" if pairing.also else ""
        yield f"compared by {label(pairing.by)}, in which these runs differ{others}"
    if pairing.mixed:
        mixed = [*allow_mixed, *pairing.mixed]
        command = ["analyze", "compare", *map(str, folders), "--by", pairing.by]
        command += [word for fact in mixed for word in ("--allow-mixed", fact)]
        facts = ", ".join(map(label, pairing.mixed))
        yield f"kept apart: runs that differ in {facts}; to pool them: {as_typed(printable(shlex.join(command)))}"
    if pairing.alone:
        yield (
            f"not compared: {counted(len(pairing.alone), 'run')} without a like run on the other side: "
            f"{_some(pairing.alone)}"
        )
    if pairing.unpaired:
        yield (
            f"not compared: {counted(len(pairing.unpaired), 'run')} that no other differs from in "
            f"{label(pairing.by)} alone: {_some(pairing.unpaired)}"
        )


# More run ids than these say less than their number.
SHOWN_RUNS = 2


def _some(run_ids: Sequence[str]) -> str:
    more = len(run_ids) - SHOWN_RUNS
    return printable(", ".join(run_ids[:SHOWN_RUNS])) + (f" and {more} more" if more > 0 else "")

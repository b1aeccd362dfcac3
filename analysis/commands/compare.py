"""`analyze compare`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, first_names, load, print_problems
from workload.contract.errors import ExitCode
from workload.contract.help_text import Group
from workload.contract.invocation import as_typed
from workload.contract.program import FormatOption, WideOption, option
from workload.contract.tables import TableFormat, render
from workload.contract.text import counted, printable

if TYPE_CHECKING:
    from analysis.compare.pairing import Pairing

EXAMPLES = """\b
Examples:
  analyze compare results
  analyze compare results --by place --baseline local-cpu
"""
# Largest number of run ids that are shown; others are replaced by their count.
SHOWN_RUNS = 2


def compare(
    *,
    results: ResultsArgument,
    by: Annotated[
        str | None,
        option(
            "--by",
            "place, precision, torch, … or args.NAME, an argument of your script (default: the first one that differs)",
            Group.RESULTS,
            metavar="COLUMN",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline",
            "compare all others only with this value (default: every pair, or, with more than six values, the "
            "value with most runs)",
            Group.RESULTS,
            metavar="VALUE",
        ),
    ] = None,
    all_pairs: Annotated[
        bool, option("--all-pairs", "compare every pair, however many there are", Group.RESULTS)
    ] = False,
    allow_mixed: Annotated[
        list[str] | None,
        option(
            "--allow-mixed", "pool runs although they differ in this fact; repeatable", Group.RESULTS, metavar="COLUMN"
        ),
    ] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Compare places or configurations: how much faster, how certain, and the smallest detectable difference."""
    from analysis.compare.pairing import pair_up
    from analysis.compare.ratios import COLUMNS, table

    loaded = load(results, verify=verify, peaks=peaks)
    pairing = pair_up(loaded, by, baseline=baseline, all_pairs=all_pairs, allow_mixed=allow_mixed or ())
    print(render(table(pairing), COLUMNS, output_format, wide=wide))
    sys.stdout.flush()
    chosen = by is None and baseline is None
    for note in _notes(pairing, results, chosen=chosen, allow_mixed=allow_mixed or (), baseline=baseline):
        print(f"note       {note}", file=sys.stderr)
    print_problems(loaded.problems)
    return ExitCode.DONE


def _notes(
    pairing: "Pairing", folders: Sequence[Path], *, chosen: bool, allow_mixed: Sequence[str], baseline: str | None
) -> Iterator[str]:
    """Notes beside the table: choices that were made, and runs that are missing from the figures."""
    from analysis.compare.ratios import positions
    from analysis.loading.configurations import label

    if chosen:
        others = f"; also possible: {', '.join(f'--by {fact}' for fact in pairing.also)}" if pairing.also else ""
        yield f"compared by {label(pairing.by)}, in which these runs differ{others}"
    if pairing.baselines and baseline is None:
        yield (
            "too many values to compare every pair: compared only with "
            f"{first_names(pairing.baselines, SHOWN_RUNS)}, which the most runs have "
            f"({counted(len(pairing.pairs), 'pair')}); --baseline VALUE chooses another, "
            "--all-pairs compares every pair"
        )
    if pairing.mixed:
        mixed = [*allow_mixed, *pairing.mixed]
        command = ["analyze", "compare", *map(str, folders), "--by", pairing.by]
        command += [word for fact in mixed for word in ("--allow-mixed", fact)]
        facts = ", ".join(map(label, pairing.mixed))
        yield f"not pooled: runs that differ in {facts}; to pool them: {as_typed(printable(shlex.join(command)))}"
    if pairing.without_matching_pool:
        number = counted(len(pairing.without_matching_pool), "run")
        yield (
            f"not compared: {number} without a matching run on the other side: "
            f"{first_names(pairing.without_matching_pool, SHOWN_RUNS)}"
        )
    if pairing.without_other_value:
        yield (
            f"not compared: {counted(len(pairing.without_other_value), 'run')} that "
            f"{'no other differs from' if baseline is None else 'do not differ from the baseline'} in "
            f"{label(pairing.by)} alone: {first_names(pairing.without_other_value, SHOWN_RUNS)}"
        )

    yield from positions(pairing)

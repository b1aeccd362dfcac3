"""`analyze kernels`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands.shared import PeaksOption, VerifyOption, print_problems, use_peaks
from workload.contract.errors import ExitCode, UsageError
from workload.contract.help_text import Group
from workload.contract.program import FormatOption, WideOption, option
from workload.contract.tables import TableFormat

EXAMPLES = """\b
Examples:
  analyze kernels results --row operator --top 10
  analyze kernels somebody_elses_ncu.csv --row kernel --top 10
"""


class GroupBy(StrEnum):
    """Content of a row: a family of kernels, the kernels of one name, or the work of an operator in a trace."""

    FAMILY = "family"
    KERNEL = "kernel"
    OPERATOR = "operator"


def kernels(
    *,
    paths: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, or files of Nsight Compute")
    ],
    row: Annotated[
        GroupBy, option("--row --by", "what one row stands for", Group.OUTPUT, show_default=True)
    ] = GroupBy.FAMILY,
    top: Annotated[int | None, option("--top", "the N longest of each profile", Group.OUTPUT, metavar="N")] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """List the kernels of a profiled step by time, with their FLOP/s and FLOP per byte."""
    if top is not None and top < 1:
        raise UsageError(f"--top must be a positive integer; got '{top}'", hint="--top 10")
    use_peaks(peaks)
    from analysis.kernels.profiles import gather, render

    keys = ("family",) if row is GroupBy.FAMILY else ("family", "name")
    # An imported trace has one table of kernels, and another of the operators that launched them.
    imported_keys = {GroupBy.FAMILY: ("family",), GroupBy.KERNEL: (), GroupBy.OPERATOR: ("family", "name")}[row]
    profiles = gather(paths, keys, verify=verify, imported_keys=imported_keys)
    print(render(profiles, output_format, top=top, wide=wide))
    print_problems(profiles.problems)
    return ExitCode.DONE

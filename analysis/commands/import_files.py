"""`analyze import`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.importing import Given, import_file
from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.text import printable


def run(files: Sequence[Path], given: Given, *, output: Path) -> int:
    """Print the folder of each new bundle; files that are there already are named, and an error only if all are."""
    made, held = 0, list[NothingToDoError]()
    for file in files:
        try:
            folder = import_file(file, given, output=output)
        except NothingToDoError as error:
            held.append(error)
        else:
            made += 1
            print(printable(str(folder)), flush=True)
    if not made:
        raise held[0]
    for each in held:
        print(f"note       {printable(str(each))}", file=sys.stderr)
    return ExitCode.DONE

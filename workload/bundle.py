"""Verifies bundles: `python -m workload.bundle`. Their format is in `workload.contract.bundle`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from workload.contract import process
from workload.contract.bundle import read
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
from workload.contract.invocation import as_typed

HELP = """usage: python -m workload.bundle [-h] BUNDLE...

Verify that bundles are complete and undamaged: every file exists and has the right content. Prints a line per bundle.
The exit code is 8 if a bundle is incomplete or damaged, or a folder is no bundle.

example:
  python -m workload.bundle results/*"""


def main(folders: Sequence[str]) -> int:
    """Verify bundles and print a line for each; the exit code is 8 if a folder is incomplete, damaged or no bundle."""
    if {"-h", "--help"} & set(folders):
        print(as_typed(HELP))
        return ExitCode.DONE
    if options := [word for word in folders if word.startswith("-")]:
        error = UsageError(f"there is no option {options[0]!r}", hint="python -m workload.bundle --help")
        print(error.report(), file=sys.stderr)
        return error.exit_code
    if not folders:
        print("error: no bundle named\nhint: python -m workload.bundle results/*", file=sys.stderr)
        return ExitCode.NOTHING_TO_DO
    code = ExitCode.DONE
    for folder in folders:
        try:
            bundle = read(Path(folder))
            print(f"{bundle.record.run_id}: {bundle.record.status}, {len(bundle.files)} files verified")
        except RooflaunchError as error:
            print(error.report(), file=sys.stderr)
            code = ExitCode.BAD_BUNDLE
    return code


if __name__ == "__main__":
    sys.exit(process.enter(lambda: main(sys.argv[1:])))

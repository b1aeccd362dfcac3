"""A script of one's own on this machine: where it runs, and its data."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.machine.script import Workplace
from launcher.script.command import HereOptions, variables_of
from workload.contract.errors import UsageError
from workload.contract.script import main_file

EXAMPLE = "launch local -- train.py --lr 0.1"


def workplace_of(words: Sequence[str], options: HereOptions, folder: Path, environment: Mapping[str, str]) -> Workplace:
    """It runs in the folder that its user is in. Raises `UsageError` where there is no such script, or no such data."""
    main_file(words, folder, example=EXAMPLE, python=f"this Python, {sys.executable}")
    variables = variables_of(options.env, environment)
    if options.data is None:
        return Workplace(folder=folder, variables=variables)
    if "://" in options.data:
        raise UsageError(
            f"--data is a folder of this machine here; got '{options.data}'",
            hint="copy it to a folder first, and name that",
        )
    data = Path(options.data).expanduser().absolute()
    if not data.exists():
        raise UsageError(f"no data at '{options.data}'", hint="--data FOLDER, one that is there")
    return Workplace(folder=folder, data=str(data), variables=variables)

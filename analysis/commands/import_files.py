"""`analyze import`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.text import printable

EXAMPLES = """\b
Examples:
  analyze import iterations.csv --gpu "Tesla T4"
  analyze import ncu.csv --model resnet50 --batch-size 64 --precision fp32 --profile-steps 4
"""


def import_files(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="per-iteration logs or ncu output, as CSV")],
    model: Annotated[
        str | None, typer.Option(metavar="M", help="the model, where the file does not say", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="images per step, where the file does not say", show_default=False)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="fp32|tf32|amp|bf16", help="of the run, if known", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='the device, as "Tesla T4"', show_default=False)
    ] = None,
    profile_steps: Annotated[
        int | None, typer.Option(metavar="N", help="training steps in an ncu profile, if known", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the bundles")] = Path("results"),
) -> int:
    """Make bundles of other people's logs and profiles; prints the folder of each."""
    from analysis.importing import Given, import_file

    given = Given(model=model, batch_size=batch_size, precision=precision, gpu=gpu, profile_steps=profile_steps)
    made, known = 0, list[NothingToDoError]()
    for file in files:
        try:
            folder = import_file(file, given, output=output)
        except NothingToDoError as error:
            known.append(error)
        else:
            made += 1
            print(printable(str(folder)), flush=True)
    # Files that are there already are named, and an error only if all are.
    if not made:
        raise known[0]
    for present in known:
        print(f"note       {printable(str(present))}", file=sys.stderr)
    return ExitCode.DONE

"""`analyze import`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.commands.shared import OutputOption, PeaksOption, use_peaks
from workload.contract.errors import ExitCode, NothingToDoError, RooflaunchError
from workload.contract.invocation import Group
from workload.contract.program import option
from workload.contract.text import counted, printable

if TYPE_CHECKING:
    from analysis.importing import UserFacts

EXAMPLES = """\b
Examples:
  analyze import train.log --model resnet50 --batch-size 256
  analyze import ncu.csv --model resnet50 --batch-size 64 --precision fp32 --profile-steps 4
"""


def import_files(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="logs of training runs, traces of torch.profiler, output of ncu or nsys"
        ),
    ],
    model: Annotated[
        str | None, option("--model", "the model, if the file does not name it", Group.MODEL, metavar="M")
    ] = None,
    batch_size: Annotated[
        int | None, option("--batch-size", "images per step, if the file does not give it", Group.MODEL, metavar="N")
    ] = None,
    precision: Annotated[
        str | None, option("--precision", "precision of the run, if known", Group.MODEL, metavar="fp32|tf32|amp|bf16")
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", 'the device, for example "Tesla T4"', Group.PLACE, metavar="NAME")
    ] = None,
    profile_steps: Annotated[
        int | None, option("--profile-steps", "training steps in a profile, if known", Group.MEASURING, metavar="N")
    ] = None,
    driver: Annotated[
        str | None, option("--driver", "version of the GPU's driver, if known", Group.PLACE, metavar="V")
    ] = None,
    torch: Annotated[str | None, option("--torch", "version of PyTorch, if known", Group.PLACE, metavar="V")] = None,
    dataset: Annotated[
        str | None, option("--dataset", "the data set, for example cifar10", Group.MODEL, metavar="NAME")
    ] = None,
    image_size: Annotated[
        int | None,
        option("--image-size", "width and height of its images in pixels, if known", Group.MODEL, metavar="N"),
    ] = None,
    gpu_index: Annotated[
        int | None, option("--gpu-index", "which GPU of a trace with several", Group.PLACE, metavar="N")
    ] = None,
    peaks: PeaksOption = None,
    output: OutputOption = Path("results"),
) -> int:
    """Make bundles of other people's logs and profiles; prints the folder of each, and what was left out of it."""
    from analysis.importing import UserFacts

    use_peaks(peaks)
    user = UserFacts(
        model=model,
        batch_size=batch_size,
        precision=precision,
        gpu=gpu,
        profile_steps=profile_steps,
        driver=driver,
        torch=torch,
        dataset=dataset,
        image_size=image_size,
        device=gpu_index,
    )
    refused, present = list[tuple[Path, RooflaunchError]](), list[NothingToDoError]()
    for file in files:
        try:
            _import(file, user, output)
        except NothingToDoError as error:
            present.append(error)
        except RooflaunchError as error:
            if len(files) == 1:
                raise
            refused.append((file, error))
            print(error.report(), file=sys.stderr, flush=True)
    # Files that were imported before are listed; they are an error only if every file was imported before.
    if len(present) == len(files):
        raise present[0]
    for known in present:
        print(f"note       {printable(str(known))}", file=sys.stderr)
    if refused:
        names = ", ".join(printable(str(file)) for file, _ in refused)
        print(f"left out   {len(refused)} of {counted(len(files), 'file')}: {names}", file=sys.stderr)
        return refused[0][1].exit_code
    return ExitCode.DONE


def _import(file: Path, user: "UserFacts", output: Path) -> None:
    from analysis.importing import import_file

    folders = import_file(file, user, output=output)
    for folder in folders:
        print(printable(str(folder)), flush=True)
    for note in _notes(folders):
        print(f"note       {printable(str(file))}: {printable(note)}", file=sys.stderr, flush=True)


def _notes(folders: Sequence[Path]) -> list[str]:
    """Sentences on omissions and decisions in the bundles of one file.

    If the file has several runs, each sentence ends with the number of runs to which it applies.
    """
    from workload.contract import bundle

    notes: dict[str, int] = {}
    for folder in folders:
        record = bundle.read_record(folder)
        ignored = record.imported.ignored if record.imported else None
        columns = [f"columns that are not read: {', '.join(ignored)}"] if ignored else []
        for note in [*(record.notes or ()), *columns]:
            notes[note] = notes.get(note, 0) + 1
    return [note if len(folders) == 1 else f"{note} ({counted(count, 'run')})" for note, count in notes.items()]

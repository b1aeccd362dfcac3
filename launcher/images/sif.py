"""`launch build --sif`: a built image as one file for Apptainer, which clusters use instead of Docker."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from workload.contract.errors import ToolError, UsageError

SUFFIX = ".sif"


def require_tool(path: Path) -> str:
    """Path of Apptainer's program, called singularity in older versions; checked before a build takes minutes.

    Raises `UsageError` for a file that would not be a `.sif` or has no folder, `ToolError` without the program.
    """
    if path.suffix != SUFFIX:
        raise UsageError(f"--sif makes a file whose name ends in {SUFFIX}; got '{path}'", hint="--sif rooflaunch.sif")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--sif: there is no folder '{path.parent}'", hint="make it, or name another folder")
    tool = shutil.which("apptainer") or shutil.which("singularity")
    if tool is None:
        raise ToolError(
            "apptainer, which makes a .sif file of the image, is not installed",
            hint="install Apptainer here; or push the image (--push), so that the cluster's Apptainer can pull it",
        )
    return tool


def write(tool: str, tag: str, path: Path) -> None:
    """Write the engine's image to a file, replacing an existing one. Raises `ToolError` if that fails."""
    command = [tool, "build", "--force", str(path), f"docker-daemon:{tag}"]
    print(shlex.join(command), file=sys.stderr)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ToolError(f"apptainer ended with exit code {done.returncode}", hint="its messages above give the reason")

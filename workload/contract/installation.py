"""Facts of this installation: a checkout of the repository, or a wheel with the commit that it was built from.

Standard library only.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from workload.contract.errors import UsageError
from workload.contract.invocation import ROOT, document

# Written into wheels and sdists by hatch_build.py; a checkout has none.
COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"


def packaged_commit() -> str:
    """Commit from which an installed wheel was built, with `-dirty` if files had changed; empty if unknown."""
    try:
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def from_checkout(module: str, command: str) -> Any:
    """Import `module`, which only a checkout of the repository has.

    Raises `UsageError` in an installed package; `command`: name of the command that needs `module`, for the message.
    """
    folder = ROOT.joinpath(*module.split(".")[:-1])
    if not folder.is_dir():
        page = document("docs/gpu-truth.md")
        raise UsageError(
            f"there is no '{folder}': {command} is part of the repository, not of the installed package",
            hint=f"run {command} from a checkout{f': {page}' if page else ''}",
        )
    return import_module(module)

"""Modules that only the repository has, in folders beside its packages. Standard library only."""

from importlib import import_module
from typing import Any

from workload.contract.errors import UsageError
from workload.contract.invocation import ROOT, document


def from_checkout(module: str, command: str) -> Any:
    """Import `module` of a folder beside the packages; `command` needs it.

    Raises `UsageError` in an installed package, which does not contain that folder.
    """
    folder = ROOT.joinpath(*module.split(".")[:-1])
    if not folder.is_dir():
        page = document("docs/gpu-truth.md")
        raise UsageError(
            f"there is no '{folder}': {command} is part of the repository, not of the installed package",
            hint=f"run {command} from a checkout{f': {page}' if page else ''}",
        )
    return import_module(module)

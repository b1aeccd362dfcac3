"""`analyze` and the import of a file in the process of a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.importing import UserFacts, import_file
from tests.analysis.readers.ncu.ncu_files import save
from workload.contract import bundle
from workload.contract.record import Record

# The fixture `analyze` takes the words of a command line, and returns exit code, stdout and stderr.
Analyze = Callable[..., tuple[int, str, str]]


def imported(folder: Path, content: str | bytes, name: str = "file.txt", **facts: Any) -> Record:
    """Import a file with this content into `folder`/results; returns the record of its only bundle."""
    (made,) = import_file(save(folder, content, name), UserFacts(**facts), output=folder / "results")
    return bundle.read_record(made)

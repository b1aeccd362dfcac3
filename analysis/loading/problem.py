"""Record of data that is missing from the tables."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A folder or file that is missing from the tables, in full or in part, and the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

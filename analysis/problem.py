"""What is not in the tables."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A folder or a file that is not in the tables, or not all of it, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

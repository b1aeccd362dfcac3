"""One line of `launch doctor`: what was looked at, and how that stands."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Health(StrEnum):
    """`note`: nothing to repair, and worth knowing."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, what was found, and what to do about it. `part`: `docker`, `gpu`, or a backend's name."""

    part: str
    name: str
    state: Health
    found: str
    cure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)


@dataclass(frozen=True)
class CheckPart:
    """Makes the checks of one part."""

    name: str

    def ok(self, name: str, found: str) -> Check:
        """All is well."""
        return Check(part=self.name, name=name, state=Health.OK, found=found)

    def note(self, name: str, found: str, cure: str = "") -> Check:
        """Nothing to repair, and worth knowing."""
        return Check(part=self.name, name=name, state=Health.NOTE, found=found, cure=cure)

    def problem(self, name: str, found: str, cure: str) -> Check:
        """What keeps runs from going well."""
        return Check(part=self.name, name=name, state=Health.PROBLEM, found=found, cure=cure)

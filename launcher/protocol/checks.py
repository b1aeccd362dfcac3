"""Results of `launch doctor`: each check is a line with the name of what was checked, and the result."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workload.contract.errors import RooflaunchError


class Health(StrEnum):
    """Result of a check. `note`: worth knowing, but nothing to repair."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of a check: its name, what was found, and the cure. `part`: `docker`, `gpu`, or a backend's name."""

    part: str
    name: str
    state: Health
    found: str
    cure: str = ""


@dataclass(frozen=True)
class CheckPart:
    """Makes the checks of `launch doctor` for one part; `name`: the part, such as `docker`."""

    name: str

    def ok(self, name: str, found: str) -> Check:
        """Check without a problem."""
        return Check(part=self.name, name=name, state=Health.OK, found=found)

    def note(self, name: str, found: str, cure: str = "") -> Check:
        """Check whose result is worth knowing, with nothing to repair."""
        return Check(part=self.name, name=name, state=Health.NOTE, found=found, cure=cure)

    def problem(self, name: str, found: str, cure: str) -> Check:
        """Check that found a problem that affects runs."""
        return Check(part=self.name, name=name, state=Health.PROBLEM, found=found, cure=cure)

    def looked(self, name: str, look: Callable[[], str]) -> Check:
        """Check with the text that `look` returns; a problem if `look` raises an error."""
        try:
            return self.ok(name, look())
        except RooflaunchError as error:
            return self.failed(name, error)

    def failed(self, name: str, error: RooflaunchError) -> Check:
        """Check that an error prevented, with the error's hint as the cure."""
        return self.problem(name, str(error), error.hint)

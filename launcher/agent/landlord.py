"""Who lets us the machine: what nobody else can tell of it, and who takes it away.

A cloud's own stands in its backend (`launcher/backends/<name>/guest.py`) and travels with the launch as `landlord.py`
in the launch's folder, never in the image: a new backend changes no image. Without that file nobody lets the machine
to us: it is one that somebody can log in to.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from launcher.jobs.records import Request
from workload.contract.errors import ToolError

FILE = "landlord.py"
REQUEST = "request.json"


class Landlord(Protocol):
    """What a cloud tells one of its machines. Times and facts are None or absent where it does not answer."""

    @property
    def zone(self) -> str:
        """`us-central1-a`, or empty where machines have no zones. Raises `ToolError` where nobody answers."""

    def request(self) -> bytes:
        """What the launch was asked to do, as the launcher wrote it. Raises `ToolError` where it cannot be had."""

    def created_s(self) -> float | None:
        """When the machine was asked for, in seconds since 1970: from then on it costs."""

    def deleted_s(self) -> float | None:
        """When the machine is deleted at the latest, in seconds since 1970."""

    def is_preempted(self) -> bool:
        """Whether the machine is being taken away."""

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """Wait until the machine is taken away; False once `is_over`, which waits for so many seconds, says so."""

    def comes_back(self) -> bool:
        """Whether the place starts the launch again by itself on another machine after it took this one away."""

    def report(self, name: str, value: str) -> None:
        """Leave a word, such as the phase that begins, where the cloud shows it. Raises `ToolError` where it cannot."""

    def facts(self, request: Request) -> Mapping[str, Any]:
        """For the record, beside what the machine's own metadata server tells any program."""


@dataclass(frozen=True, kw_only=True)
class NoLandlord:
    """A machine of one's own: it costs nothing, nobody takes it away, and its request lies in the launch's folder."""

    home: Path
    zone: str = ""

    def request(self) -> bytes:
        """As it was copied there."""
        try:
            return (self.home / REQUEST).read_bytes()
        except OSError as error:
            raise ToolError(f"no request in '{self.home}': {error.strerror}", hint="launch again") from error

    def created_s(self) -> None:
        """It was there before."""

    def deleted_s(self) -> None:
        """It stays."""

    def is_preempted(self) -> bool:
        """Never."""
        return False

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """Not worth a wait."""
        del is_over
        return False

    def comes_back(self) -> bool:
        """Nobody takes it away."""
        return False

    def report(self, name: str, value: str) -> None:
        """There is nobody to tell: the heartbeat in the store says it."""

    def facts(self, request: Request) -> Mapping[str, Any]:
        """Nothing that the machine does not show."""
        del request
        return {}


def landlord_of(home: Path) -> Landlord:
    """The landlord of the launch in that folder: what its `landlord.py` says, if it has one."""
    if not (path := home / FILE).exists():
        return NoLandlord(home=home)
    described = importlib.util.spec_from_file_location("landlord", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return cast("Landlord", module.this_machine())

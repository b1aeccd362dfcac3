"""Facts about this machine that only its provider can tell: its creation, its end, and whether it is taken away.

Each provider's answers come from its backend (`launcher/backends/<name>/guest.py`). That file travels with the launch,
as `landlord.py` in the launch's folder, never in the image, so that a new backend needs no new image. A machine without
that file belongs to somebody who can log in to it.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from launcher.protocol.records import Request
from workload.contract.errors import ToolError

# Images of earlier versions look for this name.
FILE = "landlord.py"
REQUEST = "request.json"


class HostFacts(Protocol):
    """Interface to the provider's facts about this machine.

    Times are None, and facts absent, if the provider does not answer.
    """

    @property
    def zone(self) -> str:
        """Zone, such as `us-central1-a`; empty if machines have no zones. Raises `ToolError` without an answer."""

    def request(self) -> bytes:
        """Content of the launch's request, as the launcher wrote it. Raises `ToolError` if it cannot be read."""

    def created_s(self) -> float | None:
        """Time when the machine was requested, in seconds since 1970: its costs begin then."""

    def deleted_s(self) -> float | None:
        """Latest time when the machine is deleted, in seconds since 1970."""

    def is_preempted(self) -> bool:
        """Whether the machine is being taken away."""

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """Wait until the machine is taken away; False once `is_over` is True, which waits for a number of seconds."""

    def comes_back(self) -> bool:
        """Whether the place itself starts the launch again on another machine after it took this one away."""

    def report(self, name: str, value: str) -> None:
        """Publish a value, such as the current phase, at the provider. Raises `ToolError` if that fails."""

    def facts(self, request: Request) -> Mapping[str, Any]:
        """Facts for the record that the machine's own metadata server does not give to every program."""


@dataclass(frozen=True, kw_only=True)
class OwnMachine:
    """Machine of the user's own: costs nothing, is never taken away, and has its request in the launch's folder."""

    home: Path
    zone: str = ""

    def request(self) -> bytes:
        """Content of request.json in the launch's folder. Raises `ToolError` if it cannot be read."""
        try:
            return (self.home / REQUEST).read_bytes()
        except OSError as error:
            raise ToolError(f"no request in '{self.home}': {error.strerror}", hint="launch again") from error

    def created_s(self) -> None:
        """None: this machine was not created by us."""

    def deleted_s(self) -> None:
        """None: this machine is not deleted by us."""

    def is_preempted(self) -> bool:
        """False: nobody takes this machine away."""
        return False

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        """False at once: nobody takes this machine away."""
        del is_over
        return False

    def comes_back(self) -> bool:
        """False: nobody takes this machine away."""
        return False

    def report(self, name: str, value: str) -> None:
        """Do nothing: the heartbeat in the store has the phase."""

    def facts(self, request: Request) -> Mapping[str, Any]:
        """No facts beyond those that the machine itself shows."""
        del request
        return {}


def host_facts_of(home: Path) -> HostFacts:
    """Facts for the launch in that folder, by its `landlord.py` if there is one."""
    if not (path := home / FILE).exists():
        return OwnMachine(home=home)
    described = importlib.util.spec_from_file_location("host", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return cast("HostFacts", module.this_machine())

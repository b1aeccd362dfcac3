"""Facts about this machine that only its provider can tell: creation, deletion, and whether it is taken away.

Each provider's answers come from its backend (`launcher/backends/<name>/guest.py`). That file travels with the launch,
as `guest.py` in the launch's folder, never in the image, so that a new backend needs no new image. A machine without
that file belongs to the user.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from launcher.protocol.records import Request
from workload.contract.errors import ToolError

FILE = "guest.py"
REQUEST = "request.json"


class HostFacts(Protocol):
    """Interface to the provider's facts about this machine.

    Times are None, and facts absent, if the provider does not answer. The defaults are those of a machine that nobody
    creates, deletes or takes away for the launch.
    """

    @property
    def zone(self) -> str:
        """Zone, such as `us-central1-a`; empty if machines have no zones. Raises `ToolError` without an answer."""
        return ""

    def request(self) -> bytes:
        """Content of the launch's request, as the launcher wrote it. Raises `ToolError` if it cannot be read."""

    def created_s(self) -> float | None:
        """Time when the machine was requested, in seconds since 1970: its costs begin then."""
        return None

    def deleted_s(self) -> float | None:
        """Latest time when the machine is deleted, in seconds since 1970."""
        return None

    def is_preempted(self) -> bool:
        """Whether the machine is being taken away."""
        return False

    def await_preemption(self, wait: Callable[[float], bool]) -> bool:
        """Wait until the machine is taken away, and return True; False if the waiting was ended before.

        `wait`: waits this many seconds, and returns whether the run is over.
        """
        del wait
        return False

    def comes_back(self) -> bool:
        """Whether the place starts the launch again by itself, on another machine, after a preemption of this one."""
        return False

    def report(self, name: str, value: str) -> None:
        """Publish a value, such as the current phase, at the provider. Raises `ToolError` if that fails."""
        del name, value  # by default not published: the heartbeat in the store has the phase

    def facts(self, request: Request) -> Mapping[str, Any]:
        """Facts that replace or extend the section `cloud` of the run's record; {} if there are none."""
        del request
        return {}


class OwnMachine(HostFacts):
    """Machine of the user's own: costs nothing, is never taken away, and has its request in the launch's folder."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def request(self) -> bytes:
        """Content of request.json in the launch's folder. Raises `ToolError` if it cannot be read."""
        try:
            return (self._home / REQUEST).read_bytes()
        except OSError as error:
            raise ToolError(f"no request in '{self._home}': {error.strerror}", hint="launch again") from error


def host_facts_of(home: Path) -> HostFacts:
    """Facts for the launch in the folder `home`: from its `guest.py`, else those of an `OwnMachine`."""
    if not (path := home / FILE).exists():
        return OwnMachine(home)
    described = importlib.util.spec_from_file_location("host", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return cast("HostFacts", module.this_machine())

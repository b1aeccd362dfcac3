"""Folder of a launch on its machine, with a record of the work so far for a second start; and facts about the machine.

Creation, deletion, and whether the machine is taken away are known to its provider alone. Each provider's answers come
from its backend (`launcher/backends/<name>/guest.py`). That file travels with the launch, as `guest.py` in the launch's
folder, never in the image, so that a new backend needs no new image. A machine without that file belongs to the user.
"""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

from launcher.protocol import records
from launcher.protocol.records import LaunchPhase, Request
from workload.contract import bundle
from workload.contract.errors import RooflaunchError, ToolError
from workload.storage.address import open_store

# Space reserved before the work for the record of its end, because a run may fill the disk.
RESERVED_BYTES = 4096
# File that tells an agent to only upload what a broken-off job left (launcher/backends/ssh).
SAVING = "saving"
# Files: phases that the start-up script recorded, and those that the agent recorded, one per line; marker that the work
# was begun; how the work ended; ids of the bundles that are complete in the store.
BOOT_PHASES, OWN_PHASES, STARTED, ENDED, UPLOADED = "phases", "phases-of-the-run", "started", "ended.json", "uploaded"
# A backend's guest.py imports `epoch_s` from this module.
epoch_s = records.epoch_s


@dataclass(frozen=True, kw_only=True)
class WorkEnd:
    """End of the work, as exit code, error and hint; `error` is empty if every run came to its end.

    `timed_out`: a run was not started because there was not enough time left for it.
    """

    exit_code: int
    error: str = ""
    hint: str = ""
    timed_out: bool = False

    @classmethod
    def of_error(cls, error: RooflaunchError) -> "WorkEnd":
        """End of the work with the exit code, text and hint of `error`."""
        return cls(exit_code=error.exit_code, error=str(error), hint=error.hint)


@dataclass(frozen=True, kw_only=True)
class Home:
    """Folder of one launch on its machine."""

    path: Path

    @property
    def output(self) -> Path:
        """Folder of the bundles."""
        return self.path / "results"

    @property
    def data(self) -> Path:
        """Folder for downloaded data sets."""
        return self.path / "data"

    def bundles(self) -> list[Path]:
        """Folder of each run that was begun, oldest first."""
        return sorted(path.parent for path in self.output.glob(f"*/{bundle.RECORD}"))

    def note_phase(self, phase: LaunchPhase, at: str) -> None:
        """Record when a phase began. A full disk is ignored: no run ends because of a missing time stamp."""
        with suppress(ToolError):
            _append(self.path / OWN_PHASES, f"{phase} {at}")

    def phases(self) -> Mapping[str, str]:
        """Times by phase so far, beginning with the boot. After a restart, the first time of each phase counts."""
        phases: dict[str, str] = {}
        for line in (*_lines(self.path / BOOT_PHASES), *_lines(self.path / OWN_PHASES)):
            phase, _, at = line.partition(" ")
            if epoch_s(at) is not None:  # a line that was cut off has no valid time
                phases.setdefault(phase, at)
        return phases

    def note_uploaded(self, run_id: str) -> None:
        """Record that a bundle is complete in the store."""
        _append(self.path / UPLOADED, run_id)

    def uploaded(self) -> list[str]:
        """Ids of the runs whose bundles are complete in the store."""
        return _lines(self.path / UPLOADED)

    def has_begun(self) -> bool:
        """Whether the work was begun on this machine before."""
        return (self.path / STARTED).exists()

    def only_saves(self) -> bool:
        """Whether this start only uploads what earlier starts left, and measures nothing."""
        return (self.path / SAVING).exists()

    def note_begun(self) -> None:
        """Record that the work was begun. The record is synced to disk, to survive a failure of the host."""
        with full_disk_reported(self.path):
            (self.path / ENDED).write_bytes(b" " * RESERVED_BYTES)
        started = self.path / STARTED
        started.touch()
        for path in (started, self.path):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)

    def note_ended(self, ended: WorkEnd) -> WorkEnd:
        """Record how the work ended, in its reserved space, and return `ended`. Raises `ToolError` on a full disk."""
        path = self.path / ENDED
        with full_disk_reported(path), path.open("r+b" if path.exists() else "wb") as file:
            file.write(json.dumps(asdict(ended)).encode().ljust(RESERVED_BYTES))
        return ended

    def ended(self) -> WorkEnd | None:
        """How the work ended; None if the work was broken off."""
        text = "".join(_lines(self.path / ENDED)).strip()
        return WorkEnd(**json.loads(text)) if text else None


def iso(at_s: float) -> str:
    """Format seconds since 1970 as the start-up script does: `2026-11-21T10:00:00.000Z`."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _append(path: Path, line: str) -> None:
    with full_disk_reported(path), path.open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


@contextmanager
def full_disk_reported(path: Path) -> Iterator[None]:
    """Turn an `OSError` of writing into a `ToolError` with a hint."""
    try:
        yield
    except OSError as error:
        raise ToolError(
            f"{error.strerror} while writing '{path}'", hint="free some space there (df -h; quota -s)"
        ) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


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


def request_in(store: str, launch: str) -> bytes:
    """The launch's request from the store, where the launcher wrote it first. A backend's guest.py calls it."""
    name = records.request_object(launch)
    content = open_store(store, probe=f"{name.rpartition('/')[0]}/").read(name)
    if content is None:
        raise ToolError(f"{store} has no {name}", hint="launch again")
    return content


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

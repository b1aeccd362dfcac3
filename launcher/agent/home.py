"""The folder of a launch on its machine: what was begun there, and what a second start finds of the first."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.jobs.records import LaunchPhase
from workload.contract import bundle
from workload.contract.errors import RooflaunchError, ToolError

# Space that a launch takes for how it ends before it begins: a full disk has none for it afterwards.
RESERVED_BYTES = 4096
# Marks a job that was broken off and whose agent is started once more, to store what it left (launcher/backends/ssh).
SAVING = "saving"
# Phases as the start-up script and as the agent came to them, a line each; that a run was begun; how it ended; the runs
# that are whole in the store.
BOOT_PHASES, OWN_PHASES, STARTED, ENDED, UPLOADED = "phases", "phases-of-the-run", "started", "ended.json", "uploaded"


@dataclass(frozen=True, kw_only=True)
class WorkEnd:
    """How the work ended, as an error of ours says it; `error` is empty where every run came to its end.

    `timed_out`: a run was not started because it would not have come to its end in time.
    """

    exit_code: int
    error: str = ""
    hint: str = ""
    timed_out: bool = False

    @classmethod
    def by(cls, error: RooflaunchError) -> "WorkEnd":
        """Ended by an error that was raised here."""
        return cls(exit_code=error.exit_code, error=str(error), hint=error.hint)


@dataclass(frozen=True, kw_only=True)
class Home:
    """One launch's folder."""

    path: Path

    @property
    def output(self) -> Path:
        """Where the bundles are written."""
        return self.path / "results"

    @property
    def data(self) -> Path:
        """Where data sets are downloaded to."""
        return self.path / "data"

    def bundles(self) -> list[Path]:
        """The folder of each run that was begun, oldest first."""
        return sorted(path.parent for path in self.output.glob(f"*/{bundle.RECORD}"))

    def note_phase(self, phase: LaunchPhase, at: str) -> None:
        """Keep when a phase began, unless the disk is full: no run ends for want of a time stamp."""
        with suppress(ToolError):
            _append(self.path / OWN_PHASES, f"{phase} {at}")

    def phases(self) -> Mapping[str, str]:
        """Times by phase so far, those of the boot first; of a machine that was started again the first time counts."""
        phases: dict[str, str] = {}
        for line in (*_lines(self.path / BOOT_PHASES), *_lines(self.path / OWN_PHASES)):
            phase, _, at = line.partition(" ")
            if epoch_s(at) is not None:  # a line may be cut off, and a record with half a time is none
                phases.setdefault(phase, at)
        return phases

    def note_uploaded(self, run_id: str) -> None:
        """Keep that a run is whole in the store."""
        _append(self.path / UPLOADED, run_id)

    def uploaded(self) -> list[str]:
        """The runs that are whole in the store."""
        return _lines(self.path / UPLOADED)

    def has_begun(self) -> bool:
        """Whether the work was begun here before."""
        return (self.path / STARTED).exists()

    def only_saves(self) -> bool:
        """Whether this start stores what earlier ones have left, and measures nothing."""
        return (self.path / SAVING).exists()

    def note_begun(self) -> None:
        """Keep that the work was begun, also over a host error, which is the end of power."""
        with full_disk_told(self.path):
            (self.path / ENDED).write_bytes(b" " * RESERVED_BYTES)
        started = self.path / STARTED
        started.touch()
        for path in (started, self.path):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)

    def note_ended(self, ended: WorkEnd) -> None:
        """Keep how the work ended, in the space that was reserved. Raises `ToolError` where there is none."""
        path = self.path / ENDED
        with full_disk_told(path), path.open("r+b" if path.exists() else "wb") as file:
            file.write(json.dumps(asdict(ended)).encode().ljust(RESERVED_BYTES))

    def ended(self) -> WorkEnd | None:
        """How the work ended; None where it was broken off."""
        text = "".join(_lines(self.path / ENDED)).strip()
        return WorkEnd(**json.loads(text)) if text else None


def iso(at_s: float) -> str:
    """`2026-11-21T10:00:00.000Z`, as the start-up script writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_s(text: str | None) -> float | None:
    """The inverse; None for what is no time."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _append(path: Path, line: str) -> None:
    with full_disk_told(path), path.open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


@contextmanager
def full_disk_told(path: Path) -> Iterator[None]:
    """Raise `ToolError` in place of what the system says of a file that cannot be written."""
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

"""Output of a launch's machine while the machine exists, then the log that it left in the store. Reads only."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.jobs import launches
from launcher.jobs.launches import LaunchState
from launcher.jobs.session import Session
from launcher.protocol.backend import Condition, Machine
from launcher.protocol.records import log_object
from workload.contract.errors import NothingToDoError
from workload.storage.store import MAX_TEXT_BYTES

EVERY_S = 5.0
# Largest number of parts of a machine's output that are read at once; a serial port keeps 1 MB.
MAX_PARTS = 64
# Polls without new output after which to ask whether the machine still exists.
QUIET_POLLS = 3


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some lines of output. `source`: `serial port` of an existing machine, or `startup.log`."""

    source: str
    text: str


def read(session: Session, name: str, *, follow: bool) -> Iterator[Piece]:
    """Output so far; with `follow`, also further output until the machine is gone.

    Raises `NothingToDoError` if there is no output.
    """
    launch = launches.launch_named(session, name)
    while follow and launch.state is LaunchState.REQUESTED:
        session.sleep(EVERY_S)
        launch = launches.launch_named(session, name)
    machine, last_line = launch.seen.machine, ""
    if machine is not None:
        for part in printed(session, machine, follow=follow):
            text = clean(part)
            last_line = next((line for line in reversed(text.splitlines()) if line.strip()), last_line)
            yield Piece(source="serial port", text=text)
        if not follow:
            return
    log = session.store.read(log_object(name), most_bytes=MAX_TEXT_BYTES)
    if log is None and not last_line:
        reason = f": {launch.why}" if launch.why else ""
        raise NothingToDoError(f"'{name}' left no log; it is {launch.state}{reason}", hint=f"launch status {name}")
    if text := _after(clean((log or b"").decode(errors="replace")), last_line):
        yield Piece(source="startup.log", text=text)


def clean(text: str) -> str:
    """`text` without characters that control a terminal, because others wrote the log. Lines and tabs are kept."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def printed(session: Session, machine: Machine, *, follow: bool = False) -> Iterator[str]:
    """Output of a machine as it printed it, part by part; with `follow` until the machine is gone."""
    start = quiet_polls = 0
    for number in itertools.count(1):
        part = session.machines.output(machine, start)
        if part.text:
            yield part.text
        if not follow and (not part.text or part.next_start <= start or number == MAX_PARTS):
            return
        start, quiet_polls = max(start, part.next_start), 0 if part.text else quiet_polls + 1
        if follow:
            seen = session.machines.look({machine.name: (machine.zone,)}) if quiet_polls >= QUIET_POLLS else ()
            if any(each.condition is Condition.GONE for each in seen):
                return
            session.sleep(EVERY_S)


def _after(log: str, last: str) -> str:
    """Part of the log after the last line that was shown. The serial port puts a prefix in front of each line."""
    if not last:
        return log
    lines = log.splitlines(keepends=True)
    known = [index for index, line in enumerate(lines) if line.strip() and last.rstrip().endswith(line.strip())]
    return "".join(lines[known[-1] + 1 :]) if known else ""

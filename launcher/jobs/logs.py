"""What a launch's VM said: its serial port while it is there, then the log that it left in the bucket. Reads only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.backends.gcp.compute import Compute
from launcher.jobs import launches
from launcher.jobs.follow import MAX_SERIAL_PARTS
from launcher.jobs.launches import State
from launcher.jobs.records import log_object
from workload.contract.errors import NothingToDoError
from workload.storage.store import MAX_TEXT_BYTES, Store

EVERY_S = 5.0
# A VM with nothing new to say is asked for less often than its serial port.
QUIET_LOOKS = 3


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some lines; `source`: `serial port` or `startup.log`."""

    source: str
    text: str


def read(
    compute: Compute,
    bucket: Store,
    name: str,
    *,
    follow: bool,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Piece]:
    """What there is, and with `follow` what comes, until the VM is gone. `NothingToDoError` where there is nothing."""
    launch = launches.one_launch(compute, bucket, name, now_s=now())
    while follow and launch.state is State.REQUESTED:
        sleep(EVERY_S)
        launch = launches.one_launch(compute, bucket, name, now_s=now())
    instance, last = launch.seen.instance, ""
    if instance is not None:
        for text in _serial(compute, instance.zone, name, follow=follow, sleep=sleep):
            last = _last_line(text) or last
            yield Piece(source="serial port", text=text)
        if not follow:
            return
    log = bucket.read(log_object(name), most_bytes=MAX_TEXT_BYTES)
    if log is None and not last:
        said = f": {launch.why}" if launch.why else ""
        raise NothingToDoError(f"'{name}' left no log; it is {launch.state}{said}", hint=f"launch status {name}")
    if text := _after(clean((log or b"").decode(errors="replace")), last):
        yield Piece(source="startup.log", text=text)


def clean(text: str) -> str:
    """`text` with its lines and tabs, and without what a terminal would obey: the log was written by others."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def _serial(compute: Compute, zone: str, name: str, *, follow: bool, sleep: Callable[[float], None]) -> Iterator[str]:
    start = quiet = 0
    for _ in range(MAX_SERIAL_PARTS) if not follow else iter(int, 1):
        part = compute.serial(zone, name, start)
        start, quiet = max(start, part.next_start), 0 if part.text else quiet + 1
        if part.text:
            yield clean(part.text)
        elif not follow:
            return
        if follow:
            if quiet >= QUIET_LOOKS and compute.get(zone, name) is None:
                return
            sleep(EVERY_S)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _after(log: str, last: str) -> str:
    """What the log has after the last line that was shown; the serial port puts its own words in front of each."""
    if not last:
        return log
    lines = log.splitlines(keepends=True)
    known = [index for index, line in enumerate(lines) if line.strip() and last.rstrip().endswith(line.strip())]
    return "".join(lines[known[-1] + 1 :]) if known else ""

"""Values and declarations of options: closed sets, memory sizes, durations, shares, and fields that are options.

Imports little, because `launch --help` and rented machines load this module.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workload.contract.errors import UsageError

# Commands whose runs start on this machine.
HERE_COMMANDS = ("local", "duel", "tune")
# Flavour of the image for runs without a GPU.
CPU_FLAVOUR = "cpu"


class Runtime(StrEnum):
    """Where a run executes. `auto`: in a container if an engine has the image for this code, else in a process."""

    AUTO = "auto"
    PROCESS = "process"
    DOCKER = "docker"


class DoctorPart(StrEnum):
    """Parts that `launch doctor` can examine on this machine, besides the backends."""

    DOCKER = "docker"
    GPU = "gpu"


# Parts that are examined if none is named: none of them needs the network.
HERE = tuple(map(str, DoctorPart))


# Docker's units are binary, whatever the letters suggest: docs.docker.com/engine/containers/resource_constraints.
UNIT_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
# DataLoader workers hand over batches in /dev/shm; Docker's 64 MB are too few for one batch of 128 images.
DEFAULT_SHM_BYTES = 2 * UNIT_BYTES["g"]
# Shortest time limit: within less time no run has even started. Longest: the limit of Compute Engine,
# https://cloud.google.com/compute/docs/instances/limit-vm-runtime
MIN_LIMIT_S, MAX_LIMIT_S = 30, 120 * 24 * 3600
# Days, hours, minutes, seconds.
UNITS_S = (86400, 3600, 60, 1)
# Maximum length of a user's text in a message.
SHOWN_WIDTH = 80


def parse_bytes(text: str, *, flag: str, example: str) -> int:
    """Bytes of `512m`, `2g` or a plain number. Raises `UsageError` for other text."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([bkmg]?)b?", text.strip().lower())
    size = round(float(match[1]) * UNIT_BYTES[match[2] or "b"]) if match else 0
    if size <= 0:
        raise UsageError(f"{flag} must be a size such as {example}; got '{text}'", hint=f"{flag} {example}")
    return size


def text(size: int) -> str:
    """Size in its largest whole unit: `2g`, `512m`."""
    unit = next(unit for unit, factor in reversed(UNIT_BYTES.items()) if size % factor == 0)
    return f"{size // UNIT_BYTES[unit]}{unit}"


def parse_duration_s(text: str, flag: str) -> int:
    """Seconds of `60m`, `1h30m` or `90s`. Raises `UsageError` for other text, and outside 30 s to 120 d."""
    parts = re.fullmatch(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8})s)?", text)
    counts = parts.groups(default="0") if parts else ()
    seconds = sum(int(count) * unit_s for count, unit_s in zip(counts, UNITS_S, strict=bool(parts)))
    if not MIN_LIMIT_S <= seconds <= MAX_LIMIT_S:
        raise UsageError(
            f"{flag} must be a duration such as 60m or 1h30m, from 30 s to 120 d; got '{shown(text)}'",
            hint=f"{flag} 60m",
        )
    return seconds


def limit_s(text: str) -> int:
    """Parse the value of `--max-run-time` into seconds."""
    return parse_duration_s(text, "--max-run-time")


def parse_share(text: str, flag: str, *, example: str, least: float = 0.0001, most: float = 0.9999) -> float:
    """Share from `1%` or `0.01`. Raises `UsageError` for other text, and outside `least` to `most`."""
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not least <= share <= most:
        limits = f"from {100 * least:g} % to {100 * most:g} %"
        raise UsageError(
            f"{flag} must be a share such as {example}, {limits}; got '{shown(text)}'", hint=f"{flag} {example}"
        )
    return share


def positive_usd(usd: float | None, flag: str) -> float | None:
    """Check the value of `flag`, in USD. Raises `UsageError` unless the sum is positive and finite."""
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise UsageError(f"{flag} must be a positive sum in USD; got '{usd:g}'", hint=f"{flag} 1.50")
    return usd


def shown(value: str) -> str:
    """A user's text for quoting in a message: one line, of limited length."""
    line = value.encode("unicode_escape").decode()
    return line if len(line) <= SHOWN_WIDTH else f"{line[: SHOWN_WIDTH - 3]}..."


_REQUIRED: Any = object()


@dataclass(frozen=True, kw_only=True)
class Command:
    """Description of `launch <backend>`. `noun`: word for the backend's machines; `sent_to`: the receiver of a request.

    `first`: fields of the options that are used most.
    `one_machine`: the options name one machine, while other backends' options name a kind of machine, of which there
    may be several. `is_fresh`: machines are created for the launch, so they have no folder of the user, and they get
    their image from a registry. `several_machines`: one run may have several of them.
    """

    help: str
    examples: str
    noun: str
    sent_to: str
    first: tuple[str, ...] = ()
    one_machine: bool = False
    is_fresh: bool = False
    several_machines: bool = False


def choice(
    text: str,
    *,
    default: Any = _REQUIRED,
    flag: str = "",
    parse: Callable[[str], Any] | None = None,
    typed_default: str | None = None,
    is_repeatable: bool = False,
    **shown: Any,
) -> Any:
    """Dataclass field that is an option, with its help text; required if it has no default.

    `flag`: name of the option, by default made from the field's name. `parse`: makes the value from the typed text, or
    from `typed_default` if the option is absent. `is_repeatable`: one value, of which a command may take several.
    `shown`: further arguments of `typer.Option`.
    """
    metadata: dict[str, Any] = {"help": text, "flag": flag, "parse": parse, "typed_default": typed_default}
    metadata |= {"is_repeatable": is_repeatable, "shown": shown}
    return field(metadata=metadata) if default is _REQUIRED else field(default=default, metadata=metadata)


def flag_of(item: Any) -> str:
    """Option that belongs to a field, as `--max-cost`."""
    return item.metadata["flag"] or "--" + str(item.name).replace("_", "-")

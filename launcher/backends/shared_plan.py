"""Parts of plans that several backends share: rows about the runs, the user's own price, the texts of programs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.protocol.records import Price, Request
from launcher.values import shown
from workload.contract.errors import ToolError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.spec import Profile, RunSpec
from workload.contract.text import wrapped

# A cloud's boot.py imports the boot that all clouds share; on the machine there is no such module.
BOOT, BOOT_IMPORT = (
    Path(__file__).with_name("boot.py"),
    re.compile(r"^from launcher\.backends\.boot import .*\n", re.MULTILINE),
)
FUTURE = "from __future__ import annotations\n"
# Column at which the facts of a printed plan begin.
TEXT_COLUMN = 11


def run_rows(request: Request) -> Iterator[tuple[str, str]]:
    """Rows of a plan's text: the runs, the files of a script, and the origin of each option."""
    spec = RunSpec.from_json(request.spec)
    times = "one run" if spec.repeats == 1 else f"{spec.repeats} runs, each in its own process"
    profile = "" if spec.profile is Profile.NONE else f", then a profile by {spec.profile}"
    single = f"{shown(spec.title)}, on {spec.where}; {times}{profile}"
    yield "plan", f"{request.work}, each in its own process" if request.task else single
    yield "sends", request.files_text
    yield "set by", ", ".join(f"{name}: {source}" for name, source in request.spec_origin.items()) or "all defaults"


def text_of(rows: Iterable[tuple[str, str]], notes: Iterable[str], width: int | None) -> str:
    """Text of a plan: rows of a name and a fact, then the notes, in lines of at most `width` characters.

    A row without a fact is left out.
    """
    named = [*rows, *(("note", note) for note in notes)]
    return "\n".join(wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=name) for name, text in named if text)


def cost_text(usd_per_h: float | None) -> str:
    """Text on the price that the user gave; `not counted` without a price."""
    return f"{usd_per_h:g} USD per hour, as you said" if usd_per_h else "not counted"


def require_price(usd_per_h: float | None) -> None:
    """Raise `UsageError` if the value of `--usd-per-h` is below 0, above a million, or NaN."""
    if usd_per_h is not None and not 0 <= usd_per_h <= 1e6:  # noqa: PLR2004 - nobody pays that
        raise UsageError(f"--usd-per-h must be a price in USD; got {usd_per_h}", hint="--usd-per-h 0.80")


def prices_of(usd_per_h: float | None, regions: Iterable[str], now: datetime) -> dict[str, dict[str, Any]]:
    """Field `prices` of a request: the user's price per hour for each region; {} without a price."""
    if usd_per_h is None:
        return {}
    price = asdict(Price(usd_per_h=usd_per_h, source="--usd-per-h", read=f"{now:%Y-%m-%d}"))
    return dict.fromkeys(regions, price)


def program_text(path: Path) -> str:
    """Text of a program that the launcher sends to a machine; if it imports launcher/backends/boot.py, with its text.

    Raises `ToolError` for a broken installation.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if not BOOT_IMPORT.search(text):
            return text
        path = BOOT
        shared = path.read_text(encoding="utf-8").replace(FUTURE, "", 1)
    except OSError as error:
        raise ToolError(f"this installation lacks {path.name}", hint="install rooflaunch again") from error
    return BOOT_IMPORT.sub(lambda _: shared, text, count=1)

"""NVTX ranges around launches, as written by ncu; `workload.contract.vocabulary` defines those of our own profiles."""

import re

# Number of fields after the name: PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg.
_FIELDS_AFTER_NAME = 6
_QUOTED = re.compile(r'"([^"]*)"')
_NUMBER = re.compile(r"\s*\d+[:\s]\s*")


def text(started: str | None, pushed: str | None) -> str | None:
    """Names of the ranges around a launch, from outside to inside, joined by slashes; None if there are none.

    `started`: ranges of `range_start`, process-wide; `pushed`: ranges of `range_push`, in the launching thread.
    """
    return "/".join([*_names(started or ""), *_names(pushed or "")]) or None


def _names(cell: str) -> list[str]:
    """Names of the ranges in a cell.

    `1  "<default domain>:step 0 forward:none:none:none:none:none:none" ` holds one range.
    """
    number = _NUMBER.match(cell)
    quoted = _QUOTED.findall(cell) or [cell[number.end() :] if number else cell]
    return [name for described in quoted if (name := _name(described))]


def _name(described: str) -> str:
    rest = described.partition(":")[2]
    parts = rest.rsplit(":", _FIELDS_AFTER_NAME)
    return parts[0].strip() if len(parts) > _FIELDS_AFTER_NAME else rest.strip()

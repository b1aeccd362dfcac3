"""What figures and tables call things: names from somebody's files, made safe to show and to save under."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workload.contract.text import counted, printable

# Longer names hide the figure; their tails tell apart what somebody named by pattern.
SHOWN_CHARACTERS = 48
# Of a file's name; file systems allow 255 bytes.
FILE_CHARACTERS = 100


def shown(name: Any) -> str:
    """One short line without characters that move, hide or reorder text."""
    text = printable(str(name)).strip()
    if len(text) <= SHOWN_CHARACTERS:
        return text
    kept = (SHOWN_CHARACTERS - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def file_stem(name: str) -> str:
    """`name` as part of a file's name anywhere: letters, digits, `.`, `_` and `-`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:FILE_CHARACTERS].strip("-.") or "unnamed"


def distinct(names: Iterable[str]) -> dict[str, str]:
    """By name, a file stem of its own: the second of two that come out the same gets a number."""
    stem_of: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        stem, number = file_stem(name), 1
        # Some file systems do not tell case apart.
        while (candidate := stem if number == 1 else f"{stem}-{number}").lower() in taken:
            number += 1
        taken.add(candidate.lower())
        stem_of[name] = candidate
    return stem_of


def environments(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per entry (`place`, `device_name`, `threads`): the place, and what tells places of one name apart."""
    return _named(facts, "place", ("device_name", "threads"), {"threads": lambda value: counted(int(value), "thread")})


def devices(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per entry (`device_name`, `threads`): the device, and its threads where those differ."""
    return _named(facts, "device_name", ("threads",), {"threads": lambda value: counted(int(value), "thread")})


def tasks(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per entry (`model`, `image_size`, `dataset`): the model, and what makes its images another task."""
    return _named(facts, "model", ("image_size", "dataset"), {"image_size": "{:g} px".format})


def known_values(
    facts: Sequence[Mapping[str, Any]], first: str, more: Sequence[str]
) -> Mapping[Any, dict[str, set[Any]]]:
    """By value of `first`, what is known of each column of `more`: not knowing is no difference."""
    held: dict[Any, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for run in facts:
        for column in more:
            if run[column] is not None:
                held[run[first]][column].add(run[column])
    return held


def _named(
    facts: Sequence[Mapping[str, Any]], first: str, more: Sequence[str], forms: Mapping[str, Callable[[Any], str]]
) -> list[str]:
    held = known_values(facts, first, more)
    short = unlike(run[first] if run[first] is not None else f"unknown {first.removesuffix('_name')}" for run in facts)
    names = []
    for run in facts:
        varying = [column for column in more if len(held[run[first]][column]) > 1]
        parts = [_part(forms.get(column, str), run[column], column) for column in varying]
        name = short[run[first] if run[first] is not None else f"unknown {first.removesuffix('_name')}"]
        names.append(f"{name} ({', '.join(parts)})" if parts else name)
    return names


def unlike(names: Iterable[Any]) -> dict[Any, str]:
    """By name, how it is shown: the second of two long ones that would read the same gets a number."""
    label_of: dict[Any, str] = {}
    for name in dict.fromkeys(names):
        text, number = shown(name), 1
        taken = set(label_of.values())
        while (candidate := text if number == 1 else f"{text} [{number}]") in taken:
            number += 1
        label_of[name] = candidate
    return label_of


def _part(form: Callable[[Any], str], value: Any, column: str) -> str:
    return f"{column.replace('_', ' ')} unknown" if value is None else shown(form(value))

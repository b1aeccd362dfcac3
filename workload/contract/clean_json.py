"""Removes unusable values from a JSON document: numbers that overflow, very long texts, very deep nesting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workload.contract.fields import LARGEST, start

# Longer texts are left out. A traceback, the longest text that a run writes, has a few thousand characters.
MAX_CHARACTERS = 10_000
# run.json is 6 deep. Python's json module, and any recursive reader, fails at about 1000.
MAX_DEPTH = 30


@dataclass(kw_only=True)
class Cleaner:
    """Removes unusable values from documents.

    `remarks`: a sentence on each removed value, with the rule that it breaks; `places`: paths of the removed values.
    """

    remarks: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def document(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a cleaned copy of `record`, or `record` itself if it needs no change.

        Nearly all records need no change, and checking takes a tenth of the time of copying.
        """
        if _is_clean(record):
            return record
        cleaned: dict[str, Any] = self.value(record)
        return cleaned

    def value(self, value: Any, where: tuple[str, ...] = ()) -> Any:
        """Copy `value`, whose path is `where`, with None for unusable values and with texts that UTF-8 can encode."""
        rule = _broken_rule(value, depth=len(where))
        if rule:
            place = clean(".".join(where))
            self.places.add(place)
            self.remarks.append(f"run.json: {start(place)} is not {rule}; left out")
            return None
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, Mapping):
            return {clean(key): self.value(inner, (*where, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, (*where, str(number))) for number, inner in enumerate(value)]
        return value


def _broken_rule(value: Any, *, depth: int) -> str | None:
    """Rule that a value of a JSON document breaks; None if the value is valid."""
    if isinstance(value, Mapping | list) and depth >= MAX_DEPTH:
        return f"nested at most {MAX_DEPTH} deep"
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        return f"text of at most {MAX_CHARACTERS} characters"
    if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
        return f"a finite number of at most {LARGEST:g}"
    return None


def _is_clean(record: Mapping[str, Any]) -> bool:
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                if len(value) > MAX_CHARACTERS or not (value.isascii() or clean(value) == value):
                    return False
            elif kind is dict:
                inner += value
                inner += value.values()
            elif kind is list:
                inner += value
            elif (kind is int or kind is float) and not -LARGEST <= value <= LARGEST:
                return False
        if not inner:
            return True
        level = inner
    return False


def clean(text: str) -> str:
    """Replace each lone surrogate in `text` by its escape sequence: JSON allows it, but UTF-8 cannot encode it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

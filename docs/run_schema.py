"""Writes docs/run.schema.json, the JSON Schema of run.json, and docs/run-json.md, which lists its fields for people.

Both come from the definition, `workload/contract/record.py`: `python docs/run_schema.py`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workload.contract.record import json_schema

TARGET = Path(__file__).with_name("run.schema.json")
PAGE = Path(__file__).with_name("run-json.md")
INTRODUCTION = """\
# Every field of run.json

The fields of `run.json`, by the object that has them; the unit is part of a name. `null` means unknown, and a field
that does not apply to a run is left out. `name.*` has a value for each of several names, `name[]` is a list.
[run.schema.json](run.schema.json) is the same as a JSON Schema, with the range of each number. Written by
`python docs/run_schema.py` from `workload/contract/record.py`.
"""
NEXT = "[every error by its message](errors.md)."


def page(schema: Mapping[str, Any]) -> str:
    """Text of docs/run-json.md."""
    return "".join([INTRODUCTION, *_object("run.json", schema), f"\nNext: {NEXT}\n"])


def _object(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The section of an object, then those of the objects in it."""
    fields = {name: _inner(name, field) for name, field in schema["properties"].items()}
    yield f"\n## {path}\n\n"
    if text := schema.get("description"):
        yield f"{' '.join(text.split())}\n\n"
    yield "| field | type |\n|---|---|\n"
    for name, field in fields.values():
        yield f"| `{name}` | {'object, below' if 'properties' in field else _type(field)} |\n"
    for name, field in fields.values():
        if "properties" in field:
            yield from _object(name if path == "run.json" else f"{path}.{name}", field)


def _inner(name: str, field: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and schema of a field; of a list or a table those of its items."""
    if isinstance(field.get("additionalProperties"), dict):
        return _inner(f"{name}.*", field["additionalProperties"])
    if "items" in field:
        return _inner(f"{name}[]", field["items"])
    return name, field


def _type(field: Mapping[str, Any]) -> str:
    if "const" in field:
        return str(field["const"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kinds = [field["type"]] if isinstance(field.get("type"), str) else field.get("type", ["any"])
    named = " or ".join(kind for kind in kinds if kind != "null")
    return "time stamp" if field.get("format") == "date-time" else named


if __name__ == "__main__":
    TARGET.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json_schema()), encoding="utf-8")

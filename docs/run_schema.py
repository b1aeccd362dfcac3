"""The list of the fields of run.json from their definition, for the site that `make docs` builds."""

from collections.abc import Iterator, Mapping
from typing import Any

from workload.contract.record import json_schema

INTRODUCTION = """
The fields of `run.json`, by the object that has them; the unit is part of a name. `null` means unknown, and a field
that does not apply to a run is left out. `name.*` has a value for each of several names, `name[]` is a list.
[run.schema.json](run.schema.json) is the same as a JSON Schema, with the range of each number.
"""


def reference() -> str:
    """A section in Markdown for each object of run.json."""
    return "".join([INTRODUCTION, *_object("run.json", json_schema())])


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

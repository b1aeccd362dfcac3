"""Declarations of the fields of a JSON document: type, range and column in a table.

A section is a frozen dataclass. Its annotations are the only source for `decode` (from JSON, with remarks on dropped
values), `encode` (to JSON), `schema` (JSON Schema) and `leaves` (its columns). Standard library only.
"""

import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

SHOWN_CHARACTERS = 60
# Longer texts are left out. A traceback, the longest text that a run writes, has a few thousand characters.
MAX_CHARACTERS = 10_000
# Larger counts would not be exact in a table's floating-point columns. No field of a bundle comes near.
MAX_COUNT = 2**53
# A run's figures are far from these limits: the largest training step has 1e21 FLOP, and 1e-12 J is too small to
# measure. Products and quotients of three such numbers are still finite.
SMALLEST, LARGEST = 1e-30, 1e30
# No step takes a picosecond, and 1e12 s are 30,000 years. Imported logs have the same limits.
SHORTEST_S, LONGEST_S = 1e-12, 1e12
# A share of wall time is at most 1. A wrong roof, or a timer that does not synchronise, gives shares of some hundreds.
LARGEST_SHARE = 1e4


class Kind(StrEnum):
    """Type of a field and of its column in a table. Numbers of a column are floats; an absent number is NaN."""

    TEXT = "text"
    COUNT = "count"
    NUMBER = "number"
    SECONDS = "seconds"
    SHARE = "share"
    RATE = "rate"
    FLAG = "flag"
    TIME = "time"  # ISO 8601 with its zone
    TEXTS = "texts"
    NUMBERS = "numbers"


# Range of each kind of number: from, to, and whether 0 is allowed too.
RANGES = {
    Kind.NUMBER: (SMALLEST, LARGEST, True),
    Kind.SECONDS: (SHORTEST_S, LONGEST_S, False),
    Kind.SHARE: (SMALLEST, LARGEST_SHARE, True),
    Kind.RATE: (SMALLEST, LARGEST, False),
}
WANTED = {
    Kind.TEXT: f"text of at most {MAX_CHARACTERS} characters",
    Kind.COUNT: "a positive integer",
    Kind.NUMBER: f"a number from 0 to {LARGEST:g}",
    Kind.SECONDS: f"seconds from {SHORTEST_S:g} to {LONGEST_S:g}",
    Kind.SHARE: f"a share from 0 to {LARGEST_SHARE:g}",
    Kind.RATE: "a positive number",
    Kind.FLAG: "true or false",
    Kind.TIME: "a time stamp with its zone",
    Kind.TEXTS: "a list of texts",
    Kind.NUMBERS: f"a list of numbers from 0 to {LARGEST:g}",
}


class Weight(StrEnum):
    """Importance of a field. `MEASURED`: other figures derive from the field, so an impossible value is an error."""

    MEASURED = "measured"


Text = Annotated[str | None, Kind.TEXT]
Number = Annotated[float | None, Kind.NUMBER]
Seconds = Annotated[float | None, Kind.SECONDS]
Share = Annotated[float | None, Kind.SHARE]
Rate = Annotated[float | None, Kind.RATE]
Flag = Annotated[bool | None, Kind.FLAG]
Time = Annotated[str | None, Kind.TIME]
Texts = Annotated[Sequence[str] | None, Kind.TEXTS]
Numbers = Annotated[Sequence[float] | None, Kind.NUMBERS]
MeasuredNumber = Annotated[float | None, Kind.NUMBER, Weight.MEASURED]
MeasuredSeconds = Annotated[float | None, Kind.SECONDS, Weight.MEASURED]
MeasuredShare = Annotated[float | None, Kind.SHARE, Weight.MEASURED]

Section = TypeVar("Section")


def column(name: str = "", *, default: Any = None) -> Any:
    """Declare a field that is also a column of the table of runs, under `name` or by default the field's name."""
    return field(default=default, metadata={"column": name})


@dataclass(kw_only=True)
class Findings:
    """Values that `decode` left out.

    `wrong`: sentences on the values. `impossible`: measured figures with impossible values, so the document is
    refused. `missing`: required fields.
    """

    wrong: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def left_out(self, place: "_Place", wanted: str, *, measured: bool = False, value: Any = None) -> None:
        """Add the remark that the field at `place` was left out; `wanted`: the valid values in words."""
        where = _dotted(place)
        self.wrong.append(f"{start(where)} is not {wanted}")
        if measured:
            self.impossible.append(f"{where} must be {wanted}; got {shown(value)}")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A field with a value, at any depth. `names`: attribute names from the outermost section to the field."""

    names: tuple[str, ...]
    kind: Kind
    column: str | None

    @property
    def where(self) -> str:
        """Field as messages name it: `timing.step_s.median`."""
        return ".".join(self.names)


# Place of a value: the place of the object that holds it, and its name there. Only a remark needs it as text.
_Place = tuple[Any, str] | None
# `convert(value, findings, place)` returns the converted value, or None and a remark in `findings`.
_Convert = Callable[[Any, Findings, _Place], Any]


@dataclass(frozen=True, kw_only=True)
class _Field:
    """Field of a section.

    `kind`: kind of a plain value. `section`: class of an object. `many`: Mapping or Sequence if the field holds several
    values, else None.
    """

    name: str
    kind: Kind | None
    section: type | None
    many: type | None
    required: bool
    measured: bool
    column: str | None
    default: Any
    convert: _Convert


def decode(section: type[Section], document: Mapping[str, Any], findings: Findings) -> Section:
    """Build a section from `document`. Impossible values become None, with a remark; unknown keys are dropped.

    A missing required value is None too, and its name is added to `findings.missing`.
    """
    made: Section = _converter(section)(document, findings, None)
    return made


def from_facts(section: type[Section], facts: Mapping[str, Any]) -> Section:
    """Build a section from a writer's `facts`. Impossible values become None without a remark: the run goes on."""
    return decode(section, facts, Findings())


def unknown(section: type, facts: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Names in `facts`, prefixed by `above`, that are not fields of the section or of the sections in it."""
    by_name = {item.name: item for item in _fields(section)}
    for name, value in facts.items():
        item = by_name.get(name)
        if item is None:
            yield above + name
        elif item.section:
            inner = list(value.values()) if item.many is Mapping and isinstance(value, Mapping) else value
            for one in inner if isinstance(inner, list | tuple) else [inner]:
                yield from unknown(item.section, one, f"{above}{name}.") if isinstance(one, Mapping) else ()


def encode(section: Any) -> dict[str, Any]:
    """Plain JSON values by field name; a section with `SPARSE` leaves out fields that are None."""
    sparse = getattr(section, "SPARSE", False)
    return {
        item.name: _plain(value)
        for item in _fields(type(section))
        if (value := getattr(section, item.name)) is not None or not sparse
    }


def leaves(section: type, above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Fields with a plain value, of a section and of the sections in it; values in mappings and lists are left out."""
    for item in _fields(section):
        names = (*above, item.name)
        if item.section and item.many is None:
            yield from leaves(item.section, names)
        elif item.kind and item.many is None:
            column_name = None if item.column is None else item.column or item.name
            yield Leaf(names=names, kind=item.kind, column=column_name)


def schema(section: type) -> dict[str, Any]:
    """JSON Schema of a section. Unknown keys are allowed, because readers drop them."""
    items = _fields(section)
    found: dict[str, Any] = {"type": "object"}
    if section.__doc__ and not section.__doc__.startswith(f"{section.__name__}("):
        found["description"] = " ".join(section.__doc__.split())
    found["properties"] = {item.name: _schema_of(item) for item in items}
    required = [item.name for item in items if item.required and item.section is None]
    required += [item.name for item in items if item.required and item.section is not None and _needs(item.section)]
    return found | ({"required": required} if required else {})


def instant(value: Any) -> datetime | None:
    """Parse an ISO 8601 time to UTC; None if it is invalid or has no zone."""
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def shown(value: Any) -> str:
    """Value as a message quotes it: JSON, cut to 60 characters."""
    try:
        return start(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "a deeply nested value"


def start(text: str) -> str:
    """First 60 characters of a text, with an ellipsis if it is longer."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def clean(text: str) -> str:
    """Replace each lone surrogate in `text` by its escape sequence: JSON allows it, but UTF-8 cannot encode it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


# --- reading a section's annotations


_FIELDS: dict[type, tuple[_Field, ...]] = {}


def _fields(section: type) -> tuple[_Field, ...]:
    """Fields of a section as its annotations declare them, read once per class."""
    if section not in _FIELDS:
        assert is_dataclass(section)
        _FIELDS[section] = tuple(_described(item) for item in fields(section))
    return _FIELDS[section]


def _described(item: Any) -> _Field:
    """Field from its annotation: `Annotated[float | None, Kind.NUMBER]`, a section, or Mapping or Sequence of these."""
    inner, optional = _without_none(item.type)
    kind, measured, many, section = _kind_of(inner), Weight.MEASURED in get_args(inner), None, None
    if kind:
        optional = optional or _without_none(get_args(inner)[0])[1] or item.default is not MISSING
    elif get_origin(inner) in (Mapping, Sequence):
        many, inner = get_origin(inner), get_args(inner)[-1]
        kind = _kind_of(inner)
    if kind:
        convert = _plain_converter(kind, measured=measured)
    else:
        assert isinstance(inner, type), f"{item.name}: {inner} is neither a kind of value nor a section"
        section, convert = inner, _converter(inner)
    return _Field(
        name=item.name,
        kind=kind,
        section=section,
        many=many,
        required=not optional,
        measured=measured,
        column=item.metadata.get("column"),
        convert=_many_converter(convert, many, section),
        default=None if item.default is MISSING or not optional else item.default,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Split `X | None` into `X` and True; any other annotation into itself and False."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    inner = [part for part in get_args(annotation) if part is not types.NoneType]
    return (inner[0] if len(inner) == 1 else annotation), len(inner) < len(get_args(annotation))


def _kind_of(annotation: Any) -> Kind | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation)[1:] if isinstance(part, Kind)), None)


# --- decoding


_CONVERTERS: dict[type, _Convert] = {}


def _converter(section: type) -> _Convert:
    """Function that converts a document to a section, made once per class; see `_Convert`."""
    if section not in _CONVERTERS:
        _CONVERTERS[section] = _section_converter(section)
    return _CONVERTERS[section]


def _section_converter(section: type) -> _Convert:
    items = _fields(section)
    converters = {item.name: item.convert for item in items}
    defaults = {item.name: _default(item) for item in items}
    required = [item for item in items if item.required and defaults[item.name] is None]

    def convert_section(document: Any, findings: Findings, place: _Place) -> Any:
        if not isinstance(document, Mapping):
            return findings.left_out(place, "an object")
        values = defaults.copy()
        for name, value in document.items():
            convert = converters.get(name)
            if value is not None and convert is not None:
                converted = convert(value, findings, (place, name))
                if converted is not None:
                    values[name] = converted
        for item in required:
            if values[item.name] is None and item.section:
                values[item.name] = _converter(item.section)({}, findings, (place, item.name))
            elif values[item.name] is None:
                findings.missing.append(_dotted((place, item.name)))
        return _made(section, values)

    return convert_section


def _default(item: _Field) -> Any:
    """Value of an absent field; None if a required value is missing with it."""
    if not (item.required and item.section):
        return item.default
    if item.many:
        return {} if item.many is Mapping else ()
    # A required section without required fields may be absent. Sections cannot change, so all records share one.
    findings = Findings()
    made = _converter(item.section)({}, findings, None)
    return None if findings.missing else made


def _made(section: type[Section], values: dict[str, Any]) -> Section:
    # Not section(**values): a frozen class sets each field by a call, which would double the time of `decode`.
    made = object.__new__(section)
    object.__setattr__(made, "__dict__", values)
    return made


def _dotted(place: _Place) -> str:
    above, name = place or (None, "")
    return f"{_dotted(above)}.{name}" if above else name


def _plain_converter(kind: Kind, *, measured: bool) -> _Convert:
    of_kind = CONVERTERS[kind]

    def convert_plain(value: Any, findings: Findings, place: _Place) -> Any:
        converted = of_kind(value)
        if converted is None:
            findings.left_out(place, WANTED[kind], measured=measured, value=value)
        return converted

    return convert_plain


def _many_converter(inner: _Convert, many: type | None, section: type | None) -> _Convert:
    """Converter of a field with values of `inner`: one value, or several by name or in order.

    Values that are unusable are left out; in a mapping of plain values, the names of unknown ones are kept.
    """

    def convert_by_name(value: Any, findings: Findings, place: _Place) -> Any:
        if not isinstance(value, Mapping):
            return findings.left_out(place, "an object")
        names = {clean(name): one for name, one in value.items()}
        known = {name: None if one is None else inner(one, findings, (place, name)) for name, one in names.items()}
        return {name: one for name, one in known.items() if one is not None or section is None}

    def convert_in_order(value: Any, findings: Findings, place: _Place) -> Any:
        if not isinstance(value, list | tuple):
            return findings.left_out(place, "a list")
        ordered = [inner(one, findings, (place, str(number))) for number, one in enumerate(value)]
        return tuple(one for one in ordered if one is not None)

    if many is Mapping:
        return convert_by_name
    return convert_in_order if many is Sequence else inner


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT else None


def _number_in(kind: Kind) -> Callable[[Any], float | None]:
    low, high, or_zero = RANGES[kind]

    def convert(value: Any) -> float | None:
        # Exact types first: `isinstance` on 200 values takes a tenth of the time of reading a bundle.
        is_number = type(value) is float or type(value) is int
        if not (is_number or (isinstance(value, int | float) and not isinstance(value, bool))):
            return None
        return value if low <= value <= high or (or_zero and value == 0) else None

    return convert


def _text(value: Any) -> str | None:
    return clean(value) if isinstance(value, str) and len(value) <= MAX_CHARACTERS else None


def _texts(value: Any) -> Sequence[str] | None:
    texts = tuple(map(_text, value)) if isinstance(value, list | tuple) else (None,)
    return None if None in texts else tuple(text for text in texts if text is not None)


def _numbers(value: Any) -> Sequence[float] | None:
    is_numbers = isinstance(value, list | tuple) and all(CONVERTERS[Kind.NUMBER](one) is not None for one in value)
    return tuple(value) if is_numbers else None


CONVERTERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _text,
    Kind.COUNT: _count,
    **{kind: _number_in(kind) for kind in RANGES},
    Kind.FLAG: lambda value: value if isinstance(value, bool) else None,
    Kind.TIME: lambda value: value if instant(value) else None,
    Kind.TEXTS: _texts,
    Kind.NUMBERS: _numbers,
}


# --- encoding


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return encode(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


# --- JSON Schema


def _schema_of(item: _Field) -> dict[str, Any]:
    one = schema(item.section) if item.section else _value_schema(item.kind)
    if item.many is Mapping:
        one = {"type": "object", "additionalProperties": _or_null(one)}
    elif item.many is Sequence:
        one = {"type": "array", "items": one}
    may_be_null = not item.required or (item.section is not None and not _needs(item.section))
    return _or_null(one) if may_be_null else one


def _or_null(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "type": [one["type"], "null"]} if "type" in one else one


def _needs(section: type) -> bool:
    return any(item.required and (item.section is None or _needs(item.section)) for item in _fields(section))


def _value_schema(kind: Kind | None) -> dict[str, Any]:
    assert kind
    if kind in RANGES:
        _, high, or_zero = RANGES[kind]
        return {"type": "number", "minimum" if or_zero else "exclusiveMinimum": 0, "maximum": high}
    plain: dict[Kind, dict[str, Any]] = {
        Kind.TEXT: {"type": "string", "maxLength": MAX_CHARACTERS},
        Kind.COUNT: {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        Kind.FLAG: {"type": "boolean"},
        Kind.TIME: {"type": "string", "format": "date-time"},
        Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
        Kind.NUMBERS: {"type": "array", "items": {"type": "number", "minimum": 0}},
    }
    return plain[kind]

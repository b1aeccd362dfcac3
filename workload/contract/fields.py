"""What a field of a JSON document may hold, declared with the field: its type, its range, its column in a table.

A section is a frozen dataclass. Its annotations are the one table behind `decode` (from JSON, with remarks on what is
left out), `encode` (to JSON), `schema` (JSON Schema) and
`leaves` (its columns). Standard library only.
"""

import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

SHOWN_CHARACTERS = 60
# Larger counts would not be exact in a table's floating-point columns; no field of a bundle comes near.
MAX_COUNT = 2**53
# Figures of a run lie far inside: 1e21 FLOP are the largest training step, 1e-12 J no power. Products and quotients of
# three such numbers are still finite.
SMALLEST, LARGEST = 1e-30, 1e30
# A picosecond, in which no step ends, and 30,000 years: as for the logs that can be imported.
SHORTEST_S, LONGEST_S = 1e-12, 1e12
# A share of wall time is at most 1, one of a wrong roof or of a timer that does not synchronise some hundreds.
LARGEST_SHARE = 1e4


class Kind(StrEnum):
    """The type of a field, and of a column made of it: there numbers are floats, so that an absent one is NaN."""

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
    ANY = "any"  # whatever JSON can say


# Of numbers: from, to, and whether 0 is one of them too.
RANGES = {
    Kind.NUMBER: (SMALLEST, LARGEST, True),
    Kind.SECONDS: (SHORTEST_S, LONGEST_S, False),
    Kind.SHARE: (SMALLEST, LARGEST_SHARE, True),
    Kind.RATE: (SMALLEST, LARGEST, False),
}
WANTED = {
    Kind.TEXT: "text",
    Kind.COUNT: "a positive integer",
    Kind.NUMBER: f"a number from 0 to {LARGEST:g}",
    Kind.SECONDS: f"seconds from {SHORTEST_S:g} to {LONGEST_S:g}",
    Kind.SHARE: f"a share from 0 to {LARGEST_SHARE:g}",
    Kind.RATE: "a positive number",
    Kind.FLAG: "true or false",
    Kind.TIME: "a time stamp with its zone",
    Kind.TEXTS: "a list of texts",
    Kind.NUMBERS: f"a list of numbers from 0 to {LARGEST:g}",
    Kind.ANY: "JSON",
}


class Weight(StrEnum):
    """`MEASURED`: of these figures all others are made, so that a document in which one cannot be is refused."""

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
Anything = Annotated[Any, Kind.ANY]
MeasuredNumber = Annotated[float | None, Kind.NUMBER, Weight.MEASURED]
MeasuredSeconds = Annotated[float | None, Kind.SECONDS, Weight.MEASURED]
MeasuredShare = Annotated[float | None, Kind.SHARE, Weight.MEASURED]

Section = TypeVar("Section")


def column(name: str = "", *, default: Any = None) -> Any:
    """A field that is a column of the table of runs too, under `name` where that is not the field's own."""
    return field(default=default, metadata={"column": name})


@dataclass(kw_only=True)
class Findings:
    """What `decode` left out. `impossible`: figures that refuse a document; `missing`: fields that it must have."""

    remarks: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def left_out(self, where: str, wanted: str) -> None:
        """Remark on a field that is not what it must be."""
        self.remarks.append(f"run.json: {start(where)} is not {wanted}; left out")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A field with a value, wherever it stands: `names` are the attributes on the way to it."""

    names: tuple[str, ...]
    kind: Kind
    column: str | None
    measured: bool

    @property
    def where(self) -> str:
        """The field as messages name it: `timing.step_s.median`."""
        return ".".join(self.names)


# `decode(value, where, findings)`: `value`, or None with a remark.
_Decode = Callable[[Any, str, Findings], Any]


@dataclass(frozen=True, kw_only=True)
class _Field:
    """One field of a section. `kind`: of a value, `section`: of an object; `many`: by name, or a list of them."""

    name: str
    kind: Kind | None
    section: type | None
    many: type | None
    required: bool
    measured: bool
    column: str | None
    default: Any
    # Of a plain value: the value itself, or None where it is none of its kind.
    convert: Callable[[Any], Any] | None
    decode: _Decode


def decode(section: type[Section], document: Mapping[str, Any], where: str, findings: Findings) -> Section:
    """The section that `document` holds; what cannot be is None, with a remark, and unknown keys are kept out.

    A value of a required field that is missing is None all the same, and in `findings.missing`.
    """
    values: dict[str, Any] = {}
    for item in _fields(section):
        name, convert = item.name, item.convert
        value = document.get(name)
        if value is None:
            value = item.default
        elif convert is None or convert(value) is None:
            value = item.decode(value, where, findings)
        else:
            value = convert(value) if item.kind in LISTS else value
        if value is None and item.required:
            value = _absent(item, where, findings)
        values[name] = value
    # Not section(**values): a frozen class sets each field by a call, which takes as long as all the rest.
    made = object.__new__(section)
    vars(made).update(values)
    return made


def from_facts(section: type[Section], facts: Mapping[str, Any]) -> Section:
    """The section that a writer's `facts` make, without a word on a value that cannot be: a run goes on without it."""
    return decode(section, facts, "", Findings())


def unknown(section: type, facts: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names in `facts` that are no field of the section or of those below it."""
    by_name = {item.name: item for item in _fields(section)}
    for name, value in facts.items():
        item = by_name.get(name)
        if item is None:
            yield above + name
        elif item.section and isinstance(value, Mapping):
            inner = value.values() if item.many is Mapping else [value]
            for one in inner:
                yield from unknown(item.section, one, f"{above}{name}.") if isinstance(one, Mapping) else ()


def encode(section: Any) -> dict[str, Any]:
    """Plain JSON values by field name; a section that is `SPARSE` leaves out what is None."""
    sparse = getattr(section, "SPARSE", False)
    return {
        item.name: _plain(value)
        for item in _fields(type(section))
        if (value := getattr(section, item.name)) is not None or not sparse
    }


def leaves(section: type, above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The fields with a value of a section and of those below it; what stands by name or in a list is none of them."""
    for item in _fields(section):
        names = (*above, item.name)
        if item.section and item.many is None:
            yield from leaves(item.section, names)
        elif item.kind and item.many is None:
            column_name = None if item.column is None else item.column or item.name
            yield Leaf(names=names, kind=item.kind, column=column_name, measured=item.measured)


def schema(section: type) -> dict[str, Any]:
    """The JSON Schema of a section: unknown keys are allowed, for readers keep them out."""
    items = _fields(section)
    found: dict[str, Any] = {"type": "object"}
    if section.__doc__ and not section.__doc__.startswith(f"{section.__name__}("):
        found["description"] = " ".join(section.__doc__.split())
    found["properties"] = {item.name: _schema_of(item) for item in items}
    required = [item.name for item in items if item.required and item.section is None]
    required += [item.name for item in items if item.required and item.section is not None and _needs(item.section)]
    return found | ({"required": required} if required else {})


def instant(value: Any) -> datetime | None:
    """UTC; a time without a zone could be any."""
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    return start(json.dumps(value, ensure_ascii=False))


def start(text: str) -> str:
    """The start of a text that may be long."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# --- what a section's annotations say


# Of these the record holds a tuple, JSON a list.
LISTS = {Kind.TEXTS, Kind.NUMBERS}
_FIELDS: dict[type, tuple[_Field, ...]] = {}


def _fields(section: type) -> tuple[_Field, ...]:
    """What the annotations of a section say, read once."""
    if section not in _FIELDS:
        assert is_dataclass(section)
        _FIELDS[section] = tuple(_described(item) for item in fields(section))
    return _FIELDS[section]


def _described(item: Any) -> _Field:
    """From `Annotated[float | None, Kind.NUMBER]`, a section, `Mapping[str, ...]` or `Sequence[...]` of them."""
    inner, optional = _without_none(item.type)
    kind, measured, many, section = _kind_of(inner), Weight.MEASURED in get_args(inner), None, None
    if kind:
        optional = optional or _without_none(get_args(inner)[0])[1] or kind is Kind.ANY
    elif get_origin(inner) in (Mapping, Sequence):
        many, inner = get_origin(inner), get_args(inner)[-1]
        kind = _kind_of(inner)
    if not kind:
        assert isinstance(inner, type), f"{item.name}: {inner} is neither a kind of value nor a section"
        section = inner
    return _Field(
        name=item.name,
        kind=kind,
        section=section,
        many=many,
        required=not optional,
        measured=measured,
        column=item.metadata.get("column"),
        convert=CONVERTERS[kind] if kind and not many else None,
        default=None if item.default is MISSING or not optional else item.default,
        decode=_decoder(item.name, kind, section, many, measured=measured),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` is `X` and optional."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    inner = [part for part in get_args(annotation) if part is not types.NoneType]
    return (inner[0] if len(inner) == 1 else annotation), len(inner) < len(get_args(annotation))


def _kind_of(annotation: Any) -> Kind | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation)[1:] if isinstance(part, Kind)), None)


def _absent(item: _Field, where: str, findings: Findings) -> Any:
    """An empty section where there is none; nothing can stand for a value."""
    if item.section and not item.many:
        return decode(item.section, {}, f"{where}{item.name}.", findings)
    if item.many:
        return {} if item.many is Mapping else ()
    findings.missing.append(f"{where}{item.name}")
    return None


# --- decoding


def _decoder(name: str, kind: Kind | None, section: type | None, many: type | None, *, measured: bool) -> _Decode:
    inner = _section_decoder(section) if section else _value_decoder(kind or Kind.ANY, measured=measured)
    if many is Mapping:
        inner = _by_name(inner, keep_none=section is None)
    elif many is Sequence:
        inner = _in_order(inner)

    def decode_field(value: Any, where: str, findings: Findings) -> Any:
        return inner(value, where + name, findings)

    return decode_field


def _value_decoder(kind: Kind, *, measured: bool) -> _Decode:
    convert, wanted = CONVERTERS[kind], WANTED[kind]

    def decode_value(value: Any, where: str, findings: Findings) -> Any:
        converted = convert(value)
        if converted is None:
            if measured:
                findings.impossible.append(f"run.json: {where} must be {wanted}; got {shown(value)}")
            findings.left_out(where, wanted)
        return converted

    return decode_value


def _section_decoder(section: type) -> _Decode:
    def decode_section(value: Any, where: str, findings: Findings) -> Any:
        if isinstance(value, dict):
            return decode(section, value, f"{where}.", findings)
        findings.left_out(where, "an object")
        return None

    return decode_section


def _by_name(inner: _Decode, *, keep_none: bool) -> _Decode:
    """`keep_none`: a value by name may be unknown, a section cannot."""

    def decode_by_name(value: Any, where: str, findings: Findings) -> Any:
        if not isinstance(value, dict):
            findings.left_out(where, "an object")
            return None
        known = {name: None if one is None else inner(one, f"{where}.{name}", findings) for name, one in value.items()}
        return {name: one for name, one in known.items() if keep_none or one is not None}

    return decode_by_name


def _in_order(inner: _Decode) -> _Decode:
    def decode_in_order(value: Any, where: str, findings: Findings) -> Any:
        if not isinstance(value, list | tuple):
            findings.left_out(where, "a list")
            return None
        known = [inner(one, f"{where}.{number}", findings) for number, one in enumerate(value)]
        return tuple(one for one in known if one is not None)

    return decode_in_order


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT else None


def _number_in(kind: Kind) -> Callable[[Any], float | None]:
    low, high, or_zero = RANGES[kind]

    def convert(value: Any) -> float | None:
        # By its very type first: asking for the class of 200 values takes a tenth of the time of reading a bundle.
        is_number = type(value) is float or type(value) is int
        if not (is_number or (isinstance(value, int | float) and not isinstance(value, bool))):
            return None
        return value if low <= value <= high or (or_zero and value == 0) else None

    return convert


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _time(value: Any) -> str | None:
    return value if instant(value) else None


def _texts(value: Any) -> Sequence[str] | None:
    is_texts = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    return tuple(value) if is_texts else None


def _numbers(value: Any) -> Sequence[float] | None:
    is_numbers = isinstance(value, list | tuple) and all(CONVERTERS[Kind.NUMBER](one) is not None for one in value)
    return tuple(value) if is_numbers else None


CONVERTERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _text,
    Kind.COUNT: _count,
    **{kind: _number_in(kind) for kind in RANGES},
    Kind.FLAG: _flag,
    Kind.TIME: _time,
    Kind.TEXTS: _texts,
    Kind.NUMBERS: _numbers,
    Kind.ANY: lambda value: value,
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
    one = schema(item.section) if item.section else _value_schema(item.kind or Kind.ANY)
    if item.many is Mapping:
        one = {"type": "object", "additionalProperties": _or_null(one)}
    elif item.many is Sequence:
        one = {"type": "array", "items": one}
    may_be_null = not item.required or (item.section is not None and not _needs(item.section))
    return _or_null(one) if may_be_null else one


def _or_null(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "type": [one["type"], "null"]} if "type" in one else one


def _needs(section: type) -> bool:
    """Whether something below it has to be there, so that it has to be there itself."""
    return any(item.required and (item.section is None or _needs(item.section)) for item in _fields(section))


def _value_schema(kind: Kind) -> dict[str, Any]:
    if kind in RANGES:
        _, high, or_zero = RANGES[kind]
        return {"type": "number", "minimum" if or_zero else "exclusiveMinimum": 0, "maximum": high}
    plain: dict[Kind, dict[str, Any]] = {
        Kind.TEXT: {"type": "string"},
        Kind.COUNT: {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        Kind.FLAG: {"type": "boolean"},
        Kind.TIME: {"type": "string", "format": "date-time"},
        Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
        Kind.NUMBERS: {"type": "array", "items": {"type": "number", "minimum": 0}},
        Kind.ANY: {},
    }
    return plain[kind]

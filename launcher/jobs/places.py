"""The place that a command works with: a backend, and where its launches are. Imports little, for `launch --help`."""

import importlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from launcher.backends import BACKENDS
from launcher.values import flag_of
from workload.contract.errors import UsageError
from workload.contract.spec import CONFIG_NAME

# Backend of a command if no option or file names another.
USUAL = "gcp"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of launches: the name of a backend, and `where`, the options that select a place there."""

    backend: str
    where: Any

    @property
    def words(self) -> str:
        """Options that select this place in another command, as text; empty if none is needed."""
        if self.backend == USUAL == implied_by(()):
            return ""
        items = fields(self.where)
        values = {item.name: getattr(self.where, item.name) for item in items}
        typed = {item.name: values[item.name] for item in items if values[item.name] != item.default}
        named = "" if implied_by(typed) == self.backend else f"--backend {self.backend}"
        options = (f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in typed.items())
        return " ".join(filter(None, (named, *options)))

    def command(self, words: str) -> str:
        """Command `launch`, such as `launch logs NAME`, with the options that select this place."""
        return " ".join(filter(None, ("launch", words, self.words)))


def place_of(where: Mapping[str, Any], *, likely: Sequence[str] = ()) -> Place:
    """Return the place that the options select; without options, the default place.

    Unless a backend is named, the backend that the options imply is taken. `likely`: backends to try first. Raises
    `UsageError` for options of two backends.
    """
    typed = {name: value for name, value in where.items() if value is not None}
    named = typed.pop("backend", None)
    if named is not None and named not in BACKENDS:
        raise UsageError(f"there is no backend '{named}'", hint=f"--backend {' or '.join(BACKENDS)}")
    if not typed:
        return place_in(named or implied_by(()))
    for name in (named,) if named else (*(part for part in likely if part in BACKENDS), *_in_order()):
        if set(typed) <= set(_place_fields(name)):
            return Place(backend=name, where=_where(name, typed))
    if named:
        foreign = " and ".join(f"--{name.replace('_', '-')}" for name in typed if name not in _place_fields(named))
        raise UsageError(f"{foreign} is no option of --backend {named}", hint="leave one of them out")
    own = {name: [flag_of(item) for item in fields(options_of(name).Where) if item.name in typed] for name in BACKENDS}
    owners = ", ".join(f"{' and '.join(flags)} of {name}" for name, flags in own.items() if flags)
    raise UsageError(f"a command works with one place; got options of two: {owners}", hint="leave one of them out")


def implied_by(typed: Collection[str]) -> str:
    """Return the first backend with all options of these names; those with a table in rooflaunch.toml come first."""
    return next((name for name in _in_order() if set(typed) <= set(_place_fields(name))), USUAL)


def _in_order() -> list[str]:
    tables = _configured()
    return sorted(BACKENDS, key=lambda name: not isinstance(tables.get(name), dict))


def _place_fields(name: str) -> list[str]:
    return [item.name for item in fields(options_of(name).Where)]


def place_in(name: str) -> Place:
    """Default place of a backend, for a command without options of a place."""
    return Place(backend=name, where=_where(name, {}))


def flags_of(name: str) -> list[str]:
    """Options that name a place of a backend."""
    return [flag_of(item) for item in fields(options_of(name).Where)]


def other_places(name: str) -> str:
    """Options for a place of each backend other than `name`, as a text for a hint."""
    needed = {
        other: [item for item in fields(options_of(other).Where) if item.default is MISSING] for other in BACKENDS
    }
    return " or ".join(
        " ".join(
            [f"--backend {other}", *(f"{flag_of(item)} {item.metadata['shown'].get('metavar')}" for item in items)]
        )
        for other, items in needed.items()
        if other != name
    )


def _where(name: str, typed: Mapping[str, Any]) -> Any:
    kind = options_of(name).Where
    needed = [item for item in fields(kind) if item.default is MISSING and item.name not in typed]
    table = _configured().get(name, {}) if needed else {}
    for item in needed:
        if item.name not in table:
            raise UsageError(
                f"{flag_of(item)} is required, to find launches of {name}",
                hint=f"{flag_of(item)} {item.metadata['shown'].get('metavar', item.name.upper())}",
            )
    return kind(**{item.name: table[item.name] for item in needed}, **typed)


def _configured() -> dict[str, Any]:
    """Tables of rooflaunch.toml; empty if the file cannot be read, an error that is reported elsewhere."""
    import tomllib  # noqa: PLC0415 - few commands ask

    try:
        return tomllib.loads(Path(CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def options_of(name: str) -> Any:
    return importlib.import_module(f"{BACKENDS[name]}.options")

"""Where a cloud's settings come from: an option, a variable, or the cloud's table in rooflaunch.toml, in this order."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.backends import BACKENDS
from launcher.sizes import shown
from workload.contract.errors import UsageError
from workload.contract.spec import CONFIG_NAME, Origin
from workload.contract.text import did_you_mean


@dataclass(frozen=True, kw_only=True)
class SettingSources:
    """Sources of the settings of one cloud. `table`: its table in rooflaunch.toml; `prefix`: start of its variables.

    `rules`: for each setting a pattern of its values, the pattern in words, and an example. `address`: scheme of a
    bucket's address, which a user may type with the bucket's name.
    """

    table: str
    prefix: str
    rules: Mapping[str, tuple[str, str, str]]
    address: str

    def given(
        self, options: Mapping[str, str | None], environment: Mapping[str, str], config_folder: Path | None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Checked values that some source has, and the origin of each.

        Raises `UsageError` for a value that breaks its rule, and for an unknown key of the table.
        """
        table = _from_config(config_folder / CONFIG_NAME, self.table, self.rules) if config_folder else {}
        values, origins = dict[str, str](), dict[str, str]()
        for name in self.rules:
            if strongest := self._first(name, options, environment, table):
                origins[name], values[name] = strongest
        return values, origins

    def _first(
        self, name: str, options: Mapping[str, str | None], environment: Mapping[str, str], table: Mapping[str, object]
    ) -> tuple[Origin, str] | None:
        """First source that has the setting, and the checked value; None if no source has it."""
        variable = self.prefix + name.upper()
        example = self.rules[name][2]
        sources: list[tuple[Origin, object, str, str]] = [
            (Origin.OPTION, options.get(name), "", f"--{name.replace('_', '-')} {example}"),
            (Origin.ENVIRONMENT, environment.get(variable), f"{variable}: ", f"export {variable}={example}"),
            (Origin.CONFIG, table.get(name), f"{CONFIG_NAME}, [{self.table}]: ", f'{name} = "{example}"'),
        ]
        for origin, value, where, hint in sources:
            if value is not None:
                return origin, self.checked(name, value, where=where, hint=hint)
        return None

    def checked(self, name: str, value: object, *, where: str, hint: str) -> str:
        """The value as text. Raises `UsageError` if the value breaks its rule; `where` names its source."""
        pattern, rule, _ = self.rules[name]
        text = value if isinstance(value, str) else ""
        if name == "bucket":
            text = text.removeprefix(self.address).removesuffix("/")
        if not re.fullmatch(pattern, text):
            label = name.replace("_", " ")
            raise UsageError(f"{where}{label} must be {rule}; got '{shown(str(value))}'", hint=hint)
        return text


def _from_config(path: Path, name: str, known: Mapping[str, tuple[str, str, str]]) -> Mapping[str, object]:
    """Table `name` of a TOML file; {} if absent. Other parts of the file are read by `workload.contract.spec`."""
    first, example = next((key, rule[2]) for key, rule in known.items())
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a readable TOML file: {error}", hint=f'a line [{name}], and below it {first} = "{example}"'
        ) from error
    for key, value in tables.items():
        if isinstance(value, dict) and key not in BACKENDS:
            raise UsageError(f"{path}: unknown table [{shown(key)}]", hint=f"a table for each of {', '.join(BACKENDS)}")
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} must be a table; got '{shown(str(table))}'", hint=f"[{name}]")
    for key in table:
        if key not in known:
            raise UsageError(
                f"{path}: unknown key '{shown(key)}' in [{name}]",
                hint=f"the keys are {', '.join(known)}{did_you_mean(key, tuple(known), before='; ')}",
            )
    return table

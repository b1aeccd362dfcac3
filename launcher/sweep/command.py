"""Section [script] of a matrix: the command of a user's script, with placeholders for its axes."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from launcher.sweep.places import ARGUMENT, as_text
from workload.contract.errors import UsageError
from workload.contract.script import DATA

# `{lr}` in the command is a placeholder, `{{lr}}` stands for the literal text `{lr}`.
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{([A-Za-z_][\w.-]*)\}")
EXAMPLE = 'command = ["train.py", "--epochs", "1"]'


class Refuse(Protocol):
    """Function that makes an error about the matrix file."""

    def __call__(self, text: str, *, hint: str) -> UsageError:
        """Return the error for `text`, with its hint."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Script with the arguments that all runs share. `options`: its further keys in the file, such as `data`."""

    parts: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, section: Mapping[str, Any], refuse: Refuse) -> "Command":
        """Read the section [script] of a matrix file."""
        parts = section.get("command")
        if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
            got = "nothing" if parts is None else f"'{parts}'"
            raise refuse(f"[script] command must be a list of texts, the script first; got {got}", hint=EXAMPLE)
        return cls(parts=tuple(parts), options={name: value for name, value in section.items() if name != "command"})

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names of the axes in the command: `{lr}` gives `lr`."""
        found = (match[2] for part in self.parts for match in PLACEHOLDER.finditer(part.replace(DATA, "")))
        return tuple(dict.fromkeys(name for name in found if name))

    def require_values(self, axes: Collection[str], refuse: Refuse) -> None:
        """Raise an error if the command has a placeholder without an axis."""
        for name in self.placeholders:
            if f"{ARGUMENT}{name}" not in axes:
                raise refuse(
                    f"[script] command has {{{name}}}, and [matrix] has no {ARGUMENT}{name}",
                    hint=f"{ARGUMENT}{name} = [0.1, 0.01], or {{{{{name}}}}} for the letters themselves",
                )

    def words(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Command with one combination of values, filled into their placeholders or else appended as `--lr 0.1`.

        A value without a placeholder is appended as the option alone if it is True, and left out if it is False.
        """
        given = {name.removeprefix(ARGUMENT): value for name, value in values.items() if name.startswith(ARGUMENT)}

        def filled(match: re.Match[str]) -> str:
            return f"{{{match[1]}}}" if match[1] else as_text(given[match[2]])

        # `{data}` is kept: the place of the script's data is not known yet.
        parts = [DATA.join(PLACEHOLDER.sub(filled, text) for text in part.split(DATA)) for part in self.parts]
        for name, value in given.items():
            if name not in self.placeholders and value is not False:
                parts += [f"--{name}"] if value is True else [f"--{name}", as_text(value)]
        return tuple(parts)

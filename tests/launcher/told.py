"""What many cases say, as the text of one golden file."""

import shlex
from collections.abc import Callable, Iterable, Mapping

import pytest

from workload.contract.errors import RooflaunchError

# The fixture `golden` of tests/conftest.py.
Golden = Callable[[str, str], None]


def told(cases: Mapping[str, Callable[[], object]]) -> str:
    """Below the name of each case what it returns, or the error that it raises, with hint and exit code."""
    parts = []
    for name, act in cases.items():
        try:
            text = str(act())
        except RooflaunchError as error:
            text = f"{error.report()}\nexit code {int(error.exit_code)}"
        parts.append(f"## {name}\n{text}\n")
    return "\n".join(parts)


def printed(launch: Callable[..., int], capsys: pytest.CaptureFixture[str], lines: Iterable[str]) -> str:
    """Below each line of `launch` what it prints, and its exit code."""
    parts = []
    for line in lines:
        code = launch(*shlex.split(line))
        told = capsys.readouterr()
        parts.append(f"{f'$ launch {line}'.rstrip()}\n{told.out}{told.err}exit code {int(code)}\n")
    return "\n".join(parts)

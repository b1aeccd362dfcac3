"""Errors of many cases as one text, for a golden file."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from workload.contract.errors import RooflaunchError


def errors_of(act: Callable[..., object], cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Class, exit code, message and hint of the error that `act` raises for the keyword arguments of each case."""
    found = []
    for name, options in cases.items():
        with pytest.raises(RooflaunchError) as caught:
            act(**options)
        error = caught.value
        assert str(error).isprintable(), name
        assert len(str(error)) < 1000, name
        found.append(f"## {name}\n{type(error).__name__}, exit code {int(error.exit_code)}\n{error.report()}\n")
    return "\n".join(found)

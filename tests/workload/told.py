"""Errors as their reader sees them."""

from collections.abc import Callable

import pytest

from workload.contract.errors import ExitCode, RooflaunchError


def report_of(work: Callable[[], object], kind: type[RooflaunchError], code: ExitCode) -> str:
    """Lines of the error that `work` raises."""
    with pytest.raises(kind) as caught:
        work()
    assert caught.value.exit_code is code
    assert str(caught.value).isprintable()
    return caught.value.report()


def told(title: object, work: Callable[[], object]) -> str:
    """A section of a golden file: the error that `work` raises."""
    with pytest.raises(RooflaunchError) as caught:
        work()
    error = caught.value
    return f"## {title}\n{type(error).__name__}, exit code {error.exit_code:d}\n{error.report()}\n\n"

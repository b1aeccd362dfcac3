"""What many cases say, as the text of one golden file."""

from collections.abc import Callable, Mapping

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

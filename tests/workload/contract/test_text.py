"""Figures, lines and errors as text."""

import io
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from workload import log
from workload.contract.errors import UsageError
from workload.contract.text import (
    counted,
    digits_beside_one,
    dollars,
    minutes,
    percent,
    percent_range,
    plain,
    printable,
    printable_lines,
    seconds,
    si,
    signed_percent,
    size,
    terminal_width,
    unbroken,
    wrapped,
)
from workload.profile.command import ProfileError, ProfileStatus

# Functions, and what they are asked for: both sides of each limit.
FIGURES: dict[str, tuple[Callable[..., str], list[Any]]] = {
    "si, in B": (
        lambda value: si(value, "B"),
        [0.0, 0.25, 999.0, 1000.0, 227.4e9, 999.4e9, 999.9e9, -2.5e6, 1.2e15, 12.3e18],
    ),
    "size": (size, [999, 1000, 3_400_000, 2_000_000_000]),
    "seconds": (seconds, [0.0, 3e-10, 12.34567e-6, 0.012, 0.99999, 75.31, 123456.0]),
    "percent": (percent, [0.0, 0.00099, 0.001, 0.0053, 0.02, 0.0994, 0.0996, 0.594, 1.6, 83.56]),
    "percent with a decimal": (partial(percent, decimals=1), [1.001, 0.5, 0.0204, 0.996]),
    "signed percent": (signed_percent, [0.0003, -0.0004, 0.0, 0.05, -0.021, 0.25, -0.0996]),
    "percent range": (
        lambda ends: percent_range(*ends),
        [(0.12, 0.3), (0.0, 0.0004), (0.0002, 0.0004), (0.0002, 0.03), (0.301, 0.304)],
    ),
    "plain": (
        lambda words: plain(*words),
        [(21.594, 4), (2.0, 3), (999.6, 3), (12345.6, 4), (4522.0, 3), (0.002239, 3)],
    ),
    "counted steps": (lambda number: counted(number, "step"), [0, 1, 2]),
    "minutes": (minutes, [45.4, 60, 429, 3600, 3303]),
    # Rounded up.
    "dollars": (dollars, [None, 0.0001, 0.5, 0.5401]),
    "digits that tell a ratio from one": (
        lambda ratios: str(digits_beside_one(ratios)),
        [(1.5,), (1.0,), (1.02, 1.004), (1.0004, 2.0), (0.9996,), ()],
    ),
}


def test_figures_as_text(golden: Callable[[str, str], None]) -> None:
    sections = (
        f"## {title}\n" + "".join(f"{value!r}: {function(value)}\n" for value in values)
        for title, (function, values) in FIGURES.items()
    )
    golden("figures.txt", "\n".join(sections))


LONG = "20 % of the time is spent in /a/folder/whose/name/is/longer/than/the/line and 12 ms elsewhere"


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, [f"note      {LONG}"]),
        (200, [f"note      {LONG}"]),
        (
            44,
            [
                "note      20 % of the time is spent in",
                "          /a/folder/whose/name/is/longer/than/the/line",
                "          and 12 ms elsewhere",
            ],
        ),
    ],
)
def test_lines_are_wrapped_below_their_column(width: int | None, lines: list[str]) -> None:
    assert wrapped(LONG, width, indent=10, first="note").splitlines() == lines


def test_a_figure_keeps_its_unit_and_a_command_its_words() -> None:
    assert wrapped("it takes of this 59 %", 20) == "it takes of this\n59 %"
    assert wrapped(f"now {unbroken('analyze report results')}", 20) == "now\nanalyze report results"
    assert wrapped("", 40, indent=4, first="next") == "next"


def test_a_label_that_is_too_long_stays_apart_from_its_text() -> None:
    assert wrapped("9 runs, 0 done", None, indent=12, first="g2-standard-12") == "g2-standard-12 9 runs, 0 done"
    text = "9 runs, 0 done, 9 to do on 3 machines of gcp"
    assert wrapped(text, 40, indent=12, first="g2-standard-12").splitlines() == [
        "g2-standard-12 9 runs, 0 done, 9 to do",
        "            on 3 machines of gcp",
    ]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("20", 40), ("999", 200)])
def test_width_of_a_terminal(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width(Screen()) == width
    assert terminal_width(io.StringIO()) is None


def test_width_of_a_terminal_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width(Screen()) in range(40, 201)
    ours, theirs = os.openpty()
    with os.fdopen(ours, "w"), os.fdopen(theirs, "w") as screen:
        # Nobody has told this terminal its size.
        assert terminal_width(screen) in range(40, 201)


@pytest.mark.parametrize("width", [None, 60])
def test_lines_of_a_table_cannot_move_the_cursor(width: int | None) -> None:
    text = f"{unbroken('launch status')} \x1b[31mred\u202e 5 ms\x9b"
    assert wrapped(text, width, indent=6, first="next") == "next  launch status \\x1b[31mred\\u202e 5 ms\\x9b"


# What a hostile file name can hold: a colour, a forged second line, half of a surrogate pair, right-to-left text.
HOSTILE = "a\x1b[2Jb\nhint: rm -rf ~\r\ud800\u202e"
SHOWN = "a\\x1b[2Jb\\nhint: rm -rf ~\\r\\ud800\\u202e"


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable_lines("a\x1bb\nc\td") == "a\\x1bb\nc\\td"


def test_a_report_has_two_lines_whatever_its_names_hold() -> None:
    assert UsageError(f"'{HOSTILE}' is a file", hint=HOSTILE).report() == f"error: '{SHOWN}' is a file\nhint: {SHOWN}"


LONG_WORD, WORDS = "A" * 5000, "B C " * 1250
# Text of an error, words that were typed: the text as it is printed.
CUT = {
    "a short value": ("no 'x' here", [], "no 'x' here"),
    "200 characters": (f"no '{LONG_WORD[:200]}'", [], f"no '{LONG_WORD[:200]}'"),
    "a long value": (f"no '{LONG_WORD}': none", [], f"no '{LONG_WORD[:200]}…': none"),
    "a long value with spaces": (f"no '{WORDS}'; see b", [], f"no '{WORDS[:200]}…'; see b"),
    "a long value of words": (f"option --{WORDS}", ["launch", f"--{WORDS}"], f"option --{WORDS[:198]}… "),
    "a value behind =": (f"option x {WORDS} is odd", [f"--x={WORDS}"], f"option x {WORDS[:200]}…  is odd"),
    "a long word": (f"run {LONG_WORD}, then b", [], f"run {LONG_WORD[:200]}…, then b"),
    "a quote that closes": (f"'a' is {WORDS}and 'b'", [], f"'a' is {WORDS}and 'b'"),
    "escapes": (f"no '{chr(27) * 300}'", [], f"no '{chr(92)}x1b" + "\\x1b" * 49 + "…'"),
}


@pytest.mark.parametrize("case", CUT)
def test_a_value_is_repeated_in_short(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, typed, shown = CUT[case]
    monkeypatch.setattr("sys.argv", ["launch", *typed])
    assert UsageError(text, hint=text).report() == f"error: {shown}\nhint: {shown}"


def test_so_has_that_of_a_profile() -> None:
    error = ProfileError(ProfileStatus.FAILED, HOSTILE, hint="again")
    assert error.report() == f"error: profile failed: {SHOWN}\nhint: again"


def test_messages_of_the_trainer_and_its_log_are_printable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log.LOGGER, "handlers", [])
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    log.to_stderr()
    with log.to_file(tmp_path / "log.txt"):
        log.LOGGER.error("%s\nsecond line", HOSTILE.replace("\n", " "))
    expected = SHOWN.replace("\\n", " ") + "\nsecond line\n"
    assert capsys.readouterr().err == expected
    assert (tmp_path / "log.txt").read_text().endswith(f"ERROR {expected}")

import io
import os
from collections.abc import Callable
from functools import partial

import pytest

from workload.contract.text import (
    counted,
    digits_beside_one,
    dollars,
    minutes,
    percent,
    percent_range,
    plain,
    seconds,
    si,
    signed_percent,
    terminal_width,
    unbroken,
    wrapped,
)

FIGURES = {
    si: [
        ((0.0, "B"), "0 B"),
        ((0.25, "B"), "0.25 B"),
        ((999.0, "B"), "999 B"),
        ((1000.0, "B"), "1 kB"),
        ((227.4e9, "B"), "227 GB"),
        ((999.4e9, "B"), "999 GB"),
        ((999.9e9, "B"), "1 TB"),
        ((-2.5e6, "B"), "-2.5 MB"),
        ((1.2e15, "B"), "1.2 PB"),
        ((12.3e18, "B"), "12300 PB"),
    ],
    seconds: [
        ((0.0,), "0 s"),
        ((3e-10,), "0.3 ns"),
        ((12.34567e-6,), "12.35 µs"),
        ((0.012,), "12 ms"),
        ((0.99999,), "1 s"),
        ((75.31,), "75.31 s"),
        ((123456.0,), "123500 s"),
    ],
    percent: [
        ((0.0,), "0 %"),
        ((0.00099,), "less than 0.1 %"),
        ((0.001,), "0.1 %"),
        ((0.0053,), "0.5 %"),
        ((0.02,), "2 %"),
        ((0.0994,), "9.9 %"),
        ((0.0996,), "10 %"),
        ((0.594,), "59 %"),
        ((1.6,), "160 %"),
        ((83.56,), "8356 %"),
    ],
    partial(percent, decimals=1): [
        ((1.001,), "100.1 %"),
        ((0.5,), "50 %"),
        ((0.0204,), "2 %"),
        ((0.996,), "99.6 %"),
    ],
    signed_percent: [
        ((0.0003,), "+0.03 %"),
        ((-0.0004,), "-0.04 %"),
        ((0.0,), "+0.0 %"),
        ((0.05,), "+5.0 %"),
        ((-0.021,), "-2.1 %"),
        ((0.25,), "+25 %"),
        ((-0.0996,), "-10 %"),
    ],
    percent_range: [
        ((0.12, 0.3), "12 % to 30 %"),
        ((0.0, 0.0004), "less than 0.1 %"),
        ((0.0002, 0.0004), "less than 0.1 %"),
        ((0.0002, 0.03), "up to 3 %"),
        ((0.301, 0.304), "30 %"),
    ],
    plain: [
        ((21.594, 4), "21.59"),
        ((2.0, 3), "2"),
        ((999.6, 3), "1000"),
        ((12345.6, 4), "12346"),
        ((4522.0, 3), "4522"),
        ((0.002239, 3), "0.00224"),
    ],
    counted: [((0, "step"), "0 steps"), ((1, "step"), "1 step"), ((2, "step"), "2 steps")],
}


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [(function, *row) for function, rows in FIGURES.items() for row in rows],
)
def test_figures_as_text(function: Callable[..., str], arguments: tuple[object, ...], text: str) -> None:
    assert function(*arguments) == text


@pytest.mark.parametrize(
    ("ratios", "digits"), [((1.5,), 3), ((1.0,), 3), ((1.02, 1.004), 4), ((1.0004, 2.0), 5), ((0.9996,), 4), ((), 3)]
)
def test_digits_that_tell_a_ratio_from_one(ratios: tuple[float, ...], digits: int) -> None:
    assert digits_beside_one(ratios) == digits


@pytest.mark.parametrize(
    ("seconds", "text"), [(45.4, "45 s"), (60, "1 min"), (429, "7.2 min"), (3600, "60 min"), (3303, "55 min")]
)
def test_minutes(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(None, "cost unknown"), (0.0001, "0.01 USD"), (0.5, "0.50 USD"), (0.5401, "0.55 USD")]
)
def test_dollars_are_rounded_up(usd: float | None, text: str) -> None:
    assert dollars(usd) == text


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

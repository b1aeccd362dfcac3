import logging
from pathlib import Path

import pytest

from workload import log
from workload.contract.errors import UsageError
from workload.contract.text import printable, printable_lines
from workload.profile.command import ProfileError, ProfileStatus

# What a hostile file name can hold: a colour, a forged second line, half of a surrogate pair, right-to-left text.
HOSTILE = "a\x1b[2Jb\nhint: rm -rf ~\r\ud800\u202e"
SHOWN = "a\\x1b[2Jb\\nhint: rm -rf ~\\r\\ud800\\u202e"


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable_lines("a\x1bb\nc\td") == "a\\x1bb\nc\\td"


def test_a_report_has_two_lines_whatever_its_names_hold() -> None:
    assert UsageError(f"'{HOSTILE}' is a file", hint=HOSTILE).report() == f"error: '{SHOWN}' is a file\nhint: {SHOWN}"


LONG, WORDS = "A" * 5000, "B C " * 1250
# Text of an error, words that were typed: the text as it is printed.
CUT = {
    "a short value": ("no 'x' here", [], "no 'x' here"),
    "200 characters": (f"no '{LONG[:200]}'", [], f"no '{LONG[:200]}'"),
    "a long value": (f"no '{LONG}': none", [], f"no '{LONG[:200]}…': none"),
    "a long value with spaces": (f"no '{WORDS}'; see b", [], f"no '{WORDS[:200]}…'; see b"),
    "a long value of words": (f"option --{WORDS}", ["launch", f"--{WORDS}"], f"option --{WORDS[:198]}… "),
    "a value behind =": (f"option x {WORDS} is odd", [f"--x={WORDS}"], f"option x {WORDS[:200]}…  is odd"),
    "a long word": (f"run {LONG}, then b", [], f"run {LONG[:200]}…, then b"),
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

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import values
from tests.launcher.told import Golden, told
from workload.contract.errors import UsageError

SIZES = {
    "1": 1,
    "1024b": 1024,
    "64k": 65_536,
    "512m": 536_870_912,
    "0.5k": 512,
    "1.5g": 1_610_612_736,
    **dict.fromkeys(("2g", "2gb", " 2G "), 2_147_483_648),
}
DURATIONS = {"60m": 3600, "1h30m": 5400, "90s": 90, "30s": 30, "120d": 10_368_000, "1d2h3m4s": 93_784}
SHARES = {"1%": 0.01, "0.02": 0.02, "2.5 %": 0.025, " 2% ": 0.02}
NO_SIZES = ("", "g", "0", "0g", "-1g", "+1g", "1t", "1e9", "1.2.3g", "1 g", "two", ".5g", "0.4b")
NO_DURATIONS = (
    *("29s", "120d1s", "", "60", "m", "1.5h", "30m1h", "-60m", " 60m", "60 m", "60m\n", "\u0666\u0660m", "$(reboot)"),
    "9" * 4096,
)
NO_SHARES = ("0%", "100%", "x", "-1%", "2", "nan", "10001")
in_bytes = partial(values.parse_bytes, flag="--memory", example="8g")
in_seconds = partial(values.parse_duration_s, flag="--max-run-time")
as_share = partial(values.parse_share, flag="--until", example="1%", most=0.5)


def test_sizes_durations_and_shares() -> None:
    assert {text: in_bytes(text) for text in SIZES} == SIZES
    assert {text: in_seconds(text) for text in DURATIONS} == DURATIONS
    assert {text: as_share(text) for text in SHARES} == pytest.approx(SHARES)


def test_what_is_none_is_refused(golden: Golden) -> None:
    cases = {}
    for parse, wrong in ((in_bytes, NO_SIZES), (in_seconds, NO_DURATIONS), (as_share, NO_SHARES)):
        for text in wrong:
            with pytest.raises(UsageError):
                parse(text)
        cases[values.shown(wrong[-1])] = partial(parse, wrong[-1])
    golden("no_sizes.txt", told(cases))


@pytest.mark.parametrize(
    ("size", "text"),
    [(2_147_483_648, "2g"), (1_610_612_736, "1536m"), (536_870_912, "512m"), (1024, "1k"), (1025, "1025b"), (1, "1b")],
)
def test_text_is_the_largest_whole_unit(size: int, text: str) -> None:
    assert values.text(size) == text


@given(st.integers(min_value=1, max_value=2**48))
def test_text_reads_back(size: int) -> None:
    assert in_bytes(values.text(size)) == size

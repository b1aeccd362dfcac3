import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import values
from workload.contract.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1024b", 1024),
        ("64k", 65_536),
        ("512m", 536_870_912),
        ("2g", 2_147_483_648),
        ("2gb", 2_147_483_648),
        (" 2G ", 2_147_483_648),
        ("1.5g", 1_610_612_736),
        ("0.5k", 512),
    ],
)
def test_sizes_are_dockers(text: str, size: int) -> None:
    assert values.parse_bytes(text, flag="--memory", example="8g") == size


@pytest.mark.parametrize("text", ["", "g", "0", "0g", "-1g", "+1g", "1t", "1e9", "1.2.3g", "1 g", "two", ".5g", "0.4b"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        values.parse_bytes(text, flag="--memory", example="8g")
    assert str(caught.value) == f"--memory must be a size such as 8g; got '{text}'"
    assert caught.value.hint == "--memory 8g"


@pytest.mark.parametrize(
    ("size", "text"),
    [(2_147_483_648, "2g"), (1_610_612_736, "1536m"), (536_870_912, "512m"), (1024, "1k"), (1025, "1025b"), (1, "1b")],
)
def test_text_is_the_largest_whole_unit(size: int, text: str) -> None:
    assert values.text(size) == text


@given(st.integers(min_value=1, max_value=2**48))
def test_text_reads_back(size: int) -> None:
    assert values.parse_bytes(values.text(size), flag="--memory", example="8g") == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60m", 3600), ("1h30m", 5400), ("90s", 90), ("30s", 30), ("120d", 10_368_000), ("1d2h3m4s", 93_784)],
)
def test_durations(text: str, seconds: int) -> None:
    assert values.parse_duration_s(text, "--max-run-time") == seconds


@pytest.mark.parametrize(
    "text",
    [
        "29s",
        "120d1s",
        "",
        "60",
        "m",
        "1.5h",
        "30m1h",
        "-60m",
        " 60m",
        "60 m",
        "60m\n",
        "\u0666\u0660m",
        "$(reboot)",
        "9" * 4096,
    ],
    ids=str,
)
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        values.parse_duration_s(text, "--max-run-time")
    shown = values.shown(text)
    rule = "--max-run-time must be a duration such as 60m or 1h30m, from 30 s to 120 d"
    assert str(caught.value) == f"{rule}; got '{shown}'"
    assert caught.value.hint == "--max-run-time 60m"


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.02", 0.02), ("2.5 %", 0.025), (" 2% ", 0.02)])
def test_parse_share(text: str, share: float) -> None:
    assert values.parse_share(text, "--until", example="1%") == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "100%", "x", "-1%", "2", "nan", "10001"])
def test_text_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        values.parse_share(text, "--until", example="1%", most=0.5)
    message = f"error: --until must be a share such as 1%, from 0.01 % to 50 %; got '{text}'"
    assert raised.value.report() == f"{message}\nhint: --until 1%"

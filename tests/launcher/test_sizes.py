import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import sizes
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
    assert sizes.parse_bytes(text, flag="--memory", example="8g") == size


@pytest.mark.parametrize("text", ["", "g", "0", "0g", "-1g", "+1g", "1t", "1e9", "1.2.3g", "1 g", "two", ".5g", "0.4b"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        sizes.parse_bytes(text, flag="--memory", example="8g")
    assert str(caught.value) == f"--memory must be a size such as 8g; got '{text}'"
    assert caught.value.hint == "--memory 8g"


@pytest.mark.parametrize(
    ("size", "text"),
    [(2_147_483_648, "2g"), (1_610_612_736, "1536m"), (536_870_912, "512m"), (1024, "1k"), (1025, "1025b"), (1, "1b")],
)
def test_text_is_the_largest_whole_unit(size: int, text: str) -> None:
    assert sizes.text(size) == text


@given(st.integers(min_value=1, max_value=2**48))
def test_text_reads_back(size: int) -> None:
    assert sizes.parse_bytes(sizes.text(size), flag="--memory", example="8g") == size

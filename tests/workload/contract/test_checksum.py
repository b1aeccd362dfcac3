import io
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.contract import operating_system


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Forget the chosen implementation, before and after the test."""
    operating_system._fastest.cache_clear()
    yield
    operating_system._fastest.cache_clear()


@pytest.mark.parametrize(
    ("content", "text"),
    # RFC 3720 B.4: E3069283 for "123456789", 8A9136AA for 32 zeros.
    [(b"", "AAAAAA=="), (b"123456789", "4waSgw=="), (bytes(32), "ipE2qg==")],
)
def test_text(content: bytes, text: str) -> None:
    assert operating_system.crc32c_of(io.BytesIO(content)) == text


def test_the_rest_of_a_stream_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO(b"?" + bytes(range(256)) * 5)
    content.read(1)
    monkeypatch.setattr(operating_system, "BLOCK_BYTES", 100)
    assert operating_system.crc32c_of(content) == operating_system.crc32c_text(
        operating_system.crc32c(bytes(range(256)) * 5)
    )


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_both_ways_agree(data: bytes, crc: int) -> None:
    import google_crc32c

    assert google_crc32c.implementation == "c"
    assert operating_system._in_python(crc, data) == google_crc32c.extend(crc, data)


@pytest.mark.usefixtures("forgetful")
def test_the_compiled_one_is_used_where_it_is() -> None:
    import google_crc32c

    assert operating_system._fastest() is google_crc32c.extend


@pytest.mark.usefixtures("forgetful")
def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert operating_system._fastest() is operating_system._in_python
    assert operating_system.crc32c(b"6789", operating_system.crc32c(b"12345")) == 0xE3069283


@pytest.mark.usefixtures("forgetful")
def test_a_package_without_its_compiled_part_is_not_used_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import google_crc32c

    monkeypatch.setattr(google_crc32c, "implementation", "python")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operating_system._fastest() is operating_system._in_python

"""Files that are replaced whole, and their checksums."""

import io
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.contract import operating_system
from workload.contract.operating_system import replace_text, replacing


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_replaced_at_once(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path, shared=shared) as file:
        file.write("né".encode())
        file.flush()
        (beside,) = (other for other in tmp_path.iterdir() if other != path)
        assert (path.read_text(), beside.suffix) == ("old", ".tmp")
    assert path.read_text(encoding="utf-8") == "né"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_breaks_off_leaves_the_old_file(shared: bool, error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path, shared=shared) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_a_shared_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path, shared=True) as first, replacing(path, shared=True) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first", "the last that was finished"


def test_text_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append((tmp_path / "a.txt").exists()))
    replace_text(tmp_path / "a.txt", "x")
    replace_text(tmp_path / "b.txt", "x", durable=False)
    assert flushed == [False]


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

import os
from pathlib import Path

import pytest

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

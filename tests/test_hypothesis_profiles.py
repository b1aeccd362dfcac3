from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[Any]:
    found: list[Any] = []

    @settings(settings.get_profile("day"), max_examples=50)
    @given(st.lists(st.integers() | st.floats() | st.text() | st.binary(), max_size=9))
    def collect(values: list[Any]) -> None:
        found.append(repr(values))

    collect()
    return found


def test_by_day_other_modules_change_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    (tmp_path / "loaded_later.py").write_text("A = (123456, 654321, 0.123, 0.456, 'zebra', 'giraffe', b'ox', b'yak')\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("loaded_later")
    assert drawn() == before

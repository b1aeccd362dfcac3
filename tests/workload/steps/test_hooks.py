"""The end of a script's import of torch is noticed, whatever the script asked Python before."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from workload.steps import hooks


def test_a_search_for_a_module_is_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "searched_first.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    seen: list[int] = []
    hooks.when_imported("searched_first", lambda: seen.append(sys.modules["searched_first"].value))
    for _ in range(2):
        assert importlib.util.find_spec("searched_first") is not None
    assert not seen
    module = importlib.import_module("searched_first")
    importlib.reload(module)
    assert seen == [1]
    del sys.modules["searched_first"]

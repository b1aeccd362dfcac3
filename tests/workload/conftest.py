"""Machines that exist only as a tree of files, a few variables and what their tools print; ceilings that are clean."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from workload.environment.machine import HostSystem

LayOut = Callable[..., HostSystem]
Test = TypeVar("Test", bound=Callable[..., None])


def in_a_copy(test: Test) -> Test:
    """Mark a test that runs a script in a copy of a process that has loaded torch, which takes seconds."""
    no_copies = pytest.mark.skipif(sys.platform == "darwin", reason="copies a process that has loaded torch")
    return pytest.mark.slow(pytest.mark.world(no_copies(test)))


# What tools print on a machine that has none of those which describe it.
SILENT = {"systemd-detect-virt": None, "lscpu": None, "git": None}


class WithoutFiles(HostSystem):
    """This machine, as if it had no /proc, /sys and os-release."""

    def text(self, path: str) -> str | None:
        assert path.startswith(("/proc", "/sys", "/etc", "/usr")), path
        return None

    def exists(self, path: str) -> bool:
        assert path.startswith(("/proc", "/sys")), path
        return False


@pytest.fixture
def lay_out(tmp_path: Path) -> LayOut:
    """`lay_out({path: text}, environ={…}, tools={"lscpu": output})`; a tool that is not named must not be asked.

    Calls add to the same files, but those with another name of `apart`.
    """
    base = tmp_path / "root"

    def build(
        files: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        tools: Mapping[str, str | None] | None = None,
        apart: str = "",
    ) -> HostSystem:
        root = base / apart.replace("/", "")
        root.mkdir(parents=True, exist_ok=True)
        for path, text in (files or {}).items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

        def tool(*argv: str) -> str | None:
            assert argv[0] in (tools or {}), f"nobody was to ask {argv}"
            return (tools or {})[argv[0]]

        return HostSystem(root=root, environ=environ or {}, tool=tool)

    return build


@pytest.fixture
def without_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that tests run on may be as busy as it likes: its ceilings count as clean."""
    monkeypatch.setattr("workload.measure.ceiling_rates.MeasuredRate.doubt", None)
    monkeypatch.setattr("workload.contract.record.MeasuredRate.is_by_cpu_time", False)

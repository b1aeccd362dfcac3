"""Machines that exist only as a tree of files, a few variables and what their tools print."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from workload.environment.machine import HostSystem

LayOut = Callable[..., HostSystem]
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
    """`lay_out({path: text}, environ={…}, tools={"lscpu": output})`; a tool that is not named must not be asked."""
    root = tmp_path / "root"
    root.mkdir()

    def build(
        files: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        tools: Mapping[str, str | None] | None = None,
    ) -> HostSystem:
        for path, text in (files or {}).items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

        def tool(*argv: str) -> str | None:
            assert argv[0] in (tools or {}), f"nobody was to ask {argv}"
            return (tools or {})[argv[0]]

        return HostSystem(root=root, environ=environ or {}, tool=tool)

    return build

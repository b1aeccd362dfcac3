"""Places of ncu, and their order."""

from pathlib import Path

from workload.environment.machine import installed_ncus


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_path_comes_first_then_the_newest(tmp_path: Path) -> None:
    old = executable(tmp_path / "opt/nvidia/nsight-compute/2022.3.0/ncu")
    newer = executable(tmp_path / "opt/nvidia/nsight-compute/2024.1.1/ncu")
    newest = executable(tmp_path / "opt/nvidia/nsight-compute/2024.10.0/ncu")
    mine = executable(tmp_path / "bin/ncu")
    (tmp_path / "usr/local/cuda/bin").mkdir(parents=True)
    (tmp_path / "usr/local/cuda/bin/ncu").symlink_to(newer)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/ncu").write_text("not executable")
    programs = installed_ncus({"PATH": f"{tmp_path}/elsewhere:{tmp_path}/bin:"}, tmp_path)
    assert programs == [mine, newest, newer, old]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert installed_ncus({}, tmp_path) == []

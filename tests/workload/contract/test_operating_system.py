"""What differs on Windows. How whole programs fare there: tests/test_windows.py."""

import os
import sys
from collections.abc import Callable
from pathlib import Path, PureWindowsPath

import pytest

from workload.contract import operating_system
from workload.contract.bundle import make_output
from workload.contract.errors import RunFailedError, UsageError
from workload.contract.operating_system import replace_text
from workload.contract.process import ChildEnd

PATHS = [
    *(r"results\t4", r"C:\results", r"\\server\share\results", r"..\results", ".", r"C:results", r"results\CONSOLE"),
    *(r"results\.sweep-night.lock", "COM10"),
    *(r"results\a:b", "what?", "a\nb", "CON", r"C:\nul\results", "aux.html", "COM¹", "COM0"),
    *(r"results.\t4", "results ", "..."),
]


def test_paths_that_windows_cannot_have(golden: Callable[[str, str], None]) -> None:
    whys = {path: operating_system.why_impossible(PureWindowsPath(path)) for path in PATHS}
    golden("windows_paths.txt", "".join(f"{path!r}: {why or 'possible'}\n" for path, why in whys.items()))


@pytest.mark.parametrize("name", ["CON", "results."])
def test_such_a_path_is_refused_on_windows_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    if sys.platform != "win32":
        make_output(tmp_path / "here" / name)
        replace_text(tmp_path / "here" / name / "aux", "text")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match=rf"{name}' is no path for Windows: '{name}' ") as refused:
        make_output(tmp_path / name)
    assert refused.value.hint == "give another name, for example results"
    with pytest.raises(UsageError, match="'aux' is the name of a device"):
        replace_text(tmp_path / "aux", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(("failures", "replaced"), [(0, True), (3, True), (99, False)])
def test_replacing_waits_on_windows_for_who_reads_the_old_file(
    failures: int, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, left, really = list[float](), [failures], Path.replace

    def replace(new: Path, path: Path) -> Path:
        left[0] -= 1
        if left[0] >= 0:
            raise PermissionError(13, "Access is denied")
        return really(new, path)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(operating_system.time, "sleep", slept.append)
    monkeypatch.setattr(sys, "platform", "win32")
    (tmp_path / "run.json").write_text("old", encoding="utf-8")
    if replaced:
        replace_text(tmp_path / "run.json", "new")
    else:
        with pytest.raises(PermissionError):
            replace_text(tmp_path / "run.json", "new")
    assert (tmp_path / "run.json").read_text(encoding="utf-8") == ("new" if replaced else "old")
    assert slept == list(operating_system.REPLACE_PAUSES_S[:failures])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="there it waits")
def test_elsewhere_a_replacement_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_text(tmp_path / "run.json", "new")


def test_a_lock_lasts_until_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w", encoding="utf-8") as first, (tmp_path / "lock").open("a") as second:
        assert operating_system.lock(first)
        assert not operating_system.lock(second)
        first.close()
        assert operating_system.lock(second)


def test_this_process_is_alive() -> None:
    assert operating_system.is_alive(os.getpid())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0xC0000005, "the trainer crashed (Windows status 0xc0000005); its bundle keeps the steps so far"),
        (0xBFFFFFFF, None),
        (1, None),
    ],
)
def test_a_crash_on_windows_is_a_failed_run(code: int, message: str | None) -> None:
    error = ChildEnd(code=code, signal=None, out_of_memory=False).error()
    assert (None if error is None else str(error)) == message
    assert error is None or isinstance(error, RunFailedError)

from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.ncu.table import EXPORT, NcuFileError
from tests.analysis.readers.ncu.ncu_files import TIME, line, save, wide
from workload.contract.errors import ExitCode

CONNECTED = "==PROF== Connected to process 13129 (/usr/bin/python3.11)\n==PROF== Disconnected from process 13129\n"
PROGRAM_FAILED = "==ERROR== The application returned an error code"
BUSY = "==ERROR== Profiling failed because a driver resource was unavailable.\n"
SUMMARY = line(
    ["Process ID", "Process Name", "Kernel Name", "Invocations", "Metric Name", "Minimum", "Maximum", "Average"]
)


FORBIDDEN = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.\n"
TEXT = "  void k(int) (64, 64, 1)x(16, 16, 1), Context 1, Stream 7, Device 0, CC 8.6\n    Section: GPU Speed\n"
METRICS = "Metric Name                               Metric Unit         Metric Value\n"
NSYS_SUMMARY = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n"
LONG_LINE = "\x1b[31m" + "y" * 500
NO_ID = "no line has the columns ID and Kernel Name; the first one is"


@pytest.mark.parametrize(
    ("content", "reason", "hint"),
    [
        # What the reason and the hint must name.
        ("", "empty", "profile again"),
        ("\ufeff\r\n \n", "empty", "profile again"),
        (CONNECTED + "==WARNING== No kernels were profiled.\n", "no kernels", "--kernel-name"),
        (CONNECTED + "==WARNING== No ranges were profiled.\n", "no ranges", "--nvtx-include"),
        (CONNECTED + f"{PROGRAM_FAILED} (1).\n", "error code 1", "without ncu first"),
        (CONNECTED + FORBIDDEN, "(ERR_NVGPUCTRPERM)", "as root"),
        (BUSY, "DCGM, or a second profiler", "dcgmi profile --pause"),
        (CONNECTED + "==ERROR== Unknown Error 9.\n", "ncu says: Unknown Error 9.", "ncu names"),
        ("x\n" * 60_000 + "==ERROR== far below\n", "ncu says: far below", "ncu names"),
        ("==PROF== Connected to process 1 (a)\n", "messages of ncu", EXPORT),
        (CONNECTED + TEXT, "without --csv", EXPORT),
        (METRICS, "without --csv", EXPORT),
        (SUMMARY, "without single launches", f"without --print-summary: {EXPORT}"),
        ("Kernel Name,Count,Total FLOP\nk,3,5\n", "without single launches", EXPORT),
        (NSYS_SUMMARY, "a summary of Nsight Systems", "cuda_gpu_trace"),
        (b"\x1f\x8b\x08 no gzip", "the gzip file ends too early", "copy it again"),
        (b"PK\x03\x04rest", "a ZIP archive", "save the sheet as CSV"),
        (b"NVR\x00\x02\x00", "under another name", "ends in .ncu-rep"),
        (b"\x7fELF\x00\x01", "it is a binary file", "import text"),
        ("step,loss\n0,1\n", f"{NO_ID} 'step,loss'", EXPORT),
        (LONG_LINE, f"{NO_ID} '[31m{'y' * 156}…'", EXPORT),
        (wide({TIME: "ns"}, []), "no kernel launch", "--launch-count 0 profiles all"),
        (line(["ID", "Kernel Name", TIME]) + ',,"ns', "no kernel launch", "profile again"),
        (line(["ID", "Kernel Name", TIME]), "no kernel launch", "profile again"),
    ],
)
def test_which_failure_it_is(content: str | bytes, reason: str, hint: str, tmp_path: Path) -> None:
    path = save(tmp_path, content)
    with pytest.raises(NcuFileError) as caught:
        ncu.read(path)
    assert reason in caught.value.reason
    assert hint in (caught.value.hint or "")
    assert str(caught.value) == f"'{path}' has no table of Nsight Compute: {caught.value.reason}"
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("suffix", [".csv", ".ncu-rep"])
def test_no_file(suffix: str, tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / f"no{suffix}", "No such file or directory"),
        (tmp_path / f"d{suffix}", "Is a directory"),
    ]:
        if path.name.startswith("d"):
            path.mkdir()
        with pytest.raises(NcuFileError) as caught:
            ncu.read(path)
        assert str(caught.value) == f"'{path}' has no table of Nsight Compute: it cannot be read: {reason}"


def test_a_cell_without_end(tmp_path: Path) -> None:
    damaged = wide({TIME: "ns"}, [["5"], ["6"]]).replace('"6"', '"6' + "x" * (17 << 20) + '"\n"')
    with pytest.raises(NcuFileError) as caught:
        ncu.read(save(tmp_path, damaged + '"'))
    assert caught.value.reason == "line 3 below its header is damaged: field larger than field limit (16777216)"

from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.ncu.errors import EXPORT, Failure, NcuFileError
from tests.analysis.readers.ncu.ncu_files import TIME, line, save, wide
from workload.contract.errors import ExitCode

CONNECTED = "==PROF== Connected to process 13129 (/usr/bin/python3.11)\n==PROF== Disconnected from process 13129\n"
SUMMARY = line(
    ["Process ID", "Process Name", "Kernel Name", "Invocations", "Metric Name", "Minimum", "Maximum", "Average"]
)


@pytest.mark.parametrize(
    ("content", "failure", "reason", "hint"),
    [
        ("", Failure.EMPTY, "it is empty", "check whether ncu could write it, and profile again"),
        ("\ufeff\r\n \n", Failure.EMPTY, "it is empty", "check whether ncu could write it, and profile again"),
        (
            CONNECTED + "==WARNING== No kernels were profiled.\n",
            Failure.NO_KERNELS,
            "ncu profiled no kernels",
            "check ncu's filters (--kernel-name, --nvtx-include, --profile-from-start off), and profile again",
        ),
        (
            CONNECTED + "==WARNING== No ranges were profiled.\n",
            Failure.NO_KERNELS,
            "ncu profiled no ranges",
            "check ncu's filters (--kernel-name, --nvtx-include, --profile-from-start off), and profile again",
        ),
        (
            CONNECTED + "==ERROR== The application returned an error code (1).\n",
            Failure.APPLICATION_ERROR,
            "the profiled program ended with error code 1",
            "run the program without ncu first, and profile again once it works",
        ),
        (
            CONNECTED
            + "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n==WARNING== No kernels were profiled.\n",
            Failure.COUNTERS_LOCKED,
            "ncu was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM)",
            "profile again as root, or with NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable.\n",
            Failure.COUNTERS_BUSY,
            "another tool used the GPU's counters: DCGM, or a second profiler",
            "dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
        ),
        (
            "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock.\n",
            Failure.LOCK_FILE,
            "the lock file of another user's ncu blocked this one",
            "TMPDIR=$HOME ncu … and profile again",
        ),
        (
            CONNECTED + "==ERROR== Unknown Error on device 0.\n",
            Failure.NCU_ERROR,
            "ncu says: Unknown Error on device 0.",
            "solve the problem that ncu names, and profile again",
        ),
        (
            "x\n" * 60_000 + "==ERROR== far below\n",
            Failure.NCU_ERROR,
            "ncu says: far below",
            "solve the problem that ncu names, and profile again",
        ),
        (
            "==PROF== Connected to process 1 (a)\n",
            Failure.ONLY_CONNECTED,
            "it contains only messages of ncu; ncu was interrupted, or its table is in another file",
            f"look for a .ncu-rep file: {EXPORT}",
        ),
        (
            CONNECTED
            + "  void k(int) (64, 64, 1)x(16, 16, 1), Context 1, Stream 7, Device 0, CC 8.6\n    Section: GPU Speed\n",
            Failure.PLAIN_TEXT,
            "it is ncu's text output, written without --csv",
            EXPORT,
        ),
        (
            "Metric Name                               Metric Unit         Metric Value\n",
            Failure.PLAIN_TEXT,
            "it is ncu's text output, written without --csv",
            EXPORT,
        ),
        (
            SUMMARY,
            Failure.AGGREGATED,
            "it is an aggregated table without single launches",
            f"without --print-summary: {EXPORT}",
        ),
        (
            "Kernel Name,Count,Total FLOP\nk,3,5\n",
            Failure.AGGREGATED,
            "it is an aggregated table without single launches",
            f"without --print-summary: {EXPORT}",
        ),
        (
            "==17== NVPROF is profiling process 17\n",
            Failure.OTHER_PROFILER,
            "it comes from another profiler (nvprof or nsys), which does not read these counters",
            "profile with ncu; of nsys: nsys stats --report cuda_gpu_trace --format csv FILE.nsys-rep > trace.csv",
        ),
        (
            "Time (%),Total Time (ns),Instances,Avg (ns),Name\n",
            Failure.OTHER_PROFILER,
            "it comes from another profiler (nvprof or nsys), which does not read these counters",
            "profile with ncu; of nsys: nsys stats --report cuda_gpu_trace --format csv FILE.nsys-rep > trace.csv",
        ),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            Failure.NOT_THE_FILE,
            "it is a Git LFS pointer, not the file",
            "git lfs pull",
        ),
        ("\n<!DOCTYPE html>\n", Failure.NOT_THE_FILE, "it is a web page, not the file", "download the raw file"),
        (
            b"\x1f\x8b\x08 no gzip",
            Failure.DAMAGED,
            "the gzip file is damaged (Error -3 while decompressing data: unknown header flags set)",
            "copy it again from the machine that made it",
        ),
        (
            b"PK\x03\x04rest",
            Failure.NOT_TEXT,
            "it is a ZIP archive or a spreadsheet",
            "save the sheet as CSV, or unpack the archive",
        ),
        (b"\xfd7zXZ", Failure.NOT_TEXT, "it is compressed with xz", "xz -d it first"),
        (
            b"SQLite format 3\x00",
            Failure.NOT_TEXT,
            "it is a database, as Nsight Systems exports",
            "nsys stats --report cuda_gpu_trace --format csv FILE > trace.csv",
        ),
        (
            b"NVR\x00\x02\x00",
            Failure.NOT_TEXT,
            "it is a report of Nsight Compute under another name",
            "rename it so that its name ends in .ncu-rep",
        ),
        (b"\x7fELF\x00\x01", Failure.NOT_TEXT, "it is not text", EXPORT),
        (
            "step,loss\n0,1\n",
            Failure.FOREIGN,
            "no line has the columns ID and Kernel Name; the first one is 'step,loss'",
            EXPORT,
        ),
        (
            "\x1b[31m" + "y" * 500,
            Failure.FOREIGN,
            f"no line has the columns ID and Kernel Name; the first one is '[31m{'y' * 156}…'",
            EXPORT,
        ),
        (
            wide({TIME: "ns"}, []),
            Failure.NO_LAUNCHES,
            "it has a header, but no kernel launch",
            "profile again; --launch-count 0 profiles all",
        ),
        (
            line(["ID", "Kernel Name", TIME]) + ',,"ns',
            Failure.NO_LAUNCHES,
            "it has a header, but no kernel launch",
            "profile again; --launch-count 0 profiles all",
        ),
        (
            line(["ID", "Kernel Name", TIME]),
            Failure.NO_LAUNCHES,
            "it has a header, but no kernel launch",
            "profile again; --launch-count 0 profiles all",
        ),
    ],
)
def test_which_failure_it_is(content: str | bytes, failure: Failure, reason: str, hint: str, tmp_path: Path) -> None:
    path = save(tmp_path, content)
    with pytest.raises(NcuFileError) as caught:
        ncu.read(path)
    assert caught.value.failure is failure
    assert caught.value.reason == reason
    assert caught.value.report() == f"error: '{path}' has no table of Nsight Compute: {reason}\nhint: {hint}"
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("suffix", [".csv", ".ncu-rep"])
def test_no_file(suffix: str, tmp_path: Path) -> None:
    for path, said in [
        (tmp_path / f"no{suffix}", "No such file or directory"),
        (tmp_path / f"d{suffix}", "Is a directory"),
    ]:
        if path.name.startswith("d"):
            path.mkdir()
        with pytest.raises(NcuFileError) as caught:
            ncu.read(path)
        assert caught.value.failure is Failure.ABSENT
        assert str(caught.value) == f"'{path}' has no table of Nsight Compute: it cannot be read: {said}"


def test_a_cell_without_end(tmp_path: Path) -> None:
    damaged = wide({TIME: "ns"}, [["5"], ["6"]]).replace('"6"', '"6' + "x" * (17 << 20) + '"\n"')
    with pytest.raises(NcuFileError) as caught:
        ncu.read(save(tmp_path, damaged + '"'))
    assert caught.value.failure is Failure.DAMAGED
    assert caught.value.reason == "line 3 below its header is damaged: field larger than field limit (16777216)"

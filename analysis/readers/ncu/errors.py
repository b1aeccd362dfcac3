"""Explain why a file has no readable table of ncu: known failures by name, each with the next step."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from analysis.readers.text import binary_format
from workload.contract.errors import UsageError
from workload.contract.ncu_csv import shortened

# First bytes of an .ncu-rep file.
REPORT_MAGIC = b"NVR\x00"
EXPORT = "LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw --print-units base > kernels.csv"


class Failure(StrEnum):
    """Reasons why a file has no table of kernels."""

    ABSENT = "absent"
    EMPTY = "empty"
    NO_KERNELS = "no kernels"
    COUNTERS_LOCKED = "counters locked"
    COUNTERS_BUSY = "counters busy"
    LOCK_FILE = "lock file"
    APPLICATION_ERROR = "application error"
    NCU_ERROR = "ncu error"
    ONLY_CONNECTED = "only connected"
    PLAIN_TEXT = "plain text"
    AGGREGATED = "aggregated"
    OTHER_PROFILER = "other profiler"
    NOT_TEXT = "not text"
    NOT_THE_FILE = "not the file"
    FOREIGN = "foreign"
    NO_LAUNCHES = "no launches"
    MIXED_NUMBERS = "mixed numbers"
    DAMAGED = "damaged"
    IMPOSSIBLE = "impossible"


class NcuFileError(UsageError):
    """A file without a readable table of kernels; `failure` is the known failure that was recognized."""

    def __init__(
        self,
        path: Path,
        failure: Failure,
        reason: str,
        *,
        hint: str,
        what: str = "has no table of Nsight Compute",
    ) -> None:
        super().__init__(f"'{path}' {what}: {reason}", hint=hint)
        self.path = path
        self.failure = failure
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A failure that is recognized by searching for `pattern`; `{0}` in `reason` is the pattern's first group."""

    pattern: str
    failure: Failure
    reason: str
    hint: str


# Causes come before their consequences: a locked counter also ends in "No kernels were profiled".
# Patterns of ncu are texts of Nsight Compute 2022.3 to 2024.1. Patterns of other tools are texts that a tool prints,
# or writes at the beginning of a file.
_KNOWN = (
    _Known(
        pattern="ERR_NVGPUCTRPERM",
        failure=Failure.COUNTERS_LOCKED,
        reason="ncu was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM)",
        hint="profile again as root, or with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    _Known(
        pattern="driver resource was unavailable",
        failure=Failure.COUNTERS_BUSY,
        reason="another tool used the GPU's counters: DCGM, or a second profiler",
        hint="dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
    ),
    _Known(
        pattern="Failed to open/create lock file",
        failure=Failure.LOCK_FILE,
        reason="the lock file of another user's ncu blocked this one",
        hint="TMPDIR=$HOME ncu … and profile again",
    ),
    _Known(
        pattern=r"No (kernels|ranges) were profiled",
        failure=Failure.NO_KERNELS,
        reason="ncu profiled no {0}",
        hint="check ncu's filters (--kernel-name, --nvtx-include, --profile-from-start off), and profile again",
    ),
    _Known(
        pattern=r"==ERROR== The application returned an error code \((-?\d+)\)",
        failure=Failure.APPLICATION_ERROR,
        reason="the profiled program ended with error code {0}",
        hint="run the program without ncu first, and profile again once it works",
    ),
    _Known(
        pattern=r"==ERROR== ?([^\r\n]*)",
        failure=Failure.NCU_ERROR,
        reason="ncu says: {0}",
        hint="solve the problem that ncu names, and profile again",
    ),
    _Known(
        pattern=r"(?m)^[ \t]*(?:Section: |Metric Name +Metric Unit +Metric Value)",
        failure=Failure.PLAIN_TEXT,
        reason="it is ncu's text output, written without --csv",
        hint=EXPORT,
    ),
    _Known(
        pattern=r"(?m)^(?=[^\r\n]*Kernel Name)(?=[^\r\n]*(?:Invocations|Minimum|Average|Count|Calls|mean|total))",
        failure=Failure.AGGREGATED,
        reason="it is an aggregated table without single launches",
        hint=f"without --print-summary: {EXPORT}",
    ),
    _Known(
        pattern=r"(?m)^(?:==\d+== (?:NVPROF|Profiling)|[^\r\n]*Total Time \(ns\),\"?Instances)",
        failure=Failure.OTHER_PROFILER,
        reason="it comes from another profiler (nvprof or nsys), which does not read these counters",
        hint="profile with ncu; to import only the times of a report of nsys: "
        "nsys stats --report cuda_gpu_trace --format csv FILE.nsys-rep > trace.csv",
    ),
    _Known(
        pattern=r'\A\s*[\[{](?=[^\r\n]{0,200}(?:"traceEvents"|"schemaVersion"))',
        failure=Failure.OTHER_PROFILER,
        reason="the file is a trace of torch.profiler",
        hint="analyze import FILE --model resnet50 --batch-size 32, then analyze kernels results",
    ),
    _Known(
        pattern=r"\A\s*version https://git-lfs",
        failure=Failure.NOT_THE_FILE,
        reason="it is a Git LFS pointer, not the file",
        hint="git lfs pull",
    ),
    _Known(
        pattern=r"(?i)\A\s*<(?:!doctype|html)",
        failure=Failure.NOT_THE_FILE,
        reason="it is a web page, not the file",
        hint="download the raw file",
    ),
    _Known(
        pattern=r"==PROF==",
        failure=Failure.ONLY_CONNECTED,
        reason="it contains only messages of ncu; ncu was interrupted, or its table is in another file",
        hint=f"look for a .ncu-rep file: {EXPORT}",
    ),
)


def explain(path: Path, head: bytes, text: str) -> NcuFileError:
    """The error for a file without a table, judged by its first bytes and the part of its text that was kept."""
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        return NcuFileError(
            path, Failure.EMPTY, "it is empty", hint="check whether ncu could write it, and profile again"
        )
    if head.startswith(REPORT_MAGIC):
        reason = "it is a report of Nsight Compute under another name"
        return NcuFileError(path, Failure.NOT_TEXT, reason, hint="rename it so that its name ends in .ncu-rep")
    if binary := binary_format(head):
        return NcuFileError(path, Failure.NOT_TEXT, f"it is {binary[0]}", hint=binary[1])
    for known in _KNOWN:
        if match := re.search(known.pattern, text):
            groups = [shortened(group or "") for group in match.groups()]
            return NcuFileError(path, known.failure, known.reason.format(*groups), hint=known.hint)
    if b"\x00" in head:
        return NcuFileError(path, Failure.NOT_TEXT, "it is not text", hint=EXPORT)
    first = next(filter(None, map(str.strip, text.splitlines())), "")
    reason = f"no line has the columns ID and Kernel Name; the first one is '{shortened(first)}'"
    return NcuFileError(path, Failure.FOREIGN, reason, hint=EXPORT)

"""Explain why a file has no readable table of ncu: known failures by name, each with the next step."""

import re
from pathlib import Path

from analysis.readers.text import looks_like
from workload.contract.errors import UsageError
from workload.contract.ncu_csv import shortened

# First bytes of an .ncu-rep file.
REPORT_MAGIC = b"NVR\x00"
EXPORT = "LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw --print-units base > kernels.csv"


class NcuFileError(UsageError):
    """A file without a readable table of kernels."""

    def __init__(self, path: Path, reason: str, *, hint: str, what: str = "has no table of Nsight Compute") -> None:
        super().__init__(f"'{path}' {what}: {reason}", hint=hint)
        self.reason = reason


# Known failures: pattern of the text, reason (`{0}`: the pattern's first group), hint.
# Causes come before their consequences: a locked counter also ends in "No kernels were profiled".
# Patterns are texts of Nsight Compute 2022.3 to 2024.1.
_KNOWN = (
    (
        "ERR_NVGPUCTRPERM",
        "ncu was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM)",
        "profile again as root, or with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        "driver resource was unavailable",
        "another tool used the GPU's counters: DCGM, or a second profiler",
        "dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
    ),
    (
        r"No (kernels|ranges) were profiled",
        "ncu profiled no {0}",
        "check ncu's filters (--kernel-name, --nvtx-include, --profile-from-start off), and profile again",
    ),
    (
        r"==ERROR== The application returned an error code \((-?\d+)\)",
        "the profiled program ended with error code {0}",
        "run the program without ncu first, and profile again once it works",
    ),
    (
        r"==ERROR== ?([^\r\n]*)",
        "ncu says: {0}",
        "solve the problem that ncu names, and profile again",
    ),
    (
        r"(?m)^[ \t]*(?:Section: |Metric Name +Metric Unit +Metric Value)",
        "it is ncu's text output, written without --csv",
        EXPORT,
    ),
    (
        r"(?m)^(?=[^\r\n]*Kernel Name)(?=[^\r\n]*(?:Invocations|Minimum|Average|Count|Calls|mean|total))",
        "it is an aggregated table without single launches",
        f"without --print-summary: {EXPORT}",
    ),
    (
        r"==PROF==",
        "it contains only messages of ncu; ncu was interrupted, or its table is in another file",
        f"look for a .ncu-rep file: {EXPORT}",
    ),
)


def explain(path: Path, head: bytes, text: str) -> NcuFileError:
    """The error for a file without a table, judged by its first bytes and the part of its text that was kept."""
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        return NcuFileError(path, "it is empty", hint="check whether ncu could write it, and profile again")
    if head.startswith(REPORT_MAGIC):
        reason = "it is a report of Nsight Compute under another name"
        return NcuFileError(path, reason, hint="rename it so that its name ends in .ncu-rep")
    for pattern, reason, hint in _KNOWN:
        if match := re.search(pattern, text):
            groups = [shortened(group or "") for group in match.groups()]
            return NcuFileError(path, reason.format(*groups), hint=hint)
    if likely := looks_like(head, text):
        return NcuFileError(path, f"it is {likely[0]}", hint=likely[1])
    first = next(filter(None, map(str.strip, text.splitlines())), "")
    reason = f"no line has the columns ID and Kernel Name; the first one is '{shortened(first)}'"
    return NcuFileError(path, reason, hint=EXPORT)

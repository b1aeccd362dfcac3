"""Translates the output of a failed ncu into a reason and a next step. Texts are those of Nsight Compute 2024.1.1."""

import re

from workload.contract.text import minutes
from workload.profile import preflight
from workload.profile.status import ProfileError, ProfileStatus, unavailable
from workload.profile.supervise import End

# Prefix of ncu's own lines.
ERROR = "==ERROR=="
LOOK = "ncu/ncu.log in the bundle has the output of ncu"
AGAIN = "python -m workload profile BUNDLE"
NOTHING_PROFILED = ("No kernels were profiled", "No ranges were profiled")

# Rows: text that ncu prints, reason, hint. The text of a cause stands before the texts of its consequences. Any other
# error of ncu is passed on as it is.
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "driver resource was unavailable",
        "another tool uses the GPU's counters: DCGM, or a second profiler",
        "dcgmi profile --pause (afterwards --resume), or end the other profiler, and profile again",
    ),
    (
        "Failed to open/create lock file",
        "the lock file of another user's ncu blocks this one",
        "TMPDIR=$HOME python -m workload profile BUNDLE",
    ),
    (
        "driver is not compatible with Nsight Compute",
        "this ncu needs a newer NVIDIA driver",
        "upgrade the driver, or put an older ncu on PATH",
    ),
    (
        "Profiling is not supported on device",
        "this ncu does not support this GPU",
        "`ncu --list-chips` lists supported GPUs; use another Nsight Compute, or --profile torch",
    ),
    (
        "failed to connect to the CUDA driver",
        "ncu finds no CUDA driver",
        "`nvidia-smi` shows whether a driver is loaded; no stub libcuda.so may come before the driver's",
    ),
)


def explain(output: str, facts: preflight.Facts) -> ProfileError | None:
    """Reason why ncu failed, from the `output` of ncu and of the profiled process; None if the output does not tell."""
    if "ERR_NVGPUCTRPERM" in output:
        return preflight.restricted(facts)
    for text, reason, hint in KNOWN:
        if text in output:
            return unavailable(reason, hint=hint)
    return own_error(output) or _unknown(output)


def cut_off(end: End, limit_s: float, when: str) -> ProfileError | None:
    """Error for a process that was interrupted or reached its time limit, else None. `when`: progress, in words."""
    if end.interrupted:
        return ProfileError(ProfileStatus.INTERRUPTED, f"interrupted {when}", hint=AGAIN)
    if end.timed_out:
        reason = f"the time limit of {minutes(limit_s)} ended the profile {when}"
        return ProfileError(ProfileStatus.TIMED_OUT, reason, hint="fewer --profile-steps, or a smaller model")
    return None


def own_error(output: str) -> ProfileError | None:
    """Last error, a pair of lines, that the profiled process of our trainer printed; None if there is none."""
    errors = re.findall(r"^error: (.+)\nhint: (.+)$", output, re.MULTILINE)
    if not errors:
        return None
    reason, hint = errors[-1]
    return ProfileError(ProfileStatus.FAILED, f"the profiled process: {reason}", hint=hint)


def _unknown(output: str) -> ProfileError | None:
    if any(text in output for text in NOTHING_PROFILED):
        return ProfileError(
            ProfileStatus.FAILED,
            "ncu profiled no kernel",
            hint=f"{LOOK}; --profile torch shows whether any kernels run",
        )
    errors = [line.removeprefix(ERROR).strip() for line in output.splitlines() if line.startswith(ERROR)]
    return ProfileError(ProfileStatus.FAILED, f"ncu reports: {errors[0]}", hint=LOOK) if errors else None

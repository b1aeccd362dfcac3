"""Resource usage of this process and its reaped children, as `/usr/bin/time -v` reports it."""

import sys

from workload.contract.record import Usage

if sys.platform != "win32":
    import resource

# getrusage(2) counts the peak in KiB; macOS, by its own manual page, in bytes.
RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def measure(start_s: float, now_s: float) -> Usage | None:
    """Usage since the process started; None on Windows. `start_s` and `now_s`: start and present, on the same clock."""
    if sys.platform == "win32":
        return None
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    user_s, system_s = own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime
    elapsed_s = now_s - start_s
    return Usage(
        user_s=user_s,
        system_s=system_s,
        elapsed_s=elapsed_s,
        cpu_percent=100 * (user_s + system_s) / elapsed_s if elapsed_s > 0 else None,
        max_rss_bytes=max(own.ru_maxrss, children.ru_maxrss) * RSS_UNIT_BYTES,
        major_faults=own.ru_majflt + children.ru_majflt,
        minor_faults=own.ru_minflt + children.ru_minflt,
        voluntary_context_switches=own.ru_nvcsw + children.ru_nvcsw,
        involuntary_context_switches=own.ru_nivcsw + children.ru_nivcsw,
        fs_inputs=own.ru_inblock + children.ru_inblock,
        fs_outputs=own.ru_oublock + children.ru_oublock,
        swaps=own.ru_nswap + children.ru_nswap,
    )

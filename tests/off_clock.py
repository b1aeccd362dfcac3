"""Environment of a process whose clock is hours off: its date is wrong, but its waits are right.

libfaketime 0.9.10 cannot do this: Python 3.11 waits by CLOCK_MONOTONIC, which it breaks.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off_s(void) { return atol(getenv("CLOCK_OFF_S")); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += off_s();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
  int failed = real(now, zone);
  if (!failed) now->tv_sec += off_s();
  return failed;
}

time_t time(time_t *place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place) *place = now.tv_sec;
  return now.tv_sec;
}
"""


def shift(folder: Path, off_s: int) -> Mapping[str, str]:
    """Variables of such a process; they name a library, which is compiled in `folder`."""
    compiler = shutil.which("cc")
    if compiler is None or not Path("/proc").exists():
        pytest.skip("no C compiler for a library to preload: apt-get install gcc")
    source, library = folder / "off_clock.c", folder / "off_clock.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_OFF_S": str(off_s)}

import os

import pytest

from tests.workload.conftest import LayOut
from workload.environment import host

V2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
# Docker on version 1, without a namespace for control groups: only the container's own part is mounted.
V1_DOCKER = (
    "32 31 0:29 /docker/c1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)
V1_OWN = "4:memory:/docker/c1\n2:cpu,cpuacct:/docker/c1\n0::/\n"
V1_CPU, V1_MEMORY, TOP = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

CASES = {
    "v2: own group": (
        {"mounts": V2, "own": "0::/job\n", f"{TOP}/job/cpu.max": "150000 100000", f"{TOP}/job/memory.max": "1048576"},
        (1.5, 1048576, f"{TOP}/job"),
    ),
    "v2: no limit is named max": (
        {"mounts": V2, "own": "0::/job\n", f"{TOP}/job/cpu.max": "max 100000", f"{TOP}/job/memory.max": "max"},
        (None, None, f"{TOP}/job"),
    ),
    "v2: the limit of the group above binds": (
        {"mounts": V2, "own": "0::/a/b\n", f"{TOP}/a/cpu.max": "200000 100000", f"{TOP}/a/b/cpu.max": "max 100000",
         f"{TOP}/a/memory.max": "4096", f"{TOP}/a/b/memory.max": "8192"},
        (2.0, 4096, f"{TOP}/a"),
    ),
    "v2: the tighter of two": (
        {"mounts": V2, "own": "0::/a/b\n", f"{TOP}/a/cpu.max": "400000 100000", f"{TOP}/a/b/cpu.max": "50000 100000"},
        (0.5, None, f"{TOP}/a/b"),
    ),
    "v2: in a container's namespace the own group is the top": (
        {"mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "100000 100000", f"{TOP}/memory.max": "4096"},
        (1.0, 4096, TOP),
    ),
    "v2: a group outside the namespace": (
        {"mounts": V2, "own": "0::/../other\n", f"{TOP}/cpu.max": "100000 100000", "/sys/fs/other/cpu.max": "1 100000"},
        (1.0, None, TOP),
    ),
    "v1: own group": (
        {"mounts": V1, "own": V1_OWN, f"{V1_CPU}/docker/c1/cpu.cfs_quota_us": "250000",
         f"{V1_CPU}/docker/c1/cpu.cfs_period_us": "100000", f"{V1_MEMORY}/docker/c1/memory.limit_in_bytes": "4096"},
        (2.5, 4096, f"{V1_CPU}/docker/c1"),
    ),
    "v1: no limit is -1 and a huge number": (
        {"mounts": V1, "own": V1_OWN, f"{V1_CPU}/docker/c1/cpu.cfs_quota_us": "-1",
         f"{V1_CPU}/docker/c1/cpu.cfs_period_us": "100000",
         f"{V1_MEMORY}/docker/c1/memory.limit_in_bytes": "9223372036854771712"},
        (None, None, f"{V1_CPU}/docker/c1"),
    ),
    "v1: the container's part mounted at the top": (
        {"mounts": V1_DOCKER, "own": V1_OWN, f"{V1_CPU}/cpu.cfs_quota_us": "50000",
         f"{V1_CPU}/cpu.cfs_period_us": "100000", f"{V1_MEMORY}/memory.limit_in_bytes": "4096"},
        (0.5, 4096, V1_CPU),
    ),
    "v1: a namespace whose own group is outside the mounted part": (
        {"mounts": V1_DOCKER, "own": "2:cpu,cpuacct:/\n", f"{V1_CPU}/cpu.cfs_quota_us": "50000",
         f"{V1_CPU}/cpu.cfs_period_us": "100000"},
        (0.5, None, V1_CPU),
    ),
    "both: v2 mounted without controllers": (
        {"mounts": V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "own": V1_OWN,
         f"{V1_CPU}/cpu.cfs_quota_us": "300000", f"{V1_CPU}/cpu.cfs_period_us": "100000"},
        (3.0, None, V1_CPU),
    ),
    "garbage": (
        {"mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "fast please", f"{TOP}/memory.max": "much"},
        (None, None, TOP),
    ),
    "a period of zero": ({"mounts": V2, "own": "0::/\n", f"{TOP}/cpu.max": "100000 0"}, (None, None, TOP)),
    "none mounted": ({"mounts": "", "own": "0::/\n"}, (None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES.keys())
def test_limits(lay_out: LayOut, files: dict[str, str], expected: tuple[float | None, int | None, str | None]) -> None:
    names = {"mounts": "/proc/self/mountinfo", "own": "/proc/self/cgroup"}
    tightest = host.cgroup_limits(lay_out({names.get(name, name): text for name, text in files.items()}))
    assert (tightest.cpus, tightest.memory_bytes, tightest.cpu_folder) == expected


def test_limits_without_proc(lay_out: LayOut) -> None:
    assert host.cgroup_limits(lay_out()) == host.CgroupLimits(cpus=None, memory_bytes=None, cpu_folder=None)


@pytest.mark.parametrize(
    ("stat", "expected_s"),
    [
        ("usage_usec 9000000\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),
        ("nr_periods 10\nnr_throttled 3\nthrottled_time 2500000000\n", 2.5),
        ("usage_usec 9000000\n", None),
        ("throttled_usec\n", None),
        ("throttled_usec soon\n", None),
    ],
    ids=["v2 in microseconds", "v1 in nanoseconds", "controller off", "no value", "no number"],
)
def test_throttled(lay_out: LayOut, stat: str, expected_s: float | None) -> None:
    assert host.throttled_s(lay_out({"/group/cpu.stat": stat}), "/group") == expected_s


@pytest.mark.parametrize(
    ("shares", "own", "expected"), [(1, None, None), (2, None, "3"), (12, None, "1"), (2, "5", "5")]
)
def test_threads_for_a_share_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, shares: int, own: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda: 6.5)
    # Set first, so that pytest restores it.
    monkeypatch.setenv("OMP_NUM_THREADS", own or "")
    if own is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    host.limit_threads(shares)
    assert os.environ.get("OMP_NUM_THREADS") == expected

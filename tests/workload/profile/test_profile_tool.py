from collections.abc import Sequence
from pathlib import Path

import pytest

from workload.profile import diagnosis
from workload.profile.command import ProfileError, ProfileStatus
from workload.profile.diagnosis import Ncu

QUERY = """Chip ad104
------------- --------------- --------------- ----------
Metric Name   Metric Type     Metric Unit     Metric Description
------------- --------------- --------------- ----------
dram__bytes                   Counter         byte            # of bytes accessed in DRAM
sm__ops_path_tensor_src_tf32_dst_fp32  Counter                # of math ops
                                                              smsp__continued in the description
"""


class FakeNcu:
    """A fake `ncu`; raises on command lines that it does not know."""

    def __init__(
        self, *, version: str = "2024.1.1.0", chips: str = "ad102, ad104, gv100", metrics: str = QUERY
    ) -> None:
        self.answers = {
            ("--version",): f"NVIDIA (R) Nsight Compute Command Line Profiler\nVersion {version} (build 1) (public)\n",
            ("--list-chips",): chips,
            ("--help",): "  --disable-extra-suffixes      Disables the collection\n  --csv   Use\n",
            ("--query-metrics",): "==ERROR== Driver could not be loaded.\n",
            ("--query-metrics", "--chip", "ad102"): metrics,
            ("--query-metrics", "--chip", "gv100"): metrics,
        }

    def __call__(self, argv: Sequence[str]) -> str | None:
        return self.answers[tuple(argv[1:])]


def fake(**answers: str) -> Ncu:
    return Ncu(path=Path("/opt/ncu"), ask=FakeNcu(**answers))


def test_what_it_says_of_itself() -> None:
    ncu = fake()
    assert ncu.version() == "2024.1.1.0"
    assert ncu.chips() == {"ad102", "ad104", "gv100"}
    assert ncu.has_option("--disable-extra-suffixes")
    assert not ncu.has_option("--disable-extra")
    assert ncu.metrics("ad102") == {"dram__bytes", "sm__ops_path_tensor_src_tf32_dst_fp32"}
    assert ncu.metrics(None) == frozenset()
    broken = Ncu(path=Path("/opt/ncu"), ask=lambda _: None)
    assert (broken.version(), broken.chips(), broken.metrics("ad104")) == (None, frozenset(), frozenset())


def test_first_that_knows_the_chip_is_taken() -> None:
    too_new = Ncu(path=Path("/new/ncu"), ask=FakeNcu(version="2026.1.0.0", chips="gb202, ad104, tu104"))
    fitting = diagnosis.choose([too_new, fake()], "7.0")
    assert (fitting.ncu.path, fitting.chip, fitting.version) == (Path("/opt/ncu"), "gv100", "2024.1.1.0")
    assert "dram__bytes" in fitting.metrics


@pytest.mark.parametrize("capability", ["8.9", "12.0"])
def test_gpu_in_the_machine_knows_best(capability: str) -> None:
    answers = FakeNcu()
    answers.answers["--query-metrics",] = QUERY.replace("sm__ops_path_tensor_src_tf32_dst_fp32", "sm__own")
    fitting = diagnosis.choose([Ncu(path=Path("/opt/ncu"), ask=answers)], capability)
    assert fitting.chip is None
    assert fitting.metrics == {"dram__bytes", "sm__own"}


@pytest.mark.parametrize(
    ("chips", "capability", "reason", "hint"),
    [
        ("gv100, ad102", "6.0", "ncu 2024.1.1.0 at /opt/ncu is too new for compute capability 6.0", "--profile torch"),
        ("ad102, gh100", "7.0", "ncu 2024.1.1.0 at /opt/ncu is too new for compute capability 7.0", "2024.3 to 2025.3"),
        ("tu104, gv100", "8.9", "ncu 2024.1.1.0 at /opt/ncu is too old for compute capability 8.9", "a newer Nsight"),
        ("ad102, gv100", "12.0", "ncu 2024.1.1.0 at /opt/ncu is too old for compute capability 12.0", "a newer Nsight"),
        ("", "8.9", "ncu 2024.1.1.0 at /opt/ncu does not answer --list-chips", "install Nsight Compute"),
    ],
)
def test_too_new_and_too_old(chips: str, capability: str, reason: str, hint: str) -> None:
    with pytest.raises(ProfileError) as caught:
        diagnosis.choose([fake(chips=chips)], capability)
    assert str(caught.value) == reason
    assert hint in caught.value.hint
    assert caught.value.status is ProfileStatus.UNAVAILABLE

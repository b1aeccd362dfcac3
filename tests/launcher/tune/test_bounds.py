"""Bounds by hand: a step of 60 ms after 40 ms of waits; the optimizer takes 10 ms, the FLOP 20 ms at the ceiling."""

from dataclasses import replace

import pytest

from launcher.tune.bounds import bound_of
from tests.launcher.tune.script_runs import a_run, rows
from workload.contract.changes import changes_of
from workload.contract.record import Record

RUN = a_run()
GPU = replace(RUN, ceilings=None)
FEW_FAULTS = replace(RUN, timing=replace(RUN.timing, page_faults_per_s=4000))


@pytest.mark.parametrize(
    ("change", "run", "share"),
    [
        pytest.param("DataLoader(num_workers=2)", RUN, 0.4, id="waits: 40 of 100 ms"),
        pytest.param("optimizer(foreach=True)", RUN, 0.1, id="optimizer: 10 of 100 ms"),
        pytest.param("MALLOC_MMAP_MAX_=0", RUN, 0.055, id="kernel: 0.1 of 2 CPUs, and a tenth"),
        pytest.param("MALLOC_MMAP_MAX_=0", FEW_FAULTS, 0.011, id="4,000 page faults of 5 µs, of 2 CPUs, and a tenth"),
        pytest.param("MALLOC_MMAP_MAX_=0; MALLOC_TRIM_THRESHOLD_=0", RUN, 0.055, id="the larger of two"),
        pytest.param("channels_last", RUN, 0.4, id="all but 20 of 60 ms"),
        pytest.param("autocast(bfloat16)", RUN, 0.5, id="all but 10 ms at the ceiling of bf16"),
        pytest.param("torch.set_float32_matmul_precision(high)", RUN, None, id="no ceiling of TF32"),
        pytest.param("channels_last", GPU, None, id="no ceiling"),
        pytest.param("torch.set_num_threads(1)", RUN, None, id="the ceiling is of other threads"),
        pytest.param("DataLoader(pin_memory=True)", RUN, 0.8, id="waits and step"),
        pytest.param("THP_MEM_ALLOC_ENABLE=1", RUN, 0.455, id="kernel and step"),
    ],
)
def test_bound_is_the_gain_if_the_share_of_the_part_goes(change: str, run: Record, share: float | None) -> None:
    bound = bound_of(changes_of(change), run, rows(run))

    assert bound == (None if share is None else pytest.approx(share / (1 - share)))


def test_optimizer_whose_time_is_unknown_has_no_bound() -> None:
    unknown = [{**row, "optimizer_s": ""} for row in rows(RUN)]

    assert bound_of(changes_of("optimizer(fused=True)"), RUN, unknown) is None


def test_step_at_its_ceiling_has_nothing_to_gain() -> None:
    run = a_run(step_s=0.02, data_s=0.0)

    assert bound_of(changes_of("torch.compile"), run, rows(run)) == 0

"""Hidden and exposed communication in traces of a rank, against times added up by hand; in microseconds."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from analysis.readers import kineto
from analysis.readers.attribution import steps_of
from analysis.readers.communication import kind_of, rank_steps
from tests.analysis.readers.traces import gloo_ranks
from tests.analysis.readers.traces.kineto_traces import Event, annotation, document, kernel, launch, operator
from workload.contract.ranks import Collective, RankStep

REDUCE, EXCHANGE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "ncclDevKernel_SendRecv(...)"


# Bytes of the gradients of two layers in fp32.
BYTES = 4 * (256 * 256 + 256 + 10 * 256 + 10)
FIXTURE = Path(__file__).parent / "gloo"


def steps_in(events: list[Event], device: str | None) -> dict[int, RankStep]:
    trace = kineto.read(document(events), file="t.json")
    found = steps_of(trace, None)
    assert found is not None
    assert found.windows is not None
    return rank_steps(trace, found.windows, device, 4)


def us(step: RankStep) -> dict[str, Any]:
    """Times of a step in whole microseconds; of each kind: number, bytes, under way, exposed."""
    times = {name: round(getattr(step, f"{name}_s") * 1e6) for name in ("own", "data", "hidden", "exposed")}
    kinds = {
        str(kind): (found.number, found.bytes, round(found.own_s * 1e6), round(found.exposed_s * 1e6))
        for kind, found in step.kinds.items()
    }
    return times | kinds


def on_gpu(at: float, number: int) -> list[Event]:
    """A step of 1000, whose kernels run from 100 on: 200 and 100 of products, 200 and 20 of collectives."""
    first = 10 * number
    message = {"Collective name": "all_to_allv", "In msg nelems": 1000, "Out msg nelems": 500, "dtype": "Half"}
    exchange = kernel(EXCHANGE, at + 440, 20, first + 3, stream=9)
    return [
        annotation(f"ProfilerStep#{number}", at, 1000),
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, 7),
        operator("aten::mm", at + 10, 50),
        *(launch(first + each, at + 20 + each) for each in range(5)),
        kernel("sgemm", at + 100, 200, first),
        kernel("sgemm", at + 400, 100, first + 1),
        kernel(REDUCE, at + 250, 200, first + 2, stream=8),
        {**exchange, "args": exchange["args"] | message},
        kernel("Memcpy DtoD (Device -> Device)", at + 300, 100, first + 4, cat="gpu_memcpy"),
    ]


def test_on_a_gpu_communication_is_exposed_while_no_other_kernel_runs() -> None:
    # Launched before the trace began.
    before = kernel(REDUCE, 1010, 50, -1)
    found = steps_in([before, *on_gpu(1000, 7), *on_gpu(2000, 8), *on_gpu(3000, 10)], "0")
    # From 250 to 300 and from 400 to 460 beside products; from 300 to 400 beside a copy, which computes nothing.
    common = {
        "data": 7,
        "hidden": 110,
        "exposed": 100,
        "all_reduce": (1, 0, 200, 100),
        "all_to_all": (1, 2000, 20, 0),
    }
    # A step ends with the first kernel of the next one; before a step that is missing, with its own last kernel.
    assert {number: us(step) for number, step in found.items()} == {
        7: {"own": 900, **common},
        8: {"own": 300, **common},
        10: {"own": 300, **common},
    }


def on_cpu(at: float, number: int, *events: Event) -> list[Event]:
    """A step of 1000 with products until 300 and from 650 on, in an operator of autograd."""
    shifted = ({**event, "ts": event["ts"] + at} for event in events)
    return [
        annotation(f"ProfilerStep#{number}", at, 1000),
        operator("autograd::engine::evaluate_function: AddmmBackward0", at + 100, 600),
        *(operator("aten::mm", at + began, length) for began, length in ((10, 90), (110, 138), (250, 50), (650, 50))),
        *shifted,
    ]


def gloo(name: str, began: float, length: float) -> Event:
    return annotation(f"gloo:{name}", began, length) | {"tid": 99}


@pytest.mark.parametrize(
    ("calls", "own", "exposed"),
    [
        pytest.param([gloo("all_reduce", 150, 450)], 450, 300, id="the host waits from 300 on, inside an operator"),
        pytest.param([gloo("all_reduce", 150, 110)], 110, 0, id="the average ends beside a product"),
        pytest.param([gloo("all_reduce", 500, 100)], 100, 100, id="the host does something else before it waits"),
        pytest.param([gloo("all_reduce", 150, 700)], 700, 150, id="the step goes on and waits at its end"),
        pytest.param([gloo("all_reduce", 120, 300), gloo("all_reduce", 200, 400)], 480, 300, id="two at a time"),
        pytest.param([operator("c10d::allreduce_", 305, 5), gloo("all_reduce", 310, 200)], 205, 205, id="its call"),
        pytest.param([gloo("all_reduce", 310, 350)], 350, 340, id="its end is recorded late"),
        pytest.param([operator("gloo:all_reduce", 310, 200, tid=99)], 200, 200, id="as older versions record it"),
        pytest.param([], 0, 0, id="none"),
    ],
)
def test_on_a_cpu_a_gap_between_operators_is_a_wait_if_a_collective_ends_in_it(
    calls: list[Event], own: int, exposed: int
) -> None:
    found = [us(step) for step in steps_in([*on_cpu(0, 1, *calls), *on_cpu(1000, 2, *calls)], None).values()]
    assert [step.get("all_reduce", (0, 0, 0, 0))[2:] for step in found] == [(own, exposed)] * 2
    assert [(step["own"], step["hidden"], step["exposed"]) for step in found] == [
        (1000 - exposed, own - exposed, exposed)
    ] * 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Collective.ALL_REDUCE),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", Collective.BROADCAST),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", Collective.POINT_TO_POINT),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", Collective.REDUCE),
        ("_allgather_base", Collective.ALL_GATHER),
        ("_reduce_scatter_base", Collective.REDUCE_SCATTER),
        ("all_to_allv", Collective.ALL_TO_ALL),
        ("gloo:all_reduce", Collective.ALL_REDUCE),
        ("ncclDevKernel_Generic(ncclDevComm*)", None),
    ],
)
def test_kind_of_a_collective(name: str, kind: Collective | None) -> None:
    assert kind_of(name) == kind


# --- two real ranks, of which one sleeps for 50 ms in each step


def compared(folder: Path) -> None:
    """The waiting rank's exposed time in its trace is that of our hooks; the sleeping rank waits much less."""
    exposed_s = []
    for rank in range(2):
        trace = kineto.read(gloo_ranks.trace(folder, rank), file="t.json")
        assert kineto.rank_of(trace.facts["distributedInfo"]) == (rank, 2)
        found = steps_of(trace, None)
        assert found is not None
        steps = rank_steps(trace, found.windows or (), None, 8)
        assert {kind: figures[:2] for kind, figures in steps[1].kinds.items()} == {"all_reduce": (1, BYTES)}
        hooks_s = gloo_ranks.measured_s(folder, rank)
        exposed_s.append([(step.exposed_s, hooks_s[number]) for number, step in steps.items()])
    waiting, sleeping = ([median(values) for values in zip(*steps, strict=True)] for steps in exposed_s)
    assert waiting[0] == pytest.approx(waiting[1], rel=0.05)
    assert max(sleeping) < 0.5 * min(waiting)
    assert min(waiting) > 0.9 * gloo_ranks.SLEEP_S


def test_recorded_traces_of_gloo_have_the_exposed_time_that_hooks_measured() -> None:
    """Recorded by `python -m tests.analysis.readers.traces.gloo_ranks` with torch 2.15."""
    compared(FIXTURE)


@pytest.mark.world
@pytest.mark.slow
def test_traces_of_gloo_have_the_exposed_time_that_hooks_measure(tmp_path: Path) -> None:
    gloo_ranks.record(tmp_path)
    compared(tmp_path)

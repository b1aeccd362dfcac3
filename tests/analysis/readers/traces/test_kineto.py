import json
import random
from typing import Any

import pytest

from analysis.readers import kineto
from analysis.readers.attribution import attribute, steps_of
from tests.analysis.readers.traces.kineto_traces import annotation, document, gpu_trace, kernel, operator
from workload.contract.errors import UsageError


def test_a_gpu_trace() -> None:
    trace = kineto.read(gpu_trace(2), file="t.json")
    assert {thread: len(operators) for thread, operators in trace.operators.items()} == {
        ("4515", "4515"): 16,
        ("4515", "25556"): 4,
    }
    assert trace.devices == {"0": 12}
    assert len(trace.device) == 14
    assert [window.name for window in trace.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert trace.device_properties("0")["name"] == "Tesla V100-SXM2-16GB"
    assert trace.has_shapes
    assert not trace.losses
    # Outer operators stand before those that they call.
    names = [one.call.name for one in trace.operators["4515", "4515"]][:4]
    assert names == ["aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"]


def of_2020() -> str:
    """Categories began with a capital, steps were operators, and there was no type without shapes."""
    events = [
        {**annotation("ProfilerStep#5", 0, 100), "cat": "Operator"},
        {
            "ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": "1890023232", "ts": 10, "dur": 20,
            "args": {"Input dims": [[2, 3], [3, 4]], "Input type": [], "External id": 3},
        },
        {
            "ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": "1890023232", "ts": 12, "dur": 2,
            "args": {"correlation": 9, "external id": 3},
        },
        {**kernel("sgemm", 30, 5, 9), "cat": "Kernel", "tid": "stream 7"},
    ]  # fmt: skip
    return document(events)


def test_the_form_of_2020() -> None:
    trace = kineto.read(of_2020(), file="t.json")
    assert [window.name for window in trace.steps] == ["ProfilerStep#5"]
    assert trace.launches == {9: (("1", "1890023232"), 12.0)}
    assert trace.devices == {"0": 1}
    assert trace.has_shapes


@pytest.mark.parametrize(
    ("names", "number", "expected"),
    [
        (["T4", "V100"], 1, "V100"),
        (["V100"], 9, "V100"),
        (["V100", "V100"], 2, "V100"),
        (["T4", "V100"], 2, None),
        ([], 0, None),
    ],
    ids=["its own", "one GPU", "GPUs of one kind", "of two kinds", "unknown"],
)
def test_device_name_of_kernels_with_another_number(names: list[str], number: int, expected: str | None) -> None:
    properties = [{"id": index, "name": name} for index, name in enumerate(names)]
    trace = kineto.read(document([kernel("gemm", 0, 5, 1, device=number)], deviceProperties=properties), file="t.json")
    assert trace.device_properties(str(number)).get("name") == expected


def test_broken_events_are_left_out_and_counted() -> None:
    events = [
        operator("aten::mm", 0, 5),
        {**operator("aten::mm", 1, 5), "ts": "soon"},
        {**operator("aten::mm", 2, 5), "dur": -1},
    ]
    trace = kineto.read(document(events), file="t.json")
    assert trace.losses == ["2 events without a usable name, time or duration were left out"]


NOTHING = "'t.json' is a trace without operators and kernels:"
OF_CHROME = json.dumps({"traceEvents": [{"ph": "X", "cat": "toplevel", "name": "RunTask", "ts": 1, "dur": 2}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (document([]), f"{NOTHING} its 0 events are of no category"),
        ('{"schemaVersion": 1, "traceEvents": [ {"ph": "X", "na', f"{NOTHING} its 0 events are of no category"),
        (OF_CHROME, f"{NOTHING} its 1 events are of toplevel"),
        (
            gpu_trace(1).replace('"name": "aten::mm"', '"name": "C:\\temp" oops'),
            "'t.json' is no JSON after 7 events: line 9, column ",
        ),
    ],
    ids=["empty", "cut at once", "chrome", "damaged"],
)
def test_what_is_no_trace_of_torch(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        kineto.read(text, file="t.json")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"traceEvents": [', True),
        (' {"schemaVersion": 1, "traceEvents": []}', True),
        ('[{"name": "x", "ph": "X", "ts": 1}]', True),
        ('{"log": 1}', False),
        ('[{"step": 1, "step_ms": 3.5}]', False),
        ("iteration,time\n1,2\n", False),
        ('import json  # {"traceEvents": []}', False),
    ],
)
def test_which_files_are_traces(text: str, expected: bool) -> None:
    assert kineto.is_trace(text) is expected


def test_hostile_traces_end_in_a_sentence() -> None:
    """Values of any type at any place of an event, and bytes that fell over."""
    chance = random.Random(17)
    values: list[Any] = [None, -1, "x", [], {}, [[None]], {"a": 1}, 1e300, float("nan"), True, [1, 2], "[1, 2]"]
    for _ in range(300):
        events = json.loads(gpu_trace(2))["traceEvents"]
        for _ in range(5):
            event = chance.choice(events)
            place = chance.choice([event, event["args"]]) if isinstance(event.get("args"), dict) else event
            if place:
                place[chance.choice(sorted(place))] = chance.choice(values)
        text = document(events, deviceProperties=chance.choice([values, None, "x", [{}]]))
        if chance.random() < 0.3:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice('[]{}",:0') + text[at + 1 :]
        try:
            trace = kineto.read(text, file="t.json")
            steps = steps_of(trace, 2)
            assert steps is not None
            for device in [None, *trace.devices]:
                trace.device_properties(device or "0")
                found = attribute(trace, steps, device=device)
                assert 0 <= found.bytes_low <= found.bytes_high
        except UsageError:
            continue

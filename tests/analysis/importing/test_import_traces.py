"""`analyze import` of traces of torch.profiler, and what every command says of the bundles."""

import csv
import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.roofline.points import points
from tests.analysis import in_process
from tests.analysis.importing.outcomes import Files, printed
from tests.analysis.in_process import Analyze
from tests.analysis.readers.ncu.ncu_files import save
from tests.analysis.readers.traces.kineto_traces import (
    BUSY_S,
    CONVOLUTION_FLOP,
    KERNELS_S,
    MM_FLOP,
    V100,
    annotation,
    document,
    gpu_trace,
    kernel,
    launch,
    operator,
    product_step,
    step,
)
from tests.analysis.sentence_runs import Golden
from workload.contract import bundle
from workload.contract.errors import ExitCode, NothingToDoError

FLOP = 2 * CONVOLUTION_FLOP + MM_FLOP
GIVEN = UserFacts(model="small", batch_size=4)
imported = partial(in_process.imported, name="t.json", model="small", batch_size=4)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, analyze: Analyze, tmp_path: Path) -> Analyze:
    """`analyze` in `tmp_path`, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return analyze


def test_the_bundle_of_a_gpu_trace(tmp_path: Path) -> None:
    record = imported(tmp_path, gpu_trace(3))
    assert record.imported is not None
    assert record.imported.kind == "torch"
    assert (record.environment.device.type, record.environment.device.name) == ("cuda", "Tesla V100-SXM2-16GB")
    assert (record.spec.precision, record.spec_origin) == (
        "fp32",
        {"model": "option", "device": "file", "batch_size": "option", "precision": "file", "image_size": "file"},
    )
    # Nobody timed a step without the profiler.
    assert record.timing.step_s is None
    assert record.profile.steps == 3
    assert record.profile.busy_s_per_step == pytest.approx(BUSY_S)
    assert record.profile.time_s_per_step == pytest.approx(KERNELS_S)
    assert record.profile.wall_s_per_step == pytest.approx(1e-3)
    assert record.profile.calls_per_step == 7
    assert record.complexity is not None
    assert record.complexity.train_flop_per_step == FLOP
    assert record.complexity.unattributed == pytest.approx({"triton_poi_fused_add_relu_0": 50 / 505})
    assert list(record.notes or ()) == [
        "communication with other GPUs is 5.9 % of the kernels' time, and has no FLOP",
        "9.9 % of the kernels' time is unattributed, without FLOP and bytes: triton_poi_fused_add_relu_0 9.9 %",
    ]


def test_the_files_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(gpu_trace(2))
    (made,) = import_file(tmp_path / "t.json", GIVEN, output=tmp_path / "results")
    assert gzip.decompress((made / "torch/trace.json.gz").read_bytes()).decode() == gpu_trace(2)
    with (made / "torch/kernels.csv").open(newline="") as file:
        kernels = {row["name"]: row for row in csv.DictReader(file)}
    assert kernels["implicit_convolve_sgemm"] == {
        "name": "implicit_convolve_sgemm", "calls": "2", "total_s": "0.000400000", "mean_s": "0.000200000",
        "share": "0.396040",
    }  # fmt: skip
    with (made / "torch/operators.csv").open(newline="") as file:
        operators = {row["name"]: row for row in csv.DictReader(file)}
    assert operators["aten::mm"]["flop"] == str(2 * MM_FLOP)
    assert operators["triton_poi_fused_add_relu_0"]["lack"] == "no formula"


@pytest.mark.parametrize("name", ["t.json.gz", "worker0.pt.trace.json.gz", "t.pt.trace.json"])
def without_shapes(text: str) -> str:
    known = json.loads(text)
    for event in known["traceEvents"]:
        for name in ("Input Dims", "Input type", "Concrete Inputs"):
            event["args"].pop(name, None)
    return json.dumps(known)


def cut_after(kernels: int) -> str:
    """Five steps of seven kernels each; the file breaks off behind so many kernels."""
    events = [event for number in range(5) for event in step(number, 10_000.0 + 1000 * number)]
    on_device = [event for event in events if event["cat"] in {"kernel", "gpu_memcpy"}]
    host = [event for event in events if event not in on_device]
    text = document([*host, *on_device[:kernels]], deviceProperties=[V100])
    return text[: text.rindex("]")]


def of_one_operator(name: str, dims: list[Any], types: list[str], us: float) -> str:
    called = [operator(name, 10, 20, dims, types, number=1), launch(1, 12), kernel("k", 50, us, 1)]
    return document([annotation("ProfilerStep#0", 0, 1000), *called], deviceProperties=[V100])


def without_kernels(mark: dict[str, str]) -> str:
    product = operator("aten::mm", 10, 1, [[4000, 9000], [9000, 5000]], ["float", "float"])
    return document([annotation("ProfilerStep#0", 0, 100), product, annotation("", 20, 5) | mark])


# Work on a second GPU, of another size than that on the first.
OTHER_GPU = [
    operator("aten::mm", 10_500, 20, [[50, 50], [50, 50]], ["float", "float"], number=99),
    launch(99, 10_505),
    kernel("sgemm", 10_600, 10, 99, device=1),
]
HALVES = [[8192, 8192]] * 2, ["c10::Half"] * 2
TWO_STEPS = [event for number in range(2) for event in step(number, 10_000.0 + 1000 * number)]
FORWARD = [event for event in TWO_STEPS if "ackward" not in event["name"] and "grad" not in event["name"]]
STEP, PRODUCT, MARK = step(0, 10_000.0), operator("aten::mm", 1, 5), annotation("ProfilerStep#0", 0, 10)
SMALL = {"model": "small", "batch_size": 4}
UNWRITABLE = r"half \ud800 of, a \"pair\" \n of kernels"
TRACES: Files = {
    "packed": (gzip.compress(gpu_trace(2).encode(), mtime=0), SMALL),
    "a gzip file that breaks off": (gzip.compress(gpu_trace(40).encode(), 0, mtime=0)[:120_000], SMALL),
    "without shapes": (without_shapes(gpu_trace(2)), SMALL),
    "one rank of eight": (gpu_trace(2, distributedInfo={"rank": 3, "world_size": 8}), SMALL),
    "the only rank": (gpu_trace(2, distributedInfo={"rank": 0, "world_size": 1}), SMALL),
    "a rank that is not read": (gpu_trace(2, distributedInfo="{'rank': 3}"), SMALL),
    "a machine with a GPU, and no kernels": (
        document(
            [annotation("ProfilerStep#0", 0, 100), operator("aten::mm", 0, 50, [[4, 9], [9, 5]], ["float", "float"])],
            deviceProperties=[V100],
        ),
        SMALL,
    ),
    "another device": (
        without_kernels({"cat": "mtia_runtime", "name": "runFunction - job_prep_and_submit_for_execution"}),
        SMALL | {"gpu": "A100"},
    ),
    "a GPU of which there are no events": (
        without_kernels({"cat": "user_annotation", "name": "nccl:all_to_all"}),
        SMALL | {"gpu": "A100"},
    ),
    # Of seven kernels a step, three of the third step are there.
    "cut in the third step": (cut_after(17), SMALL),
    "cut in the first step": (cut_after(4), SMALL),
    # Ten times the bandwidth leaves room for the caches.
    "bytes within ten times the bandwidth": (of_one_operator("aten::add", *HALVES, us=100), SMALL),
    "bytes beyond it": (of_one_operator("aten::add", *HALVES, us=10), SMALL),
    "an index touches a part of its table": (
        of_one_operator("aten::index", [[15360, 4096], []], ["c10::BFloat16", ""], us=6),
        SMALL,
    ),
    "so does its gradient": (
        of_one_operator(
            "aten::index_put_", [[60000, 4096], [], [16, 4096], []], ["float", "", "float", "Scalar"], us=6
        ),
        SMALL,
    ),
    "training": (document(TWO_STEPS, deviceProperties=[V100]), SMALL),
    "inference": (document(FORWARD, deviceProperties=[V100]), SMALL),
    # Kernels that wait for other GPUs are slow too, but not 1000 times.
    "slow kernels": (document(product_step(gpu_us=1e6), deviceProperties=[V100]), SMALL),
    "kernels of a wrong unit": (document(product_step(gpu_us=2e6), deviceProperties=[V100]), SMALL),
    "one GPU of two": (
        document([*STEP, *OTHER_GPU], deviceProperties=[V100, V100 | {"id": 1}]),
        SMALL | {"device": 1},
    ),
    "labels that contradict it": (gpu_trace(2), SMALL | {"gpu": "Tesla T4", "precision": "amp"}),
    "names that cannot be written": (
        gpu_trace(1).replace("triton_poi_fused_add_relu_0", f"triton {UNWRITABLE}"),
        SMALL,
    ),
    # Refusals.
    "two GPUs": (document([*STEP, *OTHER_GPU]), SMALL),
    "no such GPU": (document(STEP), SMALL | {"device": 3}),
    "a negative GPU": (document(STEP), SMALL | {"device": -1}),
    "a CPU": (document([PRODUCT, MARK]), SMALL | {"device": 0}),
    "two ranks": (document([*STEP, annotation("ProfilerStep#0", 10_000, 1000, pid=77)]), SMALL),
    "host alone": (document([MARK, operator("aten::_efficient_attention_forward", 1, 5)]), SMALL),
    "no steps": (document([PRODUCT]), SMALL),
    "empty steps": (document([annotation("ProfilerStep#0", 100, 10), PRODUCT]), SMALL),
    "neither model nor batch size": (document(product_step()), {}),
}


def test_what_an_import_says_of_a_trace(golden: Golden, tmp_path: Path) -> None:
    rules = ("no backward kernels", "too slow for its label")
    golden("traces.txt", printed(TRACES, tmp_path, name="t.json", rules=rules))


def test_the_same_trace_again_is_refused(tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(2))
    with pytest.raises(NothingToDoError, match="is imported already"):
        imported(tmp_path, gpu_trace(2))


# --- several ranks


def rank(number: int, steps: int = 6, *, wait_us: float = 30, first: int = 0, ranks: int = 2) -> str:
    """The trace of a rank that waits in each of its steps of 1000 us for `wait_us` in an all-reduce."""
    world = {"backend": "nccl", "rank": number, "world_size": ranks}
    text = gpu_trace(steps + first, distributedInfo=world, host_name=f"node{number}")
    trace = json.loads(text)
    trace["traceEvents"] = [
        event | ({"dur": wait_us} if event["name"].startswith("nccl") else {})
        for event in trace["traceEvents"]
        if event["ts"] >= 10_000 + 1000 * first
    ]
    return json.dumps(trace)


def test_traces_of_all_ranks_are_one_run(run: Analyze, tmp_path: Path) -> None:
    save(tmp_path, rank(0), "b.json")
    save(tmp_path, gzip.compress(rank(1, wait_us=180).encode()), "a.json.gz")
    code, out, err = run("import", "a.json.gz", "b.json", "--model", "small", "--batch-size", "4")
    assert (code, len(out.splitlines())) == (ExitCode.DONE, 1)
    assert "rank 1 communicates for 0 s of a step beside its computation, and for 180 µs alone (all_reduce)" in err
    assert "rank 0 on node0 alone limits scaling: a device waits 7.5 % of the step for a slower one, on average" in err

    (folder,) = (tmp_path / "results").iterdir()
    record = bundle.read_record(folder)
    assert (record.spec.machines, record.spec.devices, record.imported and record.imported.file) == (2, 1, "b.json")
    assert gzip.decompress((folder / "torch/rank1.json.gz").read_bytes()).decode() == rank(1, wait_us=180)
    found = record.ranks
    assert found is not None
    assert (found.number, found.backend, found.slowest, found.why) == (2, "nccl", 0, None)
    assert (found.steps, found.hosts) == ((6, 6), ("node0", "node1"))
    assert found.exposed_s == pytest.approx([30e-6, 180e-6])
    # A step lasts from its first kernel to that of the next one.
    assert found.own_s == pytest.approx([970e-6, 820e-6])
    assert found.kinds is not None
    assert found.kinds["all_reduce"].exposed_s == found.exposed_s


@pytest.mark.parametrize(
    ("texts", "slowest", "why"),
    [
        pytest.param([rank(0, 3), rank(1, 3, wait_us=180)], None, "fewer than 5 measured steps", id="few steps"),
        pytest.param([rank(2, ranks=4), rank(3, ranks=4)], None, "only 2 of 4 ranks have a trace", id="some ranks"),
        pytest.param([rank(0), rank(1, 5, first=1, wait_us=180)], 0, None, id="not all steps"),
    ],
)
def test_ranks_that_are_not_all_known(tmp_path: Path, texts: list[str], slowest: int | None, why: str | None) -> None:
    first, second = (save(tmp_path, text, f"{number}.json") for number, text in enumerate(texts))
    (folder,) = import_file(first, GIVEN, output=tmp_path / "results", beside=[second])
    found = bundle.read_record(folder).ranks
    assert found is not None
    assert found.exposed_s is not None
    assert (found.slowest, found.why and found.why[: len(why or "")]) == (slowest, why)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([rank(0), rank(0)], "'0.json' and '1.json' are both of rank 0"),
        ([rank(0, 2), rank(1, 2, first=2)], "'1.json' has no marked step in common with the traces of the other ranks"),
    ],
    ids=["the same rank", "other steps"],
)
def test_traces_that_are_not_of_one_run(run: Analyze, tmp_path: Path, texts: list[str], message: str) -> None:
    files = [save(tmp_path, text, f"{number}.json").name for number, text in enumerate(texts)]
    code, _, err = run("import", *files, "--model", "small", "--batch-size", "4")
    assert code == ExitCode.USAGE
    assert message in err
    assert not (tmp_path / "results").exists()


# --- what the commands say


def test_kernels_by_family_operator_and_kernel(run: Analyze, tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(3))
    code, out, _ = run("kernels", "results")
    assert code == ExitCode.DONE
    assert out.startswith("by torch.profiler: operators with their modelled work, per step\n")
    for family in ("convolution", "GEMM", "optimizer", "copy", "communication", "unattributed"):
        assert family in out
    assert "no FLOP and bytes for 9.9 % of the time: no formula" in out
    _, out, _ = run("kernels", "results", "--row", "operator", "--top", "2", "--format", "json")
    rows = json.loads(out)
    assert [(row["family"], row["name"], row["flop"]) for row in rows] == [
        ("convolution", "aten::convolution", CONVOLUTION_FLOP),
        ("convolution", "aten::convolution_backward", CONVOLUTION_FLOP),
        ("all", "all", FLOP),
    ]
    assert all(row["bytes_lower"] <= row["bytes_upper"] for row in rows)
    _, out, _ = run("kernels", "results", "--row", "kernel", "--top", "1")
    assert out.startswith("by torch.profiler: kernels on a GPU, per step\n")


@pytest.mark.parametrize(
    ("share", "is_lower_bound"), [(0.06, True), (0.04, False)], ids=["too much unattributed", "little unattributed"]
)
def test_unattributed_time_makes_flop_a_lower_bound(tmp_path: Path, share: float, is_lower_bound: bool) -> None:
    # Of the step's 1000 us on the CPU an operator without a formula takes this share.
    unknown_us = 1000 * share
    events = [
        annotation("ProfilerStep#0", 0, 1000),
        operator("aten::mm", 0, 1000 - unknown_us, [[4, 96], [96, 10]], ["float", "float"]),
        operator("mine::attention", 1000 - unknown_us, unknown_us, [[4, 96]], ["float"]),
    ]
    record = imported(tmp_path, document(events))
    assert record.complexity is not None
    assert record.complexity.unattributed_share == pytest.approx(share)
    (point,) = points(analysis.load(tmp_path / "results")).to_dict("records")
    assert point["flop_is_lower_bound"] is is_lower_bound
    assert ("FLOP are a lower bound" in point["note"]) is is_lower_bound
    gaps = "time under torch.profiler, which lengthens the gaps between operators and slows small ones"
    assert gaps in point["note"]


def test_bytes_that_are_missing_leave_the_bound_open_and_the_flop_whole(tmp_path: Path) -> None:
    def bound(types: list[str]) -> dict[str, Any]:
        events = [
            annotation("ProfilerStep#0", 0, 100),
            operator("aten::mm", 0, 20, [[800, 800], [800, 700]], ["float", "float"], number=1),
            launch(1, 2),
            kernel("volta_sgemm_128x128_nn", 10, 100, 1),
            operator("aten::cat", 30, 20, [[[800, 700]] if types[0] else [], []], ["TensorList", "Scalar"], number=2),
            launch(2, 32),
            kernel("CatArrayBatchedCopy", 110, 10, 2),
        ]
        folder = tmp_path / (types[0] or "none")
        folder.mkdir()
        imported(folder, document(events, deviceProperties=[V100]))
        (point,) = points(analysis.load(folder / "results")).to_dict("records")
        return {str(name): value for name, value in point.items()}

    whole, lacking = bound(["float"]), bound([""])
    assert whole["bound"] == "compute"
    assert not isinstance(lacking["bound"], str)
    assert not lacking["flop_is_lower_bound"]
    assert "the bytes of 9.1 % of the time are missing: the trace lacks their shapes" in lacking["note"]


def test_gaps_between_kernels_are_overhead(tmp_path: Path) -> None:
    # 100 us of products at 57 % of the peak in a step of 1 ms: the kernels compute, the step waits for launches.
    events = [
        annotation("ProfilerStep#0", 0, 1000),
        operator("aten::mm", 10, 20, [[800, 800], [800, 700]], ["float", "float"], number=1),
        launch(1, 12),
        kernel("volta_sgemm_128x128_nn", 50, 100, 1),
    ]
    imported(tmp_path, document(events, deviceProperties=[V100]))
    (point,) = points(analysis.load(tmp_path / "results")).to_dict("records")
    assert point["fraction_of_roof"] == pytest.approx(0.057, abs=0.002)
    assert (point["bound"], point["flop_per_s"]) == ("overhead", pytest.approx(2 * 800 * 800 * 700 / 1e-3))
    assert point["note"].startswith(
        "kernels run in 10 % of the step, and the device is idle in the rest; time under torch."
    )
    assert "; 8.96 TFLOP/s while kernels run; " in point["note"]
    # The table of runs says what the roofline says, with the same figures.
    run = analysis.load(tmp_path / "results").runs.iloc[0]
    assert (run["bound"], run["device_busy_share"]) == ("overhead", pytest.approx(0.1))
    assert run["bound_why"] == point["bound_why"]


@pytest.mark.slow
def test_the_report_shows_operators(run: Analyze, tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(3))
    code, _, _ = run("report", "results", "-o", "report.html")
    assert code == ExitCode.DONE
    page = (tmp_path / "report.html").read_text()
    assert "aten::convolution_backward" in page
    assert "Work per step: FLOP by formula" in page
    assert "No run says how complex its model is" not in page
    assert "The time of an imported trace was measured under torch.profiler." in page
    assert "Kernels by torch.profiler, per step" in page
    assert "Operators by torch.profiler, per step: self time" not in page
    assert "profiled: at least 49.2 MFLOP/s; limited by overhead: kernels run in 45 % of the step" in page
    assert "analyze import t.json --model small --batch-size 4" in page

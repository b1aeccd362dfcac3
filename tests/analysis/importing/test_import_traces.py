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
from tests.analysis.in_process import Analyze
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
from workload.contract import bundle
from workload.contract.errors import ExitCode, NothingToDoError, UsageError

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
def test_every_name_and_packing(tmp_path: Path, name: str) -> None:
    content = gpu_trace(2).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (made,) = import_file(tmp_path / name, GIVEN, output=tmp_path / "results")
    complexity = bundle.read_record(made).complexity
    assert complexity is not None
    assert complexity.train_flop_per_step == FLOP


def test_a_gzip_file_that_breaks_off(tmp_path: Path) -> None:
    packed = gzip.compress(gpu_trace(40).encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: len(packed) * 3 // 4])
    (made,) = import_file(tmp_path / "t.json.gz", GIVEN, output=tmp_path / "results")
    record = bundle.read_record(made)
    assert record.profile.status == "partial"
    assert record.notes[0].startswith("the trace ends too early, after ")
    assert any("is incomplete and left out: the trace breaks off in it" in note for note in record.notes)
    assert record.complexity is not None
    assert record.complexity.train_flop_per_step == FLOP


def test_the_same_trace_again_is_refused(tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(2))
    with pytest.raises(NothingToDoError, match="is imported already"):
        imported(tmp_path, gpu_trace(2))


def without_shapes(text: str) -> str:
    known = json.loads(text)
    for event in known["traceEvents"]:
        for name in ("Input Dims", "Input type", "Concrete Inputs"):
            event["args"].pop(name, None)
    return json.dumps(known)


def test_without_shapes_times_and_how_to_record_them(tmp_path: Path) -> None:
    record = imported(tmp_path, without_shapes(gpu_trace(2)))
    assert record.complexity is None
    assert record.notes[-1] == (
        "times only: the trace has no shapes; torch.profiler.profile(record_shapes=True) records shapes, and with them"
        " FLOP and bytes are known"
    )


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"distributedInfo": {"rank": 3, "world_size": 8}}, "rank 3 of 8: the figures are of this process alone"),
        ({"distributedInfo": {"rank": 0, "world_size": 1}}, None),
        ({"distributedInfo": "{'rank': 3}"}, None),
    ],
    ids=["one of eight", "alone", "not read"],
)
def test_a_rank_of_several_says_so(tmp_path: Path, facts: dict[str, Any], note: str | None) -> None:
    record = imported(tmp_path, gpu_trace(2, **facts))
    assert [text for text in record.notes or () if text.startswith("rank")] == ([note] if note else [])


def test_a_machine_with_a_gpu_and_a_trace_without_kernels(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#0", 0, 100), operator("aten::mm", 0, 50, [[4, 9], [9, 5]], ["float", "float"])]
    record = imported(tmp_path, document(events, deviceProperties=[V100]))
    assert (record.environment.device.type, record.environment.device.name) == ("cpu", None)
    assert list(record.notes or ()) == [
        ("the machine has a GPU, Tesla V100-SXM2-16GB, but the trace has no kernels: it is read as the trace of a CPU")
    ]


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        ({"cat": "mtia_runtime", "name": "runFunction - job_prep_and_submit_for_execution"}, "MTIA"),
        ({"cat": "user_annotation", "name": "nccl:all_to_all"}, "GPU"),
    ],
    ids=["another device", "a GPU of which there are no events"],
)
def test_operators_of_a_device_without_kernels_have_work_but_no_times(
    mark: dict[str, str], kind: str, run: Analyze, tmp_path: Path
) -> None:
    product = operator("aten::mm", 10, 1, [[4000, 9000], [9000, 5000]], ["float", "float"])
    events = [annotation("ProfilerStep#0", 0, 100), product, annotation("", 20, 5) | mark]
    record = imported(tmp_path, document(events), gpu="A100")
    assert record.environment.device.type is None
    assert record.complexity is not None
    assert record.complexity.train_flop_per_step == 2 * 4000 * 9000 * 5000
    assert (record.profile.busy_s_per_step, record.profile.wall_s_per_step, record.profile.top) == (None, None, None)
    assert list(record.notes or ()) == [
        f"device unknown ({kind}): times of its kernels are not in this trace",
        f"the trace has no kernels and is from an unknown device ({kind}), but the import was given device 'A100'",
    ]
    for command in ("summary", "audit", "roofline", "kernels"):
        code, out, err = run(command, "results")
        assert code in {ExitCode.DONE, ExitCode.NOTHING_TO_DO}
        assert "idle" not in out + err


def test_a_step_of_a_cut_trace_lacks_its_share_of_kernels(tmp_path: Path) -> None:
    events = [event for number in range(5) for event in step(number, 10_000.0 + 1000 * number)]
    on_device = [event for event in events if event["cat"] in {"kernel", "gpu_memcpy"}]
    host = [event for event in events if event not in on_device]

    def cut(kernels: int) -> str:
        text = document([*host, *on_device[:kernels]], deviceProperties=[V100])
        return text[: text.rindex("]")]

    # Of seven kernels a step, three of the third step are there.
    record = imported(tmp_path, cut(17))
    assert (record.profile.status, record.profile.steps) == ("partial", 2)
    assert record.profile.busy_s_per_step == pytest.approx(BUSY_S)
    left_out = [note for note in record.notes or () if "left out" in note]
    assert left_out == [
        "ProfilerStep#4 is incomplete and left out: the trace breaks off in it",
        "ProfilerStep#2 is incomplete and left out: the trace breaks off before its end",
        "ProfilerStep#3 is incomplete and left out: the trace breaks off before its end",
    ]
    (other := tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="breaks off, and no step has all of its kernels"):
        imported(other, cut(4))


def of_one_operator(name: str, dims: list[Any], types: list[str], us: float) -> str:
    called = [operator(name, 10, 20, dims, types, number=1), launch(1, 12), kernel("k", 50, us, 1)]
    return document([annotation("ProfilerStep#0", 0, 1000), *called], deviceProperties=[V100])


def test_bytes_are_compared_with_the_bandwidth(tmp_path: Path) -> None:
    halves = [[8192, 8192]] * 2, ["c10::Half"] * 2
    imported(tmp_path, of_one_operator("aten::add", *halves, us=100))
    # Ten times the bandwidth leaves room for the caches.
    (other := tmp_path / "other").mkdir()
    with pytest.raises(UsageError) as refusal:
        imported(other, of_one_operator("aten::add", *halves, us=10))
    assert str(refusal.value).endswith(
        "t.json' cannot be a trace: aten::add has 403 Mbytes by its shapes in 10 µs, 40.3 TB/s, and V100 SXM2 does 900"
        " GB/s at most"
    )


def test_an_index_touches_a_part_of_its_table(tmp_path: Path) -> None:
    for name, dims, types in (
        ("aten::index", [[15360, 4096], []], ["c10::BFloat16", ""]),
        ("aten::index_put_", [[60000, 4096], [], [16, 4096], []], ["float", "", "float", "Scalar"]),
    ):
        (folder := tmp_path / name[6:]).mkdir()
        assert imported(folder, of_one_operator(name, dims, types, us=6)).complexity is not None


@pytest.mark.parametrize("has_backward", [True, False])
def test_inference_is_no_training(has_backward: bool, run: Analyze, tmp_path: Path) -> None:
    events = [event for number in range(2) for event in step(number, 10_000.0 + 1000 * number)]
    inference = [event for event in events if "ackward" not in event["name"] and "grad" not in event["name"]]
    imported(tmp_path, document(events if has_backward else inference, deviceProperties=[V100]))
    found = json.loads(run("audit", "results", "--format", "json")[1])
    said = [one["figure"] for one in found if one["rule"] == "no backward kernels"]
    assert said == ([] if has_backward else ["2 steps, but no operator or kernel that occurs only in a backward pass"])


@pytest.mark.parametrize(
    ("gpu_us", "figure"),
    # Kernels that wait for other GPUs are slow too, but not 1000 times.
    [(1e6, []), (2e6, ["2 s for a step of 896 MFLOP: 448 MFLOP/s, less than 0.1 % of the fp32 peak of V100 SXM2;"])],
)
def test_kernels_of_a_wrong_unit_are_too_slow(gpu_us: float, figure: list[str], run: Analyze, tmp_path: Path) -> None:
    imported(tmp_path, document(product_step(gpu_us=gpu_us), deviceProperties=[V100]))
    found = json.loads(run("audit", "results", "--format", "json")[1])
    said = [one["figure"] for one in found if one["rule"] == "too slow for its label"]
    assert [text[: len(start)] for text, start in zip(said, figure, strict=True)] == figure


# Work on a second GPU, of another size than that on the first.
OTHER_GPU = [
    operator("aten::mm", 10_500, 20, [[50, 50], [50, 50]], ["float", "float"], number=99),
    launch(99, 10_505),
    kernel("sgemm", 10_600, 10, 99, device=1),
]


STEP, PRODUCT, MARK = step(0, 10_000.0), operator("aten::mm", 1, 5), annotation("ProfilerStep#0", 0, 10)
RANK_1 = annotation("ProfilerStep#0", 10_000, 1000, pid=77)
OF_A_GPU, LATER_MARK = operator("aten::_efficient_attention_forward", 1, 5), annotation("ProfilerStep#0", 100, 10)
NO_KERNELS = "'t.json' has no kernels, and its operators ran on a GPU: host times are not theirs"


@pytest.mark.parametrize(
    ("events", "words", "message", "hint"),
    [
        ([*STEP, *OTHER_GPU], "", "'t.json' holds the kernels of 2 GPUs, but a run has one (0: 6 ", "--gpu-index 0"),
        (STEP, "--gpu-index 3", "'t.json' has no kernels of GPU 3 (0: 6 kernels)", "--gpu-index 0"),
        ([PRODUCT, MARK], "--gpu-index 0", "'t.json' is a trace of a CPU; got --gpu-index 0", "analyze import t.json"),
        ([*STEP, RANK_1], "", "'t.json' holds 2 processes, but a run has one", "import the trace of each rank"),
        ([MARK, OF_A_GPU], "", NO_KERNELS, "torch.profiler.profile(activities=[ProfilerActivity.CPU, "),
        ([PRODUCT], "", "'t.json' does not mark its steps, so their number is unknown", "--profile-steps N, or call "),
        ([LATER_MARK, PRODUCT], "", "'t.json' has no operator or kernel in its steps", "export it again: profiler."),
        (STEP, "--gpu-index -1", "--gpu-index must be the number of a GPU; got '-1'", "--gpu-index 0"),
    ],
    ids=["two GPUs", "no such GPU", "a CPU", "two ranks", "host alone", "no steps", "empty steps", "negative"],
)
def test_refusals(
    events: list[dict[str, Any]], words: str, message: str, hint: str, run: Analyze, tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text(document(events))
    code, out, err = run("import", "t.json", "--model", "small", "--batch-size", "4", *words.split())
    assert (code, out) == (ExitCode.USAGE, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {message}")
    assert second.startswith(f"hint: {hint}")


def test_one_gpu_of_two_is_chosen(tmp_path: Path) -> None:
    text = document([*step(0, 10_000.0), *OTHER_GPU], deviceProperties=[V100, V100 | {"id": 1}])
    record = imported(tmp_path, text, device=1)
    assert record.complexity is not None
    assert record.complexity.flop_by_op == {"matmul": 2 * 50**3}
    assert record.imported is not None
    assert record.imported.given is not None
    assert record.imported.given.device == 1


def test_what_is_lacking_is_asked_for(run: Analyze, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(document(product_step()))
    code, _, err = run("import", "t.json")
    assert code == ExitCode.USAGE
    assert err.splitlines() == [
        "error: 't.json' does not say the model or the batch size",
        "hint: analyze import t.json --model resnet50 --batch-size 32",
    ]


def test_labels_that_contradict_the_trace(tmp_path: Path) -> None:
    record = imported(tmp_path, gpu_trace(2), gpu="Tesla T4", precision="amp")
    assert record.environment.device.name == "Tesla V100-SXM2-16GB"
    assert record.spec.precision == "amp"
    assert list(record.notes[-2:]) == [
        "the trace says device 'Tesla V100-SXM2-16GB', but the import was given 'Tesla T4'",
        "the trace says precision 'fp32', but the import was given 'amp'",
    ]
    assert record.imported is not None
    assert record.imported.contradictions == record.notes[-2:]


def test_names_that_cannot_be_written_again(tmp_path: Path) -> None:
    name = r"half \ud800 of, a \"pair\" \n of kernels"
    record = imported(tmp_path, gpu_trace(1).replace("triton_poi_fused_add_relu_0", f"triton {name}"))
    assert record.complexity is not None
    assert list(record.complexity.unattributed or ()) == ['triton half ? of, a "pair" \n of kernels']
    assert not analysis.load(tmp_path / "results").problems


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


def test_a_bare_trace_is_to_be_imported_first(run: Analyze, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(gpu_trace(1))
    code, _, err = run("kernels", "t.json")
    assert code == ExitCode.USAGE
    assert err.splitlines() == [
        "error: 't.json' has no table of Nsight Compute: it is a trace of torch.profiler",
        "hint: analyze import FILE, then analyze kernels results",
    ]


def test_a_roofline_with_the_modelled_interval(tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(3))
    (point,) = points(analysis.load(tmp_path / "results")).to_dict("records")
    assert (point["source"], point["roof"], point["flop_is_lower_bound"]) == ("modelled", "peak", True)
    # By the step's wall time of 1 ms; its kernels run in less than half of it.
    assert point["flop_per_s"] == pytest.approx(FLOP / 1e-3)
    assert (point["bound"], point["device_busy_share"]) == ("overhead", pytest.approx(BUSY_S / 1e-3))
    assert point["intensity_low"] < point["intensity_high"]


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


@pytest.mark.parametrize("command", ["summary", "audit", "roofline", "variance"])
def test_every_command_takes_the_bundle(command: str, run: Analyze, tmp_path: Path) -> None:
    imported(tmp_path, gpu_trace(3))
    assert run(command, "results")[0] in {ExitCode.DONE, ExitCode.NOTHING_TO_DO}


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

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from workload.contract import bundle
from workload.contract.errors import ExitCode, NothingToDoError, UsageError

# Ten iterations of 0.2 s by the time stamps, of which the timer sees 0.15 s, and every tenth 0.05 s; one slow start.
LOG = "env,device,model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp\n" + "".join(
    f"envA,cuda:0,resnet50,64,{index},{time_ms},{rate},{1763159640 + 0.2 * index:.1f}\n"
    for index, (time_ms, rate) in enumerate([(150, 426.67)] * 5 + [(50, 1280)] + [(150, 426.67)] * 5)
)
NCU = """==PROF== Connected to process 1 (/usr/bin/python3)
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Device","CC",\
"device__attribute_display_name","gpu__time_duration.sum","dram__bytes.sum",\
"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum","smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",\
"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","","","","","ns","byte","inst","inst","inst"
"0","1","python","add","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","2000","4096","100","10","1000"
"1","1","python","mul","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","1000","1024","0","50","0"
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def written(tmp_path: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def imported(tmp_path: Path, text: str | bytes, name: str = "log.csv", **options: Any) -> dict[str, Any]:
    """Run.json of the imported file."""
    (folder,) = import_file(written(tmp_path, text, name), UserFacts(**options), output=tmp_path / "results")
    return dict(bundle.read(folder).document)


def refusal(tmp_path: Path, text: str | bytes, name: str = "log.csv", **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, text, name, **options)
    assert caught.value.exit_code is ExitCode.USAGE
    assert not list((tmp_path / "results").glob("*")), "nothing is left behind"
    return caught.value.report().replace(f"{tmp_path}/", "")


def test_log_becomes_a_sealed_bundle(tmp_path: Path, results: Path) -> None:
    record = imported(tmp_path, LOG)
    assert re.fullmatch(r"20251114T223400Z-imported-enva-resnet50-b64-unknown-[0-9a-f]{6}", record["run_id"])
    folder = results / record["run_id"]
    assert [file.name for file in bundle.read(folder).files] == ["imported/log.csv", "run.json", "steps.csv"]
    assert (folder / "imported" / "log.csv").read_text() == LOG
    about = record["imported"]
    assert about["file"] == "log.csv"
    assert about["sha256"] == hashlib.sha256(LOG.encode()).hexdigest()
    assert (about["kind"], about["bytes"], about["rows"], about["rows_cut"]) == ("iterations", len(LOG), 11, 0)
    assert about["columns"]["step_s"]["name"] == "iter_time_ms"
    assert about["columns"]["step_s"]["factor"] == 1e-3
    assert about["columns"]["step_s"]["source"]
    assert about["labels"] == {"model": "resnet50", "batch_size": "64", "device_type": "cuda:0", "place": "envA"}
    assert (about["ignored"], about["given"]) == ([], {})


def test_timer_and_time_stamps_are_both_kept(tmp_path: Path, results: Path) -> None:
    imported(tmp_path, LOG)
    loaded = analysis.load(results)
    assert loaded.problems == ()
    steps = loaded.steps
    assert steps["phase"].tolist() == ["warmup"] + ["measured"] * 10
    assert steps["step_s"].tolist() == pytest.approx([0.15] * 5 + [0.05] + [0.15] * 5)
    assert steps["ended_at_s"].tolist() == pytest.approx([0.2 * index for index in range(11)], abs=1e-6)
    assert steps["images"].tolist() == [64.0] * 11
    assert steps[["data_s", "forward_s", "backward_s", "optimizer_s", "loss"]].isna().all().all()
    (run,) = loaded.runs.to_dict("records")
    # 10 iterations of 64 images between the first time stamp and the last.
    assert run["images_per_s"] == pytest.approx(640 / 2.0, rel=1e-6)
    assert run["claimed_images_per_s"] == pytest.approx((10 * 426.67 + 1280) / 11)
    assert (run["images"], run["steps"], run["iterations"]) == (640, 10, 10)
    assert run["step_median_s"] == pytest.approx(0.15)
    assert run["explained_fraction"] == pytest.approx((9 * 0.15 + 0.05) / 2.0, rel=1e-6)


def test_nothing_is_invented(tmp_path: Path, results: Path) -> None:
    record = imported(tmp_path, LOG)
    known = {"model": "resnet50", "batch_size": 64, "device": "cuda", "iterations": 10}
    assert {name: value for name, value in record["spec"].items() if value is not None} == known
    assert record["spec_origin"] == dict.fromkeys(known, "file")
    assert record["environment"]["device"] == {"type": "cuda"}
    assert record["environment"]["place"] == "envA"
    assert {name for name, value in record["environment"].items() if value is not None} == {"place", "device"}
    absent = ("error", "repeat", "complexity", "ceilings", "bound", "memory", "usage", "cost")
    assert [record[name] for name in absent] == [None] * len(absent)
    run = analysis.load(results).runs.iloc[0]
    assert bool(run["imported"])
    for name in ("precision", "device_name", "backend", "ceiling_flop_per_s", "torch", "zone"):
        assert run.isna()[name], name


def test_what_the_user_says_beats_the_file_and_is_noted(tmp_path: Path) -> None:
    record = imported(tmp_path, LOG, model="resnet18", gpu="Tesla T4", precision="AMP", batch_size=128)
    assert (record["spec"]["model"], record["spec"]["batch_size"], record["spec"]["precision"]) == (
        "resnet18",
        128,
        "amp",
    )
    assert record["environment"]["device"] == {"type": "cuda", "name": "Tesla T4"}
    assert record["spec_origin"] == {
        "model": "option",
        "batch_size": "option",
        "precision": "option",
        "device": "file",
        "iterations": "file",
    }
    assert record["imported"]["given"] == {
        "model": "resnet18",
        "gpu": "Tesla T4",
        "precision": "AMP",
        "batch_size": 128,
    }
    assert record["notes"] == [
        "the file says model 'resnet50', but the import was given 'resnet18'",
        "the file says batch size '64', but the import was given '128'",
    ]


PRECISIONS = "must be one of fp32, tf32, amp, bf16; got"
LABELLED = "iter_time_ms,model,batch_size"


@pytest.mark.parametrize(
    ("text", "options", "message", "hint"),
    [
        ("iter_time_ms\n100\n", {}, " does not say the model or the batch size", "--model resnet50 --batch-size 32"),
        ("iter_time_ms\n100\n", {"model": "vgg16"}, " does not say the batch size", "log.csv --batch-size 32"),
        ("iter_time_ms,batch_size\n100,64\n", {}, " does not say the model", "log.csv --model resnet50"),
        (f"{LABELLED}\n100,vgg16,0\n", {}, ": batch_size must be a positive integer; got '0'", "--batch-size 32"),
        (
            f"{LABELLED},precision\n100,vgg16,4,half\n90,vgg16,4,half\n",
            {},
            f": precision {PRECISIONS} 'half'",
            "use --precision amp",
        ),
        (
            f"{LABELLED},data_time_ms\n100,m,4,5\n100,m,4,100\n",
            {},
            " line 3: the wait for data is as long as the whole iteration; got 0.1 s of 0.1 s",
            "leave the column of data waits out",
        ),
        (b"iter_time_ms\n\xff\n", {}, " line 2: iter_time_ms is no number; got 'ÿ'", "leave the row out"),
    ],
)
def test_what_is_missing_or_wrong_in_a_file(
    tmp_path: Path, text: str | bytes, options: dict[str, Any], message: str, hint: str
) -> None:
    first, second = refusal(tmp_path, text, **options).splitlines()
    assert first == f"error: 'log.csv'{message}"
    assert hint in second.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"model": " "}, "--model must be a name; got ' '", "--model NAME"),
        ({"batch_size": 0}, "--batch-size must be a positive integer; got '0'", "--batch-size 4"),
        ({"precision": "fp64"}, f"--precision {PRECISIONS} 'fp64'", "use --precision amp if it was fp16 with"),
    ],
)
def test_an_option_that_is_wrong(tmp_path: Path, options: dict[str, Any], message: str, hint: str) -> None:
    assert refusal(tmp_path, LOG, **options).startswith(f"error: {message}\nhint: {hint}")


def test_same_file_again_is_nothing_to_do(tmp_path: Path, results: Path) -> None:
    folder = results / imported(tmp_path, LOG)["run_id"]
    with pytest.raises(NothingToDoError) as caught:
        imported(tmp_path, LOG, "renamed.csv", model="vgg16")
    assert caught.value.report() == (
        f"error: '{tmp_path}/renamed.csv' is imported already: {folder}\n"
        f"hint: remove {folder} first to import it with other options"
    )
    assert len(analysis.load(results).runs) == 1
    imported(tmp_path, LOG.replace("envA", "envB"))
    assert len(analysis.load(results).runs) == 2


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ("0.1,\n0.1,\n", "the file has no time stamps"),
        ("0.1,1763159640\n0.1,\n", "no time stamp follows that of the first row"),
        ("0.1,1763159640\n0.1,1763159639\n", "no time stamp follows that of the first row"),
        ("0.1,1763159640\n", "no time stamp follows that of the first row"),
    ],
)
def test_unknown_wall_time_gives_no_throughput(tmp_path: Path, results: Path, rows: str, note: str) -> None:
    record = imported(tmp_path, f"step_s,timestamp\n{rows}", model="m", batch_size=4)
    assert record["notes"] == [f"{note}: wall time and throughput are unknown"]
    assert record["timing"]["images_per_s"] is None
    assert analysis.load(results).runs.isna().loc[0, "images_per_s"]


def test_rate_without_a_timer_gives_the_step_time(tmp_path: Path, results: Path) -> None:
    imported(tmp_path, "iter,imgs_per_sec\n0,100\n1,50\n", model="m", batch_size=10)
    assert analysis.load(results).steps["step_s"].tolist() == [0.1, 0.2]


def test_data_wait_inside_the_iteration_is_taken_out(tmp_path: Path, results: Path) -> None:
    text = "iter_time_ms,data_time_ms,timestamp\n900,0,1763159640\n100,25,1763159641\n100,15,1763159642\n"
    imported(tmp_path, text, model="m", batch_size=10)
    loaded = analysis.load(results)
    assert loaded.steps["step_s"].tolist() == pytest.approx([0.9, 0.075, 0.085])
    assert loaded.steps["data_s"].tolist() == pytest.approx([0, 0.025, 0.015])
    assert loaded.runs["data_wait_fraction"].tolist() == pytest.approx([0.02])
    apart = "step_time_ms,data_time_ms\n900,0\n100,25\n"
    imported(tmp_path, apart, "apart.csv", model="apart", batch_size=10)
    loaded = analysis.load(results)
    steps = loaded.steps.merge(loaded.runs[["run_id", "model"]], on="run_id")
    assert steps.loc[steps["model"] == "apart", "step_s"].tolist() == pytest.approx([0.9, 0.1])


def test_cut_off_file_is_noted(tmp_path: Path) -> None:
    record = imported(tmp_path, LOG + "envA,cuda")
    assert record["imported"]["rows_cut"] == 1
    assert record["notes"] == ["the file ends within its last row, which is left out"]


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    record = imported(tmp_path, b"\xef\xbb\xbf" + LOG.replace("\n", "\r\n").encode())
    assert record["imported"]["rows"] == 11


@pytest.mark.parametrize("name", ["../../../etc", "a/b", "<script>alert(1)</script>", "x\ny", "é" * 150, "...", "-"])
def test_hostile_names_stay_inside_the_output_folder(tmp_path: Path, results: Path, name: str) -> None:
    record = imported(tmp_path, LOG, model=name, gpu=name)
    assert record["spec"]["model"] == name
    (folder,) = [path for path in results.iterdir() if path.is_dir()]
    assert folder.name == record["run_id"]
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", folder.name)
    assert analysis.load(results).runs["model"].tolist() == [name]


# --- profiles


def test_profile_becomes_a_bundle_with_kernels(tmp_path: Path, results: Path) -> None:
    record = imported(tmp_path, NCU, model="resnet50", batch_size=64, precision="fp32", profile_steps=2)
    assert "-imported-tesla-t4-resnet50-b64-fp32-" in record["run_id"]
    assert (results / record["run_id"] / "ncu" / "kernels.csv").read_text() == NCU
    assert record["environment"]["device"] == {"type": "cuda", "name": "Tesla T4", "compute_capability": "7.5"}
    assert set(record["timing"].values()) == {None}
    profile = record["profile"]
    assert (profile["status"], profile["kernels_profiled"], profile["steps_profiled"]) == ("completed", 2, 2)
    # 100 + 10 + 2 x 1000 and 50, over two steps.
    assert profile["flop_per_step"] == (2110 + 50) / 2
    assert profile["dram_bytes_per_step"] == 5120 / 2
    assert profile.get("l2_bytes_per_step") is None
    assert profile["kernel_time_s_per_step"] == pytest.approx(1.5e-6)
    loaded = analysis.load(results)
    assert loaded.problems == ()
    assert loaded.kernels["name"].tolist() == ["add", "mul"]
    assert loaded.runs["counted_flop_per_step"].tolist() == [1080]
    assert len(loaded.steps) == 0


def test_without_the_number_of_steps_there_is_no_figure_per_step(tmp_path: Path) -> None:
    profile = imported(tmp_path, NCU, model="resnet50", batch_size=64)["profile"]
    assert profile.get("steps_profiled") is None
    assert profile.get("flop_per_step") is None
    assert profile.get("dram_bytes_per_step") is None


def test_device_attribute_beats_the_label(tmp_path: Path) -> None:
    record = imported(tmp_path, NCU, model="m", batch_size=4, gpu="NVIDIA L4")
    assert record["environment"]["device"]["name"] == "Tesla T4"
    assert record["notes"] == ["the profile says device 'Tesla T4', but the import was given 'NVIDIA L4'"]
    without = NCU.replace("device__attribute_display_name", "device__attribute_chip")
    record = imported(tmp_path, without, "other.csv", model="m", batch_size=4, gpu="NVIDIA L4")
    assert record["environment"]["device"]["name"] == "NVIDIA L4"


def test_profile_without_options_or_kernels(tmp_path: Path) -> None:
    assert refusal(tmp_path, NCU, batch_size=4) == (
        "error: 'log.csv' does not say the model\nhint: analyze import log.csv --model resnet50"
    )
    failed = "==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n"
    assert refusal(tmp_path, failed, model="m", batch_size=4).startswith("error: 'log.csv' has no table")

"""Logs of other people: what an import makes of each, and what it says of it; 64 images in 0.2 s are 320 images/s."""

import gzip
import json
from pathlib import Path

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.loading.configurations import measured
from tests.analysis.importing.outcomes import Files, printed
from tests.analysis.in_process import Analyze
from tests.analysis.readers.logs.trainer_logs import (
    megatron,
    nanogpt,
    pytorch_examples,
    timm,
    torchvision,
    trainer_state,
)
from tests.analysis.readers.ncu.ncu_files import save
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import ExitCode

BEGIN = 1763159640
HEADER = "model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp"
GIVEN = {"model": "m", "batch_size": 64}


def steps(count: int = 20, *, batch_size: int = 64) -> list[str]:
    """Iterations of 0.2 s."""
    rate = batch_size / 0.2
    return [f"resnet50,{batch_size},{step},200.0,{rate:.1f},{BEGIN + 0.2 * step:.1f}" for step in range(count)]


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows, ""])


LOG = table(*steps())
LATER = [row.replace(str(BEGIN)[:-1], str(BEGIN + 1000)[:-1]) for row in steps(4)]

FORMS: Files = {
    "plain": (LOG, {}),
    "UTF-16": (LOG.encode("utf-16"), {}),
    "byte order mark and CRLF": (b"\xef\xbb\xbf" + LOG.replace("\n", "\r\n").encode(), {}),
    "semicolons, Windows-1252": (LOG.replace(",", ";").replace("resnet50", "modèle").encode("cp1252"), {}),
    "bars, carriage returns": (LOG.replace(",", "|").replace("\n", "\r"), {}),
    "tabs": (LOG.replace(",", "\t"), {}),
    "index of pandas": ("," + table(*(f"{number},{row}" for number, row in enumerate(steps()))), {}),
    "columns in another order": ("\n".join(",".join(reversed(row.split(","))) for row in LOG.splitlines()), {}),
    "output before": ("GPU warmed up\nstart, now\n" + LOG, {}),
    "a gzip file that breaks off": (gzip.compress(table(*steps(2000)).encode(), 0, mtime=0)[:9000], {}),
    "everything twice": (LOG * 2, {}),
    "a text twice": (timm() * 2, {}),
    "what the user says beats the file": (
        LOG,
        {"model": "resnet18", "gpu": "Tesla T4", "precision": "AMP", "batch_size": 128},
    ),
    "the last row cut off": (LOG + "resnet50,6", {}),
}


def joined(*names: str) -> str:
    """Three logs of 20 rows in one table; the last two share all known labels."""
    parts = [("RTX 4080", "A", "a.csv", 0.2), ("T4", "B", "a.csv", 0.2), ("T4", "C", "b.csv", 0.4)]
    cells = [dict(zip(("environment", "who", "source_file"), part, strict=False)) for part in parts]
    rows = [
        ",".join([row.replace("200.0", f"{1e3 * part[3]:.1f}"), *(cell[name] for name in names)])
        for cell, part in zip(cells, parts, strict=True)
        for row in steps()
    ]
    return table(*rows, header=",".join([HEADER, *names])).replace(",iter_idx,", ",lr,")


def stamped(every_s: float, *, by: int = 1, header: str = "step,iter_time_ms,timestamp") -> str:
    rows = [f"{by * number},200,{BEGIN + every_s * number:.1f}" for number in range(12)]
    return table(*rows, header=header)


def times(*stamps: str) -> str:
    return "step_s,timestamp\n" + "".join(f'0.5,"{stamp}"\n' for stamp in stamps)


COUNTED = "model,batch_size,step,images_processed,elapsed_sec,images_per_sec,device_name,torch_version\n" + "".join(
    f"resnet18,{{batch}},{step},{64 * (step + 1)},{0.5 * (step + 1):.2f},{{rate}},Tesla T4,2.3.1\n"
    for step in range(20)
)
ROWS: Files = {
    # 110 iterations in 22 s.
    "a row every ten iterations": (stamped(2.0, by=10), GIVEN),
    "a missing row": (table(*steps()[:7], *steps()[8:]), {}),
    "steps begin again": (table(*steps(4), *LATER), {}),
    "steps begin again in an epoch": (
        table(*(f"{row},{epoch}" for epoch, part in enumerate((steps(4), LATER)) for row in part),
              header=f"{HEADER},epoch"),
        {},
    ),
    "columns that say which run": (joined("environment", "source_file", "who"), {}),
    "an unread column that may separate runs": (joined("environment", "who"), {}),
    "two batch sizes, one given": (
        table(*steps(), *steps(batch_size=128)),
        {"batch_size": 32, "model": "resnet50"},
    ),
    "one bad run of two": (table(*steps(), *(row.replace("200.0", "0") for row in steps(batch_size=128))), {}),
    "stamps deny the steps": (stamped(0.2, by=10), GIVEN),
    "stamps of runs": (stamped(60), {}),
    "stamps of runs, without steps": (stamped(60, header="lr,iter_time_ms,timestamp"), {}),
    "no time stamps": ("step_s\n0.1\n0.1\n", GIVEN),
    "one time stamp": (f"step_s,timestamp\n0.1,{BEGIN}\n0.1,\n", GIVEN),
    "time stamps that go back": (f"step_s,timestamp\n0.1,{BEGIN}\n0.1,{BEGIN - 1}\n", GIVEN),
    "time stamps with blanks": (times("2025-11-14 22:34:00", "2025-11-14 22:34:00.500"), GIVEN),
    "time stamps with decimal commas": (times("2025-11-14 22:34:00,000", "2025-11-14 22:34:00,500"), GIVEN),
    "time stamps with slashes": (times("2025/11/14 22:34:00", "2025/11/14 22:34:00.5"), GIVEN),
    "time stamps with a zone": (times("2025-11-14T22:34:00Z", "2025-11-14T22:34:00.5Z"), GIVEN),
    "zones on some stamps": (times("2025-11-14T22:34:00Z", "2025-11-14T22:34:01"), GIVEN),
    "rates without a timer": ("iter,imgs_per_sec\n0,100\n1,50\n", {"model": "m", "batch_size": 10}),
    "waits inside the iteration": (
        f"iter_time_ms,data_time_ms,timestamp\n900,0,{BEGIN}\n100,25,{BEGIN + 1}\n100,15,{BEGIN + 2}\n",
        {"model": "m", "batch_size": 10},
    ),
    "waits beside the step": ("step_time_ms,data_time_ms\n900,0\n100,25\n", {"model": "m", "batch_size": 10}),
    "images and seconds that agree": (COUNTED.format(batch=64, rate=128), {}),
    "another batch size": (COUNTED.format(batch=32, rate=128), {}),
    "another rate": (COUNTED.format(batch=64, rate=300), {}),
    "images and seconds alone": (
        "images_processed,elapsed_sec\n" + "".join(f"{64 * n},{0.5 * n}\n" for n in range(1, 9)),
        {"model": "mine"},
    ),
    # Tables with a row per run.
    "one rate": (table("Tesla T4,resnet50,fp32,64,120", header="gpu,model,precision,batch,img_per_s"), {}),
    "numbered runs": (table("1,m,64,205", "2,m,64,206", header="run,model,batch_size,images_per_s"), {}),
    "times and rates": (
        table("m,64,312,205", "m,206,1000,206", header="model,bs,train_step_time,img_per_s"),
        {},
    ),
    "a row that says too little": (
        table("T4,vgg16,8,50", "L4,vgg16,,90", "A100,vgg16,16,300", header="gpu,model,batch,img_per_s"),
        {},
    ),
    "the same, with a batch size": (
        table("T4,vgg16,8,50", "L4,vgg16,,90", "A100,vgg16,16,300", header="gpu,model,batch,img_per_s"),
        {"batch_size": 32},
    ),
    "no row says enough": (table("T4,50", "L4,90", header="gpu,img_per_s"), {}),
}  # fmt: skip

LABELLED = "iter_time_ms,model,batch_size"
REFUSED: Files = {
    "nothing said": ("iter_time_ms\n100\n", {}),
    "no batch size": ("iter_time_ms\n100\n", {"model": "vgg16"}),
    "no model": ("iter_time_ms,batch_size\n100,64\n", {}),
    "batch size 0": (f"{LABELLED}\n100,vgg16,0\n", {}),
    "an unknown precision": (f"{LABELLED},precision\n100,vgg16,4,half\n90,vgg16,4,half\n", {}),
    "a wait as long as the iteration": (f"{LABELLED},data_time_ms\n100,m,4,5\n100,m,4,100\n", {}),
    "no text": (b"iter_time_ms\n\xff\n", {}),
    "longer than a day": ("iter_time_ms,loss\n200,1\n4619008000,1\n210,1\n", GIVEN),
    "negative": ("iter_time_ms,loss\n200,1\n-5,1\n210,1\n", GIVEN),
    "--model of blanks": (LOG, {"model": " "}),
    "--batch-size 0": (LOG, {"batch_size": 0}),
    "--precision fp64": (LOG, {"precision": "fp64"}),
    "empty": ("", {}),
    "blank": ("\n \n", {}),
    "words": ("# A title\n\nWords.\n", {}),
    "without times": ("Epoch 1/3\n", {}),
    "a trainer's state before its end": (trainer_state(train_runtime=None), GIVEN),
    "dllogger": ('DLLL {"timestamp": "1600180153.0", "type": "LOG"}\n', GIVEN),
    "dllogger for people": (
        "DLL 2020-09-15 14:29:13 - Epoch: 0 Iteration: 1 train.total_ips : 100 img/s\n",
        GIVEN,
    ),
    "MLPerf": ('0: :::MLLOG {"key": "epoch_start"}\n', GIVEN),
    "brackets": ("[run 3] started\nEpoch 1: loss 3\n", GIVEN),
    "output of nvidia-smi": ("| NVIDIA-SMI 535 |\nEpoch 1: loss 3\n", GIVEN),
    "rates of inference": ("model,infer_samples_per_sec,infer_batch_size\nresnet50,800.0,256\n", {}),
    "other JSON": (json.dumps({"train_runtime": []}), GIVEN),
}
TIMM_TABLE = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
TRAINERS: Files = {
    # After the first printed iteration: 90 of the first epoch, at 0.25 s; 91 of the second, one of them of 2 s.
    "PyTorch's examples": (pytorch_examples(), {"model": "resnet50", "batch_size": 64}),
    "PyTorch's examples until 2022": (pytorch_examples(first_index=0), {"model": "resnet50", "batch_size": 64}),
    "every iteration of them": (pytorch_examples(every=1, epochs=1), {"model": "resnet50", "batch_size": 64}),
    # 3,980 iterations of 12 ms; the last mean may be 0.5 ms off, 3,990 times.
    "few decimals": (
        "\n".join(f"Epoch: [0][{index * 10}/5000]\tTime 0.012 (0.012)\tLoss nan (nan)" for index in range(1, 400)),
        {"model": "resnet50", "batch_size": 64},
    ),
    # 500 iterations of 128 images in 0.32 s.
    "timm": (timm(), {}),
    "a table of timm": (TIMM_TABLE + "resnet50,800.0,320.0,256,176,25.56\n", {"precision": "amp"}),
    # Iterations 1 to 51 of the first epoch, and 51 of the second, the first of them of 2 s.
    "torchvision": (torchvision(), {}),
    "torchvision whose means leave gaps": (torchvision(every=25), {}),
    # 90 iterations of 32 samples in 0.5 s, and 110 of them.
    "Megatron": (megatron(), {"model": "gpt"}),
    "Megatron, resumed": (megatron(resumed=True), {"model": "gpt"}),
    # 16,384 tokens in 2 s.
    "nanoGPT": (nanogpt(), {"model": "gpt2"}),
    "nanoGPT, every tenth": (nanogpt(every=10), {"model": "gpt2"}),
    # 79.9 x 100 / 500 samples a step: the last batch of the epoch was smaller.
    "the state of Hugging Face's Trainer": (trainer_state(), {"model": "bert"}),
}


def test_one_log_in_any_form(golden: Golden, tmp_path: Path) -> None:
    golden("logs_forms.txt", printed(FORMS, tmp_path))


def test_rows_that_are_iterations_or_runs(golden: Golden, tmp_path: Path) -> None:
    rules = ("labels disagree", "mean of rates", "wall time not explained", "unsynchronised timing")
    golden("logs_rows.txt", printed(ROWS, tmp_path, rules=rules))


def test_logs_that_are_refused(golden: Golden, tmp_path: Path) -> None:
    golden("logs_refused.txt", printed(REFUSED, tmp_path))


def test_logs_of_known_trainers(golden: Golden, tmp_path: Path) -> None:
    golden("logs_trainers.txt", printed(TRAINERS, tmp_path, name="train.log"))


@pytest.mark.slow
def test_runs_of_a_table_are_measured_runs(tmp_path: Path, analyze: Analyze) -> None:
    rows = ("Tesla T4,resnet18,fp32,64,205", "Tesla V100-SXM2-16GB,resnet18,fp32,64,410")
    path = save(tmp_path, table(*rows, header="gpu,model,precision,batch,img_per_s"))
    import_file(path, UserFacts(), output=tmp_path / "out")
    loaded = analysis.load(tmp_path / "out")
    assert set(measured(loaded.runs)["images_per_s"]) == {205, 410}
    assert list(loaded.compare(by="device_name")["ratio"]) == [pytest.approx(2)]
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    assert analyze("report", tmp_path / "out", "-o", page, "--markdown", text)[0] == ExitCode.DONE
    fastest = "resnet18 reached its highest throughput, 410.0 images/s (one run: no interval), at batch 64, fp32"
    assert f"{fastest} on Tesla V100-SXM2-16GB (imported)" in text.read_text()

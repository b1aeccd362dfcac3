"""A folder of twenty different files of other people, through every command: no traceback, no silent loss."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.analysis.in_process import Analyze
from tests.analysis.readers.logs.trainer_logs import (
    megatron,
    nanogpt,
    pytorch_examples,
    timm,
    torchvision,
    trainer_state,
)
from tests.analysis.readers.ncu.foreign_profiles import NSYS
from tests.analysis.readers.ncu.ncu_files import COUNTS, TIME, long, wide
from workload.contract.errors import ExitCode

pytestmark = [
    pytest.mark.night(part="report"),
]
SHARED = Path(__file__).parents[4] / "shared" / "data"

ROW = ["8000000", "1000000000", "1000000000", "4200000000", "650000000"]
LONG = [
    (launch, metric, unit, "1000" if metric == TIME else "5000")
    for launch in range(3)
    for metric, unit in COUNTS.items()
]


def iterations(step_ms: float, *, delimiter: str = ",", extra: str = "", zone: str = "") -> str:
    """40 steady iterations in one of the ways in which tables are written."""
    rows = [delimiter.join(["iter", "iter_time_ms", "timestamp"])]
    for step in range(40):
        at = f"2025-11-14 22:34:{step * step_ms / 1e3:06.3f}{zone}"
        rows.append(delimiter.join([str(step), f"{step_ms:.2f}", at]))
    return "\n".join([extra, *rows, ""] if extra else [*rows, ""])


READABLE: dict[str, str | bytes] = {
    "plain.csv": iterations(200),
    "semicolons.csv": iterations(201, delimiter=";"),
    "tabs.tsv": iterations(202, delimiter="\t"),
    "powershell.csv": iterations(203).encode("utf-16"),
    "packed.csv.gz": gzip.compress(iterations(204).encode()),
    "with_output.csv": iterations(205, extra="Files already downloaded and verified"),
    "zoned.csv": iterations(206, zone="+01:00"),
    "runs.csv": "gpu,model,batch,img_per_s\nT4,vgg16,8,50\nNVIDIA L4,resnet50,64,90\nA100,my_net,8,300\n",
    "examples.log": pytorch_examples(),
    "timm.log": timm(),
    "torchvision.log": torchvision(),
    "megatron.log": megatron(),
    "nanogpt.log": nanogpt(),
    "trainer_state.json": trainer_state(),
    "ncu.csv": wide(COUNTS, [ROW, ROW], names=["sgemm", "wgrad"], capability="7.0"),
    "ncu_tensor.csv": wide(COUNTS, [ROW, ROW], names=["volta_s884gemm", "wgrad"], capability="7.0"),
    "ncu_blank.csv": wide(COUNTS, [ROW, [*ROW[:3], "n/a", ROW[4]]], names=["sgemm", "wgrad"], capability="7.0"),
    "ncu_times.csv": wide({TIME: "ns"}, [["5000"], ["6000"]], names=["sgemm", "wgrad"], capability="7.0"),
    "ncu_long.csv": long(LONG),
    "nsys.csv": NSYS,
}
UNREADABLE: dict[str, str | bytes] = {
    "notes.md": "# What I did\n",
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0",
    "empty.csv": "",
    "contradiction.csv": "step,iter_time_ms,timestamp\n"
    + "".join(f"{10 * row},200,{1763159640 + 0.2 * row:.1f}\n" for row in range(20)),
}
SHARED_UNREADABLE = {"failed_no_header.csv", "failed_no_kernels.csv"}


def test_a_folder_of_foreign_files(tmp_path: Path, analyze: Analyze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, content in (READABLE | UNREADABLE).items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    shared = sorted([*SHARED.glob("iterations/*.csv"), *SHARED.glob("ncu/*.csv")]) if SHARED.is_dir() else []
    files = [*(READABLE | UNREADABLE), *map(str, shared)]
    refused = sorted([*UNREADABLE, *(str(path) for path in shared if path.name in SHARED_UNREADABLE)])
    code, out, err = analyze("import", *files, "--model", "resnet50", "--batch-size", "64")
    assert code == ExitCode.USAGE
    last = err.splitlines()[-1]
    assert last.startswith(f"left out   {len(refused)} of {len(files)} files: ")
    assert sorted(last.partition("files: ")[2].split(", ")) == refused
    # Three runs in runs.csv, and one in each other file.
    assert len(out.splitlines()) == len(files) - len(refused) + 2
    for command in ("summary", "roofline", "kernels", "variance", "compare", "audit"):
        code, printed, err = analyze(command, "results")
        assert code in {ExitCode.DONE, ExitCode.NOT_POOLABLE}, (command, err)
        assert not re.search(r"\b(nan|NaN|None|inf)\b", printed + err), command
    _no_silent_loss(analyze, runs=len(out.splitlines()))
    code, _, err = analyze("report", "results", "-o", "report.html", "--figures", "figures")
    assert code == ExitCode.DONE, err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert "lower bound" in text
    for false in ("the device is synchronised at both ends", "nothing to rank", "0 configurations", " nan ", " None "):
        assert false not in text, false


def _no_silent_loss(analyze: Analyze, *, runs: int) -> None:
    """Each run is in the summary, and has a point on the roofline or is counted among those without."""
    _, summary, _ = analyze("summary", "results", "--format", "json")
    assert sum(row["runs"] for row in json.loads(summary)) == runs
    _, points, err = analyze("roofline", "results", "--format", "json")
    held = {(row["model"], row["batch_size"], row["place"], row["device_type"]) for row in json.loads(points)}
    assert held
    without = sum(int(number) for number in re.findall(r"^note       (\d+) runs? without", err, flags=re.MULTILINE))
    # my_net has no formulas; every other run is of a known model, or has counters.
    assert without == 1, err

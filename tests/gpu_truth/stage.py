"""Stand-ins for the collector's children on a GPU: the probes, the trainer, and the ncu of the other tests."""

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_truth.bench import Bench
from benchmarks.gpu_truth.collect import looked_at
from tests.workload.profile.ncu_stand_in import NCU, write_ncu

PROBER = """
import json, sys
from pathlib import Path
name, answer, *words = sys.argv[1:]
CONSTANTS, PIPE = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum", "sm__inst_executed_pipe_tensor.sum"
found = {
    "device": {"torch": "2.15", "cuda_build": "13.2", "targets": ["sm_89"], "obstacle": None, "auto": "cuda",
               "notes": [], "gpu": {"name": "NVIDIA L4", "capability": "8.9", "memory_bytes": 24e9}},
    "compiler": {"targets": {}, "disassembler": False, "cuda": "13.2"},
    "counters": {"known": {"single": {"tensor_products": 0, "single_instructions": 1600}}, "plain": ["softmax"]},
    "loads": {"loads": {"fp32": {"work": 1e12, "rows": [{"t_s": 0.0, "call_s": 0.05}]}}, "edge": 8192},
    "names": {"resnet50 fp32": [{"name": "sgemm", "calls": 1, "s": 0.1}]},
    "paired": {"device": "cuda", "model": "resnet18", "batch_size": 32, "steps": 20, "ratios": [1.0, 1.001]},
}[name]
if name == "counters":
    FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
    rows = [["truth single", "single", {FFMA: 1600}], ["truth softmax", "softmax", {PIPE: 5, CONSTANTS: 5}],
            ["truth backward", "gemm", {PIPE: 7}]]
    Path(answer + ".kernels").write_text(json.dumps(rows))
Path(answer).write_text(json.dumps(found))
"""
TRAINER = """
import json, os, sys, time
from pathlib import Path
verb, *words = sys.argv[1:]
if verb == "env":
    print(json.dumps({"device": {"name": "NVIDIA L4"}})); sys.exit()
if verb == "ceilings":
    print(json.dumps({"flop_per_s": {}})); sys.exit()
if verb == "profile":
    record = Path(words[0]) / "run.json"
    try:
        print("profile    3/900 kernels", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        found = json.loads(record.read_text())
        record.write_text(json.dumps(found | {"profile": {"status": "interrupted"}}))
        sys.exit(130)
assert verb == "train", verb
option = {flag: value for flag, value in zip(words, words[1:]) if flag.startswith("-")}
folder = Path(option["-o"]) / "run"
folder.mkdir(parents=True)
large = int(option.get("--batch-size", 1)) > 200
record = {"status": "out_of_memory" if large else "completed", "timing": {"images_per_s": 100.0, "measured_s": 4.0},
          "environment": {"host": {"hostname": "secret"}}, "spec_origin": {}}
(folder / "run.json").write_text(json.dumps(record))
print(folder)
sys.exit(7 if large else 0)
"""


def gpu_bench(folder: Path) -> Bench:
    """A machine with an L4 and an ncu, both made of scripts in `folder`."""
    answers = NCU.replace(
        "found = kernels(int(words[-1]))", 'found = json.loads(Path(words[-1] + ".kernels").read_text())'
    )
    assert answers != NCU
    ncu = write_ncu(folder, answers)
    for name, script in (("prober.py", PROBER), ("trainer.py", TRAINER)):
        (folder / name).write_text(script)
    bench = Bench(
        scratch=folder / "scratch",
        ncus=(ncu,),
        quick=True,
        trainer=(sys.executable, str(folder / "trainer.py")),
        prober=(sys.executable, str(folder / "prober.py")),
    )
    return replace(looked_at(bench), scratch=folder / "scratch")

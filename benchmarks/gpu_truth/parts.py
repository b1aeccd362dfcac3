"""Parts of the evidence: a table with each part's requirements, approximate duration and collecting function."""

import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu_truth.bench import Bench, PartFailedError, last_lines
from workload.contract import ncu_csv
from workload.contract.ncu_csv import PUSHED, NcuSource
from workload.contract.operating_system import SIGKILL
from workload.contract.spec import Precision
from workload.environment.machine import run_tool
from workload.profile import command, diagnosis, metrics
from workload.profile.metrics import MetricSet, base, choose, choose_step, choose_throughput, table

BANDS = Path(__file__).with_name("bands.toml")
ROOT = Path(__file__).parents[2]
# Limit of each part, so that a caller whose commands are cut off after ten minutes can collect every part.
PART_LIMIT_S = 540.0
BATCH = 64
# ResNet50 in fp32 takes about 90 MB per image. The failing batches need 1.1 times the GPU's memory, and eight times
# that.
BYTES_PER_IMAGE, MUCH_MORE = 80e6, 8
# Late enough for ncu to be replaying kernels: the trainer starts twice before.
INTERRUPT_AFTER_S = 75.0
# Metrics that the claims need in addition to those of a profile.
PIPE, CONSTANTS = "sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
# L2 traffic by its source: the SMs, and on GPUs whose L2 has two halves the other half.
L2_NAMES = (
    "lts__t_bytes.sum",
    "lts__t_sectors.sum",
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_ltcfabric.sum",
)


class PartNeed(StrEnum):
    """Requirement of a part."""

    GPU = "gpu"
    NCU = "ncu"


@dataclass(frozen=True, kw_only=True)
class EvidencePart:
    """A question to the machine. `about_s`: approximate seconds on a GPU of the last ten years."""

    name: str
    what: str
    about_s: int
    collect: Callable[[Bench], dict[str, Any]]
    needs: frozenset[PartNeed] = frozenset()


# --- the machine


def _machine(bench: Bench) -> dict[str, Any]:
    environment = bench.run([*bench.trainer, "env"], limit_s=120)
    try:
        described = json.loads(environment.output[environment.output.index("{") :])
    except ValueError:
        described = None
    return {
        **bench.facts,
        "nvidia_smi": run_tool("nvidia-smi", "-q", limit_s=30),
        "driver": _text("/proc/driver/nvidia/version"),
        "counters": _text("/proc/driver/nvidia/params"),
        "wsl": Path("/dev/dxg").exists(),
        "environment": described,
        "environment_said": None if described else last_lines(environment.output),
    }


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")[:20_000]
    except OSError:
        return None


def _compiler(bench: Bench) -> dict[str, Any]:
    return bench.probe("compiler", limit_s=240)


def _metrics(bench: Bench) -> dict[str, Any]:
    """Metrics that each ncu has for this GPU, or without one for a chip of each capability in our table."""
    return {"ncu": [_known(diagnosis.Ncu(path=path), bench) for path in bench.ncus]}


def _known(ncu: diagnosis.Ncu, bench: Bench) -> dict[str, Any]:
    chips = ncu.chips()
    rows = {
        row.capability: next(chip for chip in row.chips if chip in chips)
        for row in table().rows.values()
        if chips & set(row.chips)
    }
    known = {capability: ncu.metrics(chip) for capability, chip in rows.items()}
    if bench.capability and (own := ncu.metrics(None)):
        known[bench.capability] = own
    return {
        "path": str(ncu.path),
        "version": ncu.version(),
        "chips": sorted(chips),
        "known": {capability: sorted(names) for capability, names in known.items() if capability == bench.capability},
        "missing": {capability: _missing(capability, names) for capability, names in known.items() if names},
    }


def _missing(capability: str, known: frozenset[str]) -> list[str]:
    """Names that our table requests for this GPU and ncu does not have."""
    sets = [choose(capability, precision, known) for precision in Precision]
    sets += [choose_throughput(capability, known), choose_step(known)]
    return sorted({name for wanted in sets for name in wanted.missing})


# --- counters


def _counters(bench: Bench) -> dict[str, Any]:
    """Run hand-written and plain kernels under ncu; one row for each launch."""
    fitting = diagnosis.choose([diagnosis.Ncu(path=path) for path in bench.ncus], bench.capability or "")
    wanted = _wanted(bench.capability or "", fitting.metrics)
    known = tuple(name for name in wanted if base(name) in fitting.metrics)
    roles = {name: name for name in known}
    report, answer = bench.scratch / "counters.ncu-rep", bench.scratch / "counters.json"
    words = command.profile(
        fitting.ncu.path,
        report,
        MetricSet(roles=roles, missing=(), passes=None),
        [*bench.prober, "counters", str(answer)],
        plain_suffixes=fitting.ncu.has_option("--disable-extra-suffixes"),
    )
    end = bench.run(words, limit_s=PART_LIMIT_S, environment=command.LOCALE)
    if not report.is_file():
        first = next((line for line in end.output.splitlines() if "==ERROR==" in line), "it left no report")
        raise PartFailedError(f"ncu ended with exit code {end.returncode}: {first}", last_lines(end.output))
    text = diagnosis.ask(command.import_report(fitting.ncu.path, report)) or ""
    table = NcuSource(path=Path("counters.csv"), content=text.encode())
    launches, notes = metrics.read(table, roles)
    return {
        **bench.answer(answer, end),
        "ncu": fitting.version,
        "asked": list(known),
        "missing": [name for name in wanted if name not in known],
        "notes": list(notes),
        "launches": [_launch(kernel) for kernel in launches],
        "pushed": _pushed(table),
        "seconds": end.elapsed_s,
    }


def _wanted(capability: str, known: frozenset[str]) -> list[str]:
    names = [name for precision in Precision for name in choose(capability, precision, known).names]
    return list(dict.fromkeys([*names, PIPE, CONSTANTS, *L2_NAMES]))


def _launch(kernel: metrics.Kernel) -> dict[str, Any]:
    mark = re.search(r"truth (\w+)", kernel.marks or "")
    return {"range": mark[1] if mark else None, "kernel": kernel.name[:200], "values": dict(kernel.values)}


def _pushed(source: NcuSource) -> int | None:
    """Number of launches in a range of one thread; None if the table has no such column."""
    head = ncu_csv.find(source)
    column = next((index for index, name in enumerate(head.header) if name.startswith(PUSHED)), None)
    if column is None:
        return None
    return sum("pushed" in row[column] for _, _, row in ncu_csv.rows(source, head) if len(row) > column)


def _profile(precision: str, bench: Bench) -> dict[str, Any]:
    """Profile a step of ResNet18 with this product, including calibration."""
    words = ["--model", "resnet18", "--precision", precision, "--batch-size", "32", "--iterations", "20"]
    folder = bench.scratch / "profiled"
    run = bench.train(
        *words, "--device", "cuda", "--no-ceilings", "--profile", "ncu", limit_s=PART_LIMIT_S, output=folder
    )
    tables = sorted(folder.glob("*/ncu/kernels.csv"))
    profile = (run["record"] or {}).get("profile") or {}
    roles = {name: name for name in profile.get("metrics") or ()}
    launches = metrics.read(NcuSource(path=tables[0]), roles)[0] if tables else []
    return {**run, "launches": [{"kernel": each.name[:300], "values": dict(each.values)} for each in launches]}


def _interrupt(bench: Bench) -> dict[str, Any]:
    """Send Ctrl-C while ncu replays kernels: the run must stay complete, and no process of ncu may be left."""
    folder = bench.scratch / "interrupted"
    words = ["--model", "resnet18", "--iterations", "20", "--device", "cuda", "--no-ceilings"]
    run = bench.train(*words, limit_s=120, output=folder)
    bundles = [path.parent for path in folder.glob("*/run.json")]
    if not bundles:
        raise PartFailedError(f"the run before it wrote no bundle: {run['said']}")
    ask = ["profile", str(bundles[0]), "--profile", "ncu", "--profile-steps", "50"]
    after_s = 2 if bench.quick else INTERRUPT_AFTER_S
    end = bench.run([*bench.trainer, *ask], limit_s=after_s)
    record = json.loads((bundles[0] / "run.json").read_text(encoding="utf-8"))
    return {
        "interrupted_after_s": after_s,
        "ended_before_the_signal": not end.timed_out,
        "exit_code": end.returncode,
        "killed": end.returncode == -SIGKILL,
        "status": record.get("status"),
        "profile": record.get("profile"),
        "left_over": _processes_of(str(folder)),
        "said": last_lines(end.output),
    }


def _processes_of(text: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(text in word for word in words):
            found.append(" ".join(words)[:200])
    return found


# --- rates


def _ceilings(bench: Bench) -> dict[str, Any]:
    """Rates from idle for 6 s each, and the ceilings that this product measures."""
    seconds, idle_s = ("0.2", "0") if bench.quick else ("6", "5")
    found = bench.probe("loads", seconds, idle_s, limit_s=240)
    own = bench.run([*bench.trainer, "ceilings", "--device", bench.device, "--format", "json"], limit_s=200)
    try:
        ceilings = json.loads(own.output[own.output.index("{") :])
    except ValueError:
        ceilings = {"said": last_lines(own.output)}
    return {**found, "ceilings": ceilings}


def _model(model: str, bench: Bench) -> dict[str, Any]:
    """Runs in all four precisions, with figures that others published for this GPU."""
    found = {}
    for precision in Precision:
        words = ["--model", model, "--precision", precision, "--device", bench.device, "--no-ceilings"]
        run = bench.train(*words, "--batch-size", str(BATCH), limit_s=180)
        found[precision] = {**run, "published": published((bench.gpu or {}).get("name"), model, precision)}
    return {"model": model, "runs": found}


def published(gpu: str | None, model: str, precision: str) -> list[dict[str, Any]]:
    """Figures that others measured on GPUs of this name, from bands.toml."""
    rows = tomllib.loads(BANDS.read_text(encoding="utf-8"))["published"]
    return [
        {name: value for name, value in row.items() if name != "names"}
        for row in rows
        if gpu in row["names"] and (row["model"], row["precision"]) == (model, precision)
    ]


def _names(bench: Bench) -> dict[str, Any]:
    return {"steps": bench.probe("names", limit_s=300)}


def _loops(bench: Bench) -> dict[str, Any]:
    """Compare loops with and without instruments on a small step, where instruments weigh most."""
    if bench.gpu:
        words = ("resnet18", "32", "224", "40", "20")
    else:
        words = ("shufflenet_v2_x0_5", "2", "64", "4" if bench.quick else "30", "2" if bench.quick else "20")
    return bench.probe("paired", *words, limit_s=300)


# --- failures


def _refusals(bench: Bench) -> dict[str, Any]:
    """Error messages of this product for absent devices; needs no GPU."""
    small = ["--model", "squeezenet1_1", "--batch-size", "2", "--image-size", "64"]
    small += ["--iterations", "2", "--no-ceilings"]
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    cases = {
        "mps": bench.train(*small, "--device", "mps", limit_s=120),
        "cuda, hidden": bench.train(*small, "--device", "cuda", limit_s=120, environment=hidden),
        "auto, hidden": bench.train(*small, "--device", "auto", limit_s=120, environment=hidden),
    }
    return {"cases": cases}


def _failures(bench: Bench) -> dict[str, Any]:
    """Run out of memory in two ways, and try the switches that change which kernels run."""
    memory_bytes = (bench.gpu or {}).get("memory_bytes") or 16e9
    little_more = int(memory_bytes / BYTES_PER_IMAGE) + 1
    common = ["--device", "cuda", "--no-ceilings", "--iterations", "10"]

    def run(model: str, batch_size: int, *words: str) -> dict[str, Any]:
        return bench.train("--model", model, "--batch-size", str(batch_size), *common, *words, limit_s=200)

    cases = {
        "a little too large": run("resnet50", little_more),
        "much too large": run("resnet50", MUCH_MORE * little_more),
        "deterministic": run("resnet18", 32, "--deterministic"),
        "deterministic, adaptive pooling": run("vgg11", 16, "--deterministic", "--image-size", "160"),
        "compile": run("resnet18", 32, "--compile"),
    }
    return {"cases": cases}


def _tests(bench: Bench) -> dict[str, Any]:
    """Run tests/gpu without the tests of profiles, which are separate parts."""
    if importlib.util.find_spec("pytest") is None:
        raise PartFailedError("pytest is not installed")
    if not (ROOT / "tests" / "gpu").is_dir():
        raise PartFailedError("tests/gpu is missing: run this part from a checkout")
    # Our settings and fixtures need plugins that a machine with only pytest lacks. These tests need none of them.
    words = [bench.trainer[0], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"]
    words += ["-W", "ignore", "--rootdir", str(ROOT), str(ROOT / "tests" / "gpu")]
    words += ["-k", "not counted_flop and not further_profiles"]
    end = bench.run(words, limit_s=PART_LIMIT_S, environment={"PYTHONPATH": str(ROOT)})
    return {"exit_code": end.returncode, "timed_out": end.timed_out, "said": last_lines(end.output)}


ON_GPU, UNDER_NCU = frozenset({PartNeed.GPU}), frozenset({PartNeed.GPU, PartNeed.NCU})


def _profile_part(precision: str) -> EvidencePart:
    collect = partial(_profile, precision)
    return EvidencePart(
        name=f"profile-{precision}", what="ResNet18 under ncu", about_s=110, collect=collect, needs=UNDER_NCU
    )


def _model_part(model: str, about_s: int) -> EvidencePart:
    collect = partial(_model, model)
    return EvidencePart(name=model, what="four precisions", about_s=about_s, collect=collect, needs=ON_GPU)


# The most decisive parts come first, in case a call is cut off.
PARTS: tuple[EvidencePart, ...] = (
    EvidencePart(name="machine", what="GPU, driver, torch", about_s=20, collect=_machine),
    EvidencePart(name="compiler", what="hand-written kernels in machine code", about_s=15, collect=_compiler),
    EvidencePart(
        name="metrics", what="the names that ncu knows", about_s=15, collect=_metrics, needs=frozenset({PartNeed.NCU})
    ),
    EvidencePart(name="counters", what="known kernels under ncu", about_s=70, collect=_counters, needs=UNDER_NCU),
    EvidencePart(name="ceilings", what="rates from idle, with sensors", about_s=90, collect=_ceilings, needs=ON_GPU),
    _profile_part("amp"),
    _profile_part("fp32"),
    _model_part("resnet50", 80),
    _model_part("resnet18", 70),
    _model_part("mobilenet_v2", 70),
    _model_part("vit_b_16", 80),
    EvidencePart(name="names", what="every kernel's name", about_s=60, collect=_names, needs=ON_GPU),
    EvidencePart(
        name="failures", what="out of memory, deterministic, compile", about_s=150, collect=_failures, needs=ON_GPU
    ),
    EvidencePart(name="loops", what="instruments against none", about_s=40, collect=_loops),
    EvidencePart(name="refusals", what="devices that are not there", about_s=30, collect=_refusals),
    EvidencePart(name="interrupt", what="Ctrl-C under ncu", about_s=130, collect=_interrupt, needs=UNDER_NCU),
    _profile_part("tf32"),
    _profile_part("bf16"),
    EvidencePart(name="tests", what="the project's tests for a GPU", about_s=130, collect=_tests, needs=ON_GPU),
)

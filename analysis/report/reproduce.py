"""The command line that repeats a run, from the spec in its bundle."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from analysis.report import words
from analysis.report.evidence import Evidence
from workload.errors import UsageError
from workload.spec import Device, RunSpec, arguments, options
from workload.text import printable

SHOWN_RUNS = 3


def commands(evidence: Evidence) -> list[str]:
    """A comment with the runs, and the command, per configuration and place."""
    by_command: dict[tuple[str, str], list[str]] = {}
    for row in words.rows_of(evidence.material.every[["run_id", "env"]]):
        record = evidence.record(row["run_id"])
        line = command(record) if record else "# its bundle is no longer where it was read from"
        by_command.setdefault((row["env"], line), []).append(row["run_id"])
    lines: list[str] = []
    for (env, line), run_ids in by_command.items():
        more = f" and {len(run_ids) - SHOWN_RUNS} more" if len(run_ids) > SHOWN_RUNS else ""
        repeats = f" --repeats {len(run_ids)}" if len(run_ids) > 1 and line.startswith("launch ") else ""
        lines += [f"# {env}: {printable(', '.join(run_ids[:SHOWN_RUNS]))}{more}", f"{line}{repeats}"]
    return lines


def command(record: Mapping[str, Any]) -> str:
    """`launch local --cpu --model resnet18 …`; a comment for a run that no command of ours started."""
    imported = record.get("imported")
    if isinstance(imported, Mapping):
        return shlex.join(["analyze", "import", printable(str(imported.get("file") or "FILE"))])
    spec = _spec(record.get("spec"))
    if spec is None:
        return "# its spec cannot be read"
    environment = record.get("environment")
    facts = environment if isinstance(environment, Mapping) else {}
    words_of_spec = [printable(word) for word in _without_device(arguments(spec))]
    return shlex.join([*_launcher(facts, spec), *words_of_spec])


def _spec(found: Any) -> RunSpec | None:
    """Each value checked as if it had been typed; None where one is not what a run can have."""
    if not isinstance(found, Mapping):
        return None
    known = {option.name: option for option in options()}
    names = {item.name for item in fields(RunSpec)}
    try:
        values = {
            name: known[name].parse(value) for name, value in found.items() if name in names and value is not None
        }
        # Each repeat is a run of its own.
        return RunSpec(**{**values, "repeats": 1})
    except (UsageError, TypeError, ValueError):
        return None


def _launcher(environment: Mapping[str, Any], spec: RunSpec) -> list[str]:
    backend = environment.get("backend")
    if backend == "gcp":
        return ["launch", "gcp", *_gcp(environment)]
    if backend == "slurm":
        return ["launch", "slurm"]
    runtime = environment.get("runtime")
    chosen = ["--runtime", runtime] if runtime in ("process", "docker") else []
    device = [f"--{spec.device}"] if spec.device is not Device.AUTO else []
    return ["launch", "local", *chosen, *device]


def _gcp(environment: Mapping[str, Any]) -> list[str]:
    """GPU and zone as far as the run recorded them."""
    cloud = environment.get("cloud")
    facts = cloud if isinstance(cloud, Mapping) else {}
    device = environment.get("device")
    name = str(device.get("name") or "") if isinstance(device, Mapping) else ""
    # Compute Engine's names for GPUs are the last word or words of NVIDIA's: Tesla T4, NVIDIA L4, Tesla V100-SXM2-16GB.
    gpu = next((word for part in name.split() if (word := part.split("-")[0].lower()) in GPUS), None)
    zone, machine = facts.get("zone"), facts.get("machine_type")
    found = ["--gpu", gpu] if gpu else []
    found += ["--zone", printable(zone)] if isinstance(zone, str) else []
    found += ["--machine-type", printable(machine)] if isinstance(machine, str) else []
    return [*found, "--spot"] if facts.get("preemptible") is True else found


GPUS = frozenset({"t4", "l4", "v100", "a100", "p100", "p4", "h100", "h200", "b200"})


def _without_device(found: Sequence[str]) -> list[str]:
    """The launcher has a switch per device in place of `--device NAME`."""
    words_left = list(found)
    if "--device" in words_left:
        place = words_left.index("--device")
        del words_left[place : place + 2]
    return words_left

"""The command line that repeats a run, from the spec in its bundle."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from analysis.importing import Given
from analysis.report import words
from analysis.report.evidence import ReportEvidence
from workload.contract.errors import UsageError
from workload.contract.spec import Device, RunSpec, arguments, options
from workload.contract.text import printable

SHOWN_RUNS = 3


def commands(evidence: ReportEvidence) -> list[str]:
    """A comment with the runs, and the command, per configuration and place."""
    by_command: dict[tuple[str, str], list[str]] = {}
    for row in words.rows_of(evidence.material.every[["run_id", "env"]]):
        record = evidence.record(row["run_id"])
        line = command(record) if record else "# its bundle is no longer where it was read from"
        by_command.setdefault((row["env"], line), []).append(row["run_id"])
    lines: list[str] = []
    for (env, line), run_ids in by_command.items():
        more = f" and {len(run_ids) - SHOWN_RUNS} more" if len(run_ids) > SHOWN_RUNS else ""
        repeats = f" --repeats {len(run_ids)}" if len(run_ids) > 1 and not line.startswith(("#", "analyze ")) else ""
        lines += [f"# {env}: {printable(', '.join(run_ids[:SHOWN_RUNS]))}{more}", f"{line}{repeats}"]
    return lines


def command(record: Mapping[str, Any]) -> str:
    """`launch local --cpu --model resnet18 …`; a comment for a run that no command of ours started."""
    imported = record.get("imported")
    if isinstance(imported, Mapping):
        return _import(imported)
    spec = _spec(record.get("spec"))
    if spec is None:
        return "# its spec cannot be read"
    environment = record.get("environment")
    facts = environment if isinstance(environment, Mapping) else {}
    words_of_spec = [printable(word) for word in arguments(spec)]
    match facts.get("backend", "local"):
        case "local":
            return shlex.join([*_local(facts, spec), *_without_device(words_of_spec)])
        case "gcp":
            gpu = _gpu(facts)
            if gpu is None:
                return "# it ran on Compute Engine, on a GPU whose name is not in its bundle"
            return shlex.join(["launch", "gcp", "--gpu", gpu, *_machine(facts), *_without_device(words_of_spec)])
        case _:
            # Whatever started it, on a machine like it the trainer does the same.
            return shlex.join(["python", "-m", "workload", "train", *words_of_spec])


def _import(imported: Mapping[str, Any]) -> str:
    """`analyze import FILE` with the options that it was given then."""
    given = imported.get("given")
    known = {field.name for field in fields(Given)}
    options = given.items() if isinstance(given, Mapping) else ()
    options_given = [
        word
        for name, value in options
        if name in known and isinstance(value, str | int)
        for word in (f"--{name.replace('_', '-')}", printable(str(value)))
    ]
    return shlex.join(["analyze", "import", printable(str(imported.get("file") or "FILE")), *options_given])


def _spec(recorded: Any) -> RunSpec | None:
    """Each value checked as if it had been typed; None where one is not what a run can have."""
    if not isinstance(recorded, Mapping):
        return None
    known = {option.name: option for option in options()}
    names = {item.name for item in fields(RunSpec)}
    try:
        values = {
            name: known[name].parse(value) for name, value in recorded.items() if name in names and value is not None
        }
        # Each repeat is a run of its own.
        return RunSpec(**{**values, "repeats": 1})
    except (UsageError, TypeError, ValueError):
        return None


def _local(environment: Mapping[str, Any], spec: RunSpec) -> list[str]:
    runtime = environment.get("runtime")
    chosen = ["--runtime", runtime] if runtime in ("process", "docker") else []
    device = [f"--{spec.device}"] if spec.device is not Device.AUTO else []
    return ["launch", "local", *chosen, *device]


def _gpu(environment: Mapping[str, Any]) -> str | None:
    """`t4`: from the place, which is called after the GPU that was asked for and the zone; else from the device."""
    place, zone = str(environment.get("place") or ""), str(_part(environment, "cloud").get("zone") or "")
    if zone and place.startswith("gcp-") and place.endswith(f"-{zone}"):
        return printable(place.removeprefix("gcp-").removesuffix(f"-{zone}"))
    # Compute Engine's names for GPUs are the last word or words of NVIDIA's: Tesla T4, NVIDIA L4, Tesla V100-SXM2-16GB.
    name = str(_part(environment, "device").get("name") or "")
    return next((word for part in name.split() if (word := part.split("-")[0].lower()) in GPUS), None)


GPUS = frozenset({"t4", "l4", "v100", "a100", "h100", "h200"})


def _machine(environment: Mapping[str, Any]) -> list[str]:
    """Zone, machine type and kind of price, as far as the run recorded them."""
    facts = _part(environment, "cloud")
    zone, machine = facts.get("zone"), facts.get("machine_type")
    known = ["--zone", printable(zone)] if isinstance(zone, str) else []
    known += ["--machine-type", printable(machine)] if isinstance(machine, str) else []
    return [*known, "--spot"] if facts.get("preemptible") is True else known


def _part(environment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = environment.get(name)
    return part if isinstance(part, Mapping) else {}


def _without_device(arguments_given: Sequence[str]) -> list[str]:
    """The launcher has a switch per device in place of `--device NAME`."""
    words_left = list(arguments_given)
    if "--device" in words_left:
        place = words_left.index("--device")
        del words_left[place : place + 2]
    return words_left

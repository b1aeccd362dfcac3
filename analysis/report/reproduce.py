"""Command lines that repeat runs, from the specs in their bundles."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from analysis.loading.cases import Case
from analysis.loading.rows import rows as rows_of
from analysis.report.evidence import ReportEvidence
from workload.contract import peaks
from workload.contract.environment_record import CloudFacts, Environment
from workload.contract.errors import UsageError
from workload.contract.fields import encode
from workload.contract.import_record import Imported
from workload.contract.record import Record, Spec
from workload.contract.spec import Device, Profile, RunSpec, arguments
from workload.contract.text import printable

SHOWN_RUNS = 3


def commands(evidence: ReportEvidence) -> list[str]:
    """Two lines per configuration and place: a comment with the runs, and the command."""
    by_command: dict[tuple[str, str], list[str]] = {}
    every = rows_of(evidence.material.every[["run_id", "env"]])
    for row, line in zip(every, evidence.of_runs.of(command_of), strict=True):
        by_command.setdefault((row["env"], line), []).append(row["run_id"])
    lines: list[str] = []
    for (env, line), run_ids in by_command.items():
        more = f" and {len(run_ids) - SHOWN_RUNS} more" if len(run_ids) > SHOWN_RUNS else ""
        lines += [f"# {env}: {printable(', '.join(run_ids[:SHOWN_RUNS]))}{more}", _repeated(line, len(run_ids))]
    return lines


def command_of(case: Case) -> str:
    """The command that repeats a run, or a comment that tells why there is none; see `analysis.loading.of_runs`."""
    return command(case.stored_record) if case.stored_record else "# the bundle can no longer be read"


def _repeated(line: str, repeats: int) -> str:
    """The command with the number of repeats; words after ` -- ` belong to a user's script."""
    if repeats == 1 or line.startswith(("#", "analyze ")):
        return line
    ours, dashes, script = line.partition(" -- ")
    return f"{ours} --repeats {repeats}{dashes}{script}"


def command(record: Record) -> str:
    """The command that repeats a run, for example `launch local --cpu --model resnet18 …`.

    If the spec cannot be read or the GPU is unknown, a comment that gives this reason.
    """
    if record.imported or record.spec.script:
        return _import(record.imported) if record.imported else _script(record.spec)
    try:
        # Each repeat was a separate run with a record of its own.
        spec = replace(record.spec.run_spec(), repeats=1)
    except UsageError:
        return "# the spec in the bundle cannot be read"
    words_of_spec = [printable(word) for word in arguments(spec)]
    environment = record.environment
    match environment.backend or "local":
        case "local":
            return shlex.join([*_local(environment, spec), *_without_device(words_of_spec)])
        case "gcp":
            gpu = _gpu(environment)
            if gpu is None:
                return "# measured on Compute Engine, on a GPU that the bundle does not name"
            return shlex.join(
                ["launch", "gcp", "--gpu", gpu, *_machine(environment.cloud), *_without_device(words_of_spec)]
            )
        case _:
            # Other backends: repeat the run by the trainer itself, on a similar machine.
            return shlex.join(["python", "-m", "workload", "train", *words_of_spec])


def _script(spec: Spec) -> str:
    """The command for a user's script, to be run in the folder in which the script was measured.

    The backend is not repeated, because it does not change the steps.
    """
    argv = (spec.script and spec.script.argv) or ("train.py",)
    options = [("--warmup", spec.warmup), ("--iterations", spec.iterations)]
    options += [("--samples-per-step", spec.samples_per_step)]
    words_of_spec = [word for flag, value in options if value is not None for word in (flag, f"{value:g}")]
    if spec.profile not in (None, Profile.NONE):
        words_of_spec += ["--profile", str(spec.profile), "--profile-steps", f"{spec.profile_steps or 1:g}"]
    words_of_spec += ["--", *(printable(str(word)) for word in argv)]
    return shlex.join(["python", "-m", "rooflaunch", "script", *words_of_spec])


def _import(imported: Imported) -> str:
    """`analyze import FILE` with the options of the original import."""
    options = encode(imported.given) if imported.given else {}
    options_given = [
        word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", printable(str(value)))
    ]
    return shlex.join(["analyze", "import", printable(imported.file or "FILE"), *options_given])


def _local(environment: Environment, spec: RunSpec) -> list[str]:
    chosen = ["--runtime", environment.runtime] if environment.runtime in ("process", "docker") else []
    device = [f"--{spec.device}"] if spec.device is not Device.AUTO else []
    return ["launch", "local", *chosen, *device]


def _gpu(environment: Environment) -> str | None:
    """The GPU's name for the launcher, for example `t4`: from the place (GPU and zone), else from the device.

    If several devices share a name, the memory distinguishes them. None if unknown.
    """
    place, zone = environment.place or "", (environment.cloud and environment.cloud.zone) or ""
    if zone and place.startswith("gcp-") and place.endswith(f"-{zone}"):
        return printable(place.removeprefix("gcp-").removesuffix(f"-{zone}"))
    gpu = peaks.find_gpu(environment.device.name, memory_bytes=environment.device.memory_total_bytes)
    return ON_COMPUTE_ENGINE.get(gpu.gpu) if gpu else None


# Names for `launch gcp --gpu` of the devices of peaks.toml.
ON_COMPUTE_ENGINE = {
    "T4": "t4",
    "L4": "l4",
    "V100 SXM2": "v100",
    "A100 40 GB": "a100",
    "A100 80 GB SXM": "a100-80gb",
    "H100 SXM5": "h100",
    "H200 SXM": "h200",
}


def _machine(cloud: CloudFacts | None) -> list[str]:
    """Options for zone, machine type and kind of price, as far as the run recorded them."""
    if cloud is None:
        return []
    known = ["--zone", printable(cloud.zone)] if cloud.zone else []
    known += ["--machine-type", printable(cloud.machine_type)] if cloud.machine_type else []
    return [*known, "--spot"] if cloud.spot else known


def _without_device(arguments_given: Sequence[str]) -> list[str]:
    """Arguments without `--device NAME`: the launcher has a switch for each device instead."""
    words_left = list(arguments_given)
    if "--device" in words_left:
        place = words_left.index("--device")
        del words_left[place : place + 2]
    return words_left

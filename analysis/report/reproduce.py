"""Command lines that repeat runs, from the specs in their bundles."""

import shlex
from dataclasses import replace

import pandas as pd

from analysis.loading.cases import Case
from analysis.loading.of_runs import OfRuns
from workload.contract.errors import UsageError
from workload.contract.fields import encode
from workload.contract.record import Record, Spec
from workload.contract.record_sections import Environment, SlurmFacts
from workload.contract.spec import Device, Profile, arguments
from workload.contract.text import printable

SHOWN_RUNS = 3


def commands(every: pd.DataFrame, of_runs: OfRuns) -> list[str]:
    """Two lines per configuration and place: a comment with the runs, and the command.

    `every`: the runs of `of_runs`, with the columns `run_id` and `env`.
    """
    by_command: dict[tuple[str, str], list[str]] = {}
    for run_id, env, line in zip(every["run_id"], every["env"], of_runs.of(command_of), strict=True):
        by_command.setdefault((env, line), []).append(run_id)
    lines: list[str] = []
    for (env, line), run_ids in by_command.items():
        more = f" and {len(run_ids) - SHOWN_RUNS} more" if len(run_ids) > SHOWN_RUNS else ""
        if len(run_ids) > 1 and not line.startswith(("#", "analyze ")):
            # Words after ` -- ` belong to a user's script.
            ours, dashes, script = line.partition(" -- ")
            line = f"{ours} --repeats {len(run_ids)}{dashes}{script}"  # noqa: PLW2901 - the same command, of all
        lines += [f"# {env}: {printable(', '.join(run_ids[:SHOWN_RUNS]))}{more}", line]
    return lines


def command_of(case: Case) -> str:
    """The command that repeats a run, or a comment that tells why there is none; see `analysis.loading.of_runs`."""
    return command(case.stored_record) if case.stored_record else "# the bundle can no longer be read"


def command(record: Record) -> str:
    """The command that repeats a run, for example `launch local --cpu --model resnet18 …`.

    If the spec cannot be read or the GPU is unknown, a comment that gives this reason.
    """
    if record.imported:
        options = encode(record.imported.given) if record.imported.given else {}
        words = [
            word
            for name, value in options.items()
            for word in ("--gpu-index" if name == "device" else f"--{name.replace('_', '-')}", printable(str(value)))
        ]
        return shlex.join(["analyze", "import", printable(record.imported.file or "FILE"), *words])
    place = _place_words(record.environment, record.spec.device)
    if isinstance(place, str):
        return f"# {place}"
    try:
        # Each repeat was a separate run with a record of its own. The launcher has a switch for each device.
        words_of_spec = (
            _script_words(record.spec)
            if record.spec.script
            else [printable(word) for word in arguments(replace(record.spec.run_spec(), repeats=1, device=Device.AUTO))]
        )
    except UsageError:
        return "# the spec in the bundle cannot be read"
    return shlex.join(["launch", *place, *words_of_spec])


def _place_words(environment: Environment, device: str | None) -> list[str] | str:
    """Backend of `launch` and its options that name the place of a run; the reason if the bundle does not tell it.

    A value that a bundle keeps private is a blank to fill in: `USER@HOST`.
    """
    cloud, backend = environment.cloud, environment.backend or "local"
    runtime = {"runtime": environment.runtime} if environment.runtime in ("process", "docker") else {}
    # Without it, a machine with a GPU would use the GPU.
    on_cpu = {"device": device} if device == Device.CPU else {}
    options: dict[str, str | bool | None]
    match backend:
        case "local":
            options = {**runtime, "device": None if device == Device.AUTO else device}
        case "ssh":
            # A place is named after its host, with `-` for every other character; user and port are not recorded.
            name = (environment.place or "").removeprefix("ssh-")
            options = {"host": name if name.isalnum() else "USER@HOST", **runtime, **on_cpu}
        case "slurm":
            job = environment.slurm or SlurmFacts()
            gpus = job.gpus_on_node if device != Device.CPU else None
            node = {"partition": job.partition, "constraint": job.constraint, "gres": gpus and f"gpu:{gpus}"}
            options = {**node, **on_cpu}
        case _:
            # A machine that a cloud rents out; `launch batch` takes the region instead of finding one.
            zone = (cloud and cloud.zone) or ""
            named = (environment.place or "").removeprefix(f"{backend}-").removesuffix(f"-{zone}")
            if not zone or environment.place != f"{backend}-{named}-{zone}":
                return f"measured by the backend {printable(backend)}, on a GPU that the bundle does not name"
            region = {"region": zone.rpartition("-")[0]} if backend == "batch" else {}
            machine = (cloud.machine_type, bool(cloud.spot)) if cloud else (None, None)
            options = {**region, "gpu": named, "zone": zone, "machine_type": machine[0], "spot": machine[1]}
    words: list[str] = [backend]
    for key, value in options.items():
        if key == "device" and value:
            words.append(f"--{value}")
        elif value:
            flag = f"--{key.replace('_', '-')}"
            words += [flag] if value is True else [flag, printable(str(value))]
    return words


def _script_words(spec: Spec) -> list[str]:
    """Options and command of a user's script, to be run in the folder in which the script was measured."""
    argv = (spec.script and spec.script.argv) or ("train.py",)
    options = [("--warmup", spec.warmup), ("--iterations", spec.iterations)]
    options += [("--samples-per-step", spec.samples_per_step)]
    words_of_spec = [word for flag, value in options if value is not None for word in (flag, f"{value:g}")]
    if spec.profile not in (None, Profile.NONE):
        words_of_spec += ["--profile", str(spec.profile), "--profile-steps", f"{spec.profile_steps or 1:g}"]
        words_of_spec += ["--ncu-metrics", printable(spec.ncu_metrics)] if spec.ncu_metrics else []
    return [*words_of_spec, "--", *(printable(str(word)) for word in argv)]

"""The commands that repeat what a report shows."""

import json
from dataclasses import fields, replace
from typing import Any

from analysis.report import evidence as reproduce
from analysis.report.evidence import ReportEvidence
from tests.analysis.sentence_runs import Golden
from tests.docs import grammar
from workload.contract import record as contract
from workload.contract.record import Record
from workload.contract.record_sections import GivenByUser
from workload.contract.spec import Device, Precision, Profile, RunSpec, arguments

LOCAL = {"backend": "local", "runtime": "process"}


def read(document: dict[str, Any]) -> Record:
    """A run.json of these sections and what every run has."""
    spec = {"model": "resnet18", "batch_size": 4} | document.get("spec", {})
    return contract.read({"run_id": "a", "status": "completed", **document, "spec": spec}).record


# Environment and spec of a run.
RUNS: dict[str, tuple[Any, RunSpec]] = {
    "a CPU of this machine": (LOCAL, RunSpec(device=Device.CPU, batch_size=4, repeats=3)),
    "a default runtime": ({"backend": "local"}, RunSpec(model="vgg11")),
    "a container": (
        {"backend": "local", "runtime": "docker"},
        RunSpec(device=Device.CUDA, precision=Precision.AMP, profile=Profile.NCU, ceilings=False),
    ),
    "a data set with blanks": (LOCAL, RunSpec(device=Device.CPU, dataset="/my photos; rm -rf ~")),
    "Google Cloud": (
        {
            "backend": "gcp",
            "place": "gcp-v100-europe-west4-a",
            "cloud": {"zone": "europe-west4-a", "machine_type": "n1-standard-8", "spot": True},
        },
        RunSpec(device=Device.CUDA, batch_size=64),
    ),
    "a GPU of two sizes": (
        {
            "backend": "gcp",
            "place": "gcp-a100-80gb-us-central1-a",
            "cloud": {"zone": "us-central1-a", "machine_type": "a2-ultragpu-1g"},
        },
        RunSpec(),
    ),
    "AWS": (
        {
            "backend": "aws",
            "place": "aws-t4-us-east-1a",
            "cloud": {"zone": "us-east-1a", "machine_type": "g5.xlarge"},
        },
        RunSpec(),
    ),
    "an unknown GPU": ({"backend": "gcp", "device": {"name": 4}, "cloud": "no"}, RunSpec()),
    "Slurm": (
        {"backend": "slurm", "slurm": {"partition": "gpu", "gpus_on_node": "1"}},
        RunSpec(device=Device.CUDA, seed=1),
    ),
    "Slurm, a CPU": ({"backend": "slurm"}, RunSpec(device=Device.CPU)),
    "ssh": ({"backend": "ssh", "place": "ssh-lab", "runtime": "process"}, RunSpec(device=Device.CPU)),
    "ssh, a container": ({"backend": "ssh", "runtime": "docker", "place": "ssh-gpubox"}, RunSpec()),
    "ssh, an address": ({"backend": "ssh", "place": "ssh-10-0-0-7"}, RunSpec()),
    "Cloud Batch": (
        {
            "backend": "batch",
            "place": "batch-l4-us-east4-c",
            "cloud": {"zone": "us-east4-c", "machine_type": "g2-standard-8", "spot": True},
        },
        RunSpec(),
    ),
    "nothing known": ([], RunSpec()),
}
RECORDS: dict[str, dict[str, Any]] = {
    "an imported file": {"imported": {"file": "my log.csv"}},
    "an import of which much was said": {
        "imported": {
            "file": "ncu.csv",
            "given": {"model": "resnet 50", "batch_size": 64, "gpu": "Tesla T4", "profile_steps": 4, "rm": 1},
        }
    },
    "an import of an unknown file": {"imported": {}},
    "an unknown precision": {"spec": {"precision": "fp7"}},
    "half a worker": {"spec": {"workers": 1.5}},
    "a newline": {"environment": LOCAL, "spec": {"model": "resnet18\nrm -rf ~"}},
    "a script with metrics of its own": {
        "spec": {
            "profile": "ncu",
            "profile_steps": 2,
            "ncu_metrics": "dram__bytes.sum,sm__x.avg",
            "script": {"argv": ["train.py"]},
        }
    },
}


def test_commands_repeat_the_run(golden: Golden) -> None:
    records = dict(RECORDS)
    for name, (environment, spec) in RUNS.items():
        filled = replace(spec, batch_size=spec.batch_size or 4)
        records[name] = {"environment": environment, "spec": json.loads(json.dumps(filled.to_json()))}
    lines = {name: reproduce.command(read(record)) for name, record in records.items()}
    for line in lines.values():
        if not line.startswith("#"):
            grammar.check(line)
    golden("commands.txt", "".join(f"{name}:\n    {line}\n" for name, line in lines.items()))


def test_what_was_said_of_an_import_is_said_again() -> None:
    """Each option of `analyze import` that says what the file does not is kept in its bundles, and so is printed."""
    options = {name for parameter in grammar.PROGRAMS["analyze"].commands["import"].params for name in parameter.opts}
    numbers = ("batch_size", "profile_steps", "image_size", "device")
    every = {field.name: 1 if field.name in numbers else "x" for field in fields(GivenByUser)}
    line = reproduce.command(read({"imported": {"file": "a.csv", "given": every}}))
    ours = {"--output", "--help", "--wide", "--peaks"}
    assert {name for name in options if name.startswith("--")} - ours == {
        word for word in line.split() if word[:2] == "--"
    }
    given = {"model": "resnet50", "batch_size": 64, "precision": "amp", "gpu": "Tesla T4", "profile_steps": 2}
    line = reproduce.command(read({"imported": {"file": "a.csv", "given": given}}))
    grammar.check(line)
    assert [word for word in given if f"--{word.replace('_', '-')} " not in line] == []


def test_a_command_gives_the_same_spec_back(evidence: ReportEvidence) -> None:
    record = evidence.record(evidence.material.every["run_id"].iloc[0])
    line = reproduce.command(record)
    assert line.startswith(
        "launch gcp --gpu t4 --zone us-central1-a --machine-type n1-standard-4 --spot --batch-size 16 "
    )
    assert record is not None
    for word in arguments(replace(record.spec.run_spec(), device=Device.AUTO, repeats=1)):
        assert word in line.split()

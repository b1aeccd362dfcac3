"""The commands that repeat what a report shows."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from analysis.report import evidence as reproduce
from analysis.report.evidence import ReportEvidence
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


@pytest.mark.parametrize(
    ("environment", "spec", "line"),
    [
        (
            LOCAL,
            RunSpec(device=Device.CPU, batch_size=4, repeats=3),
            "launch local --runtime process --cpu --batch-size 4",
        ),
        ({"backend": "local"}, RunSpec(model="vgg11"), "launch local --model vgg11 --batch-size 4"),
        (
            {"backend": "local", "runtime": "docker"},
            RunSpec(device=Device.CUDA, precision=Precision.AMP, profile=Profile.NCU, ceilings=False),
            "launch local --runtime docker --cuda --batch-size 4 --precision amp --profile ncu --no-ceilings",
        ),
        (
            LOCAL,
            RunSpec(device=Device.CPU, dataset="/my photos; rm -rf ~"),
            "launch local --runtime process --cpu --batch-size 4 --dataset '/my photos; rm -rf ~'",
        ),
        (
            {
                "backend": "gcp",
                "place": "gcp-v100-europe-west4-a",
                "cloud": {"zone": "europe-west4-a", "machine_type": "n1-standard-8", "spot": True},
            },
            RunSpec(device=Device.CUDA, batch_size=64),
            "launch gcp --gpu v100 --zone europe-west4-a --machine-type n1-standard-8 --spot --batch-size 64",
        ),
        (
            {
                "backend": "gcp",
                "place": "gcp-a100-80gb-us-central1-a",
                "cloud": {"zone": "us-central1-a", "machine_type": "a2-ultragpu-1g"},
            },
            RunSpec(),
            "launch gcp --gpu a100-80gb --zone us-central1-a --machine-type a2-ultragpu-1g --batch-size 4",
        ),
        (
            {
                "backend": "aws",
                "place": "aws-t4-us-east-1a",
                "cloud": {"zone": "us-east-1a", "machine_type": "g5.xlarge"},
            },
            RunSpec(),
            "launch aws --gpu t4 --zone us-east-1a --machine-type g5.xlarge --batch-size 4",
        ),
        (
            {"backend": "gcp", "device": {"name": 4}, "cloud": "no"},
            RunSpec(),
            "# measured by the backend gcp, on a GPU that the bundle does not name",
        ),
        (
            {"backend": "slurm", "slurm": {"partition": "gpu", "gpus_on_node": "1"}},
            RunSpec(device=Device.CUDA, seed=1),
            "launch slurm --partition gpu --gres gpu:1 --batch-size 4 --seed 1",
        ),
        ({"backend": "slurm"}, RunSpec(device=Device.CPU), "launch slurm --cpu --batch-size 4"),
        (
            {"backend": "ssh", "place": "ssh-lab", "runtime": "process"},
            RunSpec(device=Device.CPU),
            "launch ssh --host lab --runtime process --cpu --batch-size 4",
        ),
        (
            {"backend": "ssh", "runtime": "docker", "place": "ssh-gpubox"},
            RunSpec(),
            "launch ssh --host gpubox --runtime docker --batch-size 4",
        ),
        ({"backend": "ssh", "place": "ssh-10-0-0-7"}, RunSpec(), "launch ssh --host USER@HOST --batch-size 4"),
        (
            {
                "backend": "batch",
                "place": "batch-l4-us-east4-c",
                "cloud": {"zone": "us-east4-c", "machine_type": "g2-standard-8", "spot": True},
            },
            RunSpec(),
            (
                "launch batch --region us-east4 --gpu l4 --zone us-east4-c --machine-type g2-standard-8 --spot "
                "--batch-size 4"
            ),
        ),
        ([], RunSpec(), "launch local --batch-size 4"),
    ],
)
def test_commands_repeat_the_run(environment: Any, spec: RunSpec, line: str) -> None:
    filled = replace(spec, batch_size=spec.batch_size or 4)
    record = {"environment": environment, "spec": json.loads(json.dumps(filled.to_json()))}
    assert reproduce.command(read(record)) == line
    if not line.startswith("#"):
        grammar.check(line)


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


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"imported": {"file": "my log.csv"}}, "analyze import 'my log.csv'"),
        (
            {
                "imported": {
                    "file": "ncu.csv",
                    "given": {"model": "resnet 50", "batch_size": 64, "gpu": "Tesla T4", "profile_steps": 4, "rm": 1},
                }
            },
            "analyze import ncu.csv --model 'resnet 50' --batch-size 64 --gpu 'Tesla T4' --profile-steps 4",
        ),
        ({"imported": {}}, "analyze import FILE"),
        ({"spec": {"precision": "fp7"}}, "# the spec in the bundle cannot be read"),
        ({"spec": {"workers": 1.5}}, "# the spec in the bundle cannot be read"),
    ],
)
def test_what_no_command_started_says_so(record: dict[str, Any], line: str) -> None:
    assert reproduce.command(read(record)) == line
    if not line.startswith("#"):
        grammar.check(line)


def test_repeats_share_a_line(evidence: ReportEvidence) -> None:
    lines = reproduce.commands(evidence.material.every, evidence.of_runs)
    assert len(lines) == 2 * 12
    assert lines[0].startswith("# gcp-t4-us-central1-a: 20261101T000100Z-")
    assert lines[1].endswith(" --repeats 3")


def test_a_newline_in_a_spec_starts_no_second_command() -> None:
    record = read({"environment": LOCAL, "spec": {"model": "resnet18\nrm -rf ~"}})
    assert reproduce.command(record) == "launch local --runtime process --model 'resnet18\\nrm -rf ~' --batch-size 4"


def test_a_scripts_own_metrics_are_asked_for_again() -> None:
    profile = {"profile": "ncu", "profile_steps": 2, "ncu_metrics": "dram__bytes.sum,sm__x.avg"}
    line = reproduce.command(read({"spec": {**profile, "script": {"argv": ["train.py"]}}}))
    assert line.endswith(" --profile ncu --profile-steps 2 --ncu-metrics dram__bytes.sum,sm__x.avg -- train.py")
    grammar.check(line)

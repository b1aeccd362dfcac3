"""The agent with somebody's own script: its files, its data and its variables on the machine, and none left behind."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_machine import CPU, NAME, Machine

from launcher.protocol import records
from launcher.script import files
from tests.launcher.script.test_script_files import archive, entry
from workload.contract.errors import ExitCode

WORDS = ["train.py", "--root", "{data}"]


@pytest.fixture
def asked(machine: Machine) -> Machine:
    """A machine that is to run a script; what it needs lies in the store."""
    content = archive(entry("train.py", b"print()"))
    digest = hashlib.sha256(content).hexdigest()
    machine.bucket.held[files.archive_object(digest)] = content
    machine.bucket.held[records.variables_object(NAME)] = b'{"values": {"HF_TOKEN": "hf_1"}}'
    script = {"sha256": digest, "files": 1, "bytes": len(content), "commit": "c" * 40, "env": ["HF_TOKEN"]}
    request = machine.asked(CPU)
    machine.request = replace(request, spec={**request.spec, "script": WORDS}, script={**script, "data": "/data"})
    return machine


def test_the_container_has_files_data_and_variables(asked: Machine) -> None:
    (asked.home / "host/data").mkdir(parents=True)
    asked.trains(*asked.run_of("run-1"))
    assert asked.work().exit_code == 0
    [container] = asked.docker.containers.created
    script = asked.home / "script"
    assert (script / "train.py").read_bytes() == b"print()"
    arguments: dict[str, Any] = container.arguments
    words = arguments["command"]
    assert words[words.index("--") :] == ["--", *WORDS]
    assert words[words.index("--data") + 1] == "/data"
    assert json.loads(words[words.index("--context") + 1])["script_commit"] == "c" * 40
    assert [(mount["Source"], mount["ReadOnly"]) for mount in arguments["mounts"]] == [
        (str(asked.home / "results"), False),
        (str(script), False),
        ("/data", True),
    ]
    assert (arguments["working_dir"], arguments["environment"]["HF_TOKEN"]) == (str(script), "hf_1")
    assert asked.bucket.held[records.variables_object(NAME)] == b"{}"


def test_values_of_variables_that_the_script_prints_are_hidden(
    asked: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    (asked.home / "host/data").mkdir(parents=True)
    values = {"HF_TOKEN": "my secret token", "LEVEL": "INFO", "KEY": "line one\nline two\n"}
    asked.bucket.held[records.variables_object(NAME)] = json.dumps({"values": values}).encode()
    asked.request = replace(asked.request, script={**asked.request.script, "env": list(values)})
    asked.trains((None, b"INFO: my secret token!\nline two\nerror: no my secret token\n"))
    asked.docker.containers.exit_code = ExitCode.RUN_FAILED
    result = asked.work()
    assert result.error == "no [redacted]"
    assert "INFO: [redacted]!\n[redacted]\nerror: no [redacted]\n" in capsys.readouterr().err


def test_a_launch_that_goes_on_elsewhere_keeps_its_variables(asked: Machine) -> None:
    (asked.home / "host/data").mkdir(parents=True)
    asked.host.is_back_later = True
    asked.host.taken.set()
    asked.agent().work()
    assert asked.bucket.held[records.variables_object(NAME)] == b'{"values": {"HF_TOKEN": "hf_1"}}'


def test_no_data_there(asked: Machine) -> None:
    result = asked.work()
    assert (result.exit_code, result.error) == (ExitCode.USAGE, "no data at '/data' on this machine")
    assert result.hint == "--data with a path that exists"
    assert asked.docker.containers.created == []
    assert asked.bucket.held[records.variables_object(NAME)] == b"{}"


@pytest.mark.parametrize("address", ["gs://bucket/photos", "s3://bucket/photos"])
def test_data_of_a_bucket_lies_in_the_launchs_folder(
    address: str, asked: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[str, Path]] = []
    monkeypatch.setattr(files, "fetch_data", lambda address, folder, **_: copied.append((address, folder)))
    asked.request = replace(asked.request, script={**asked.request.script, "data": address})
    asked.trains(*asked.run_of("run-1"))
    assert asked.work().exit_code == 0
    assert copied == [(address, asked.home / "data/script")]
    [container] = asked.docker.containers.created
    words = container.arguments["command"]
    assert words[words.index("--data") + 1] == str(asked.home / "data/script")

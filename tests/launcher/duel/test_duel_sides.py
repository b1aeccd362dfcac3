"""What A and B are, from what was typed."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.duel import sides
from launcher.duel.sides import Pair, Request
from launcher.machine.script_process import Workplace
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError


def prepare(*words: str, environment: Mapping[str, str] | None = None, **changes: Any) -> Pair:
    plain: dict[str, Any] = {"shared": {}, "words": words, "commits": None, "images": None, "output": Path("out")}
    with sides.prepared(Request(**plain | changes), environment or {}) as pair:
        return pair


def test_options_against_options() -> None:
    shared = {"model": "mobilenet_v2", "device": "cpu", "precision": "fp32"}
    pair = prepare("--batch-size=8", "---", "--precision", "bf16", "--cuda", "--no-channels-last", shared=shared)

    a, b = pair.a.plan.spec, pair.b.plan.spec
    assert (a.model, a.device, a.precision, a.batch_size) == ("mobilenet_v2", "cpu", "fp32", 8)
    assert (b.model, b.device, b.precision, b.batch_size) == ("mobilenet_v2", "cuda", "bf16", None)
    assert (pair.a.label, pair.b.label) == ("--batch-size=8", "--precision bf16 --cuda --no-channels-last")
    assert not pair.are_equal
    assert prepare("--devices", "2", "---", "--devices", "2", shared={"device": "cpu"}).are_equal


def test_a_segment_measures_3_seconds_and_no_ceilings_unless_told_otherwise() -> None:
    environment = {"ROOFLAUNCH_REPEATS": "5", "ROOFLAUNCH_PROFILE": "torch"}
    pair = prepare("---", "--ceilings", "--min-seconds", "1", environment=environment)

    a, b = pair.a.plan.spec, pair.b.plan.spec
    assert (a.ceilings, a.min_seconds, b.ceilings, b.min_seconds) == (False, 3.0, True, 1.0)
    assert (a.repeats, a.profile, b.repeats, b.profile) == (1, "none", 1, "none")


MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "two kinds": ("---", {"commits": ("a", "b")}),
    "one side": ("--precision fp32", {}),
    "unknown option": ("--- --precison bf16", {}),
    "an option against a script": ("--lr --- -m package.train", {}),
    "data that nobody named": ("-m json.tool --- -m json.tool {data}", {}),
    "no data": ("-m x --- -m x", {"data": "nowhere"}),
    "data without a script": ("---", {"data": "."}),
    "repeats": ("--- --repeats 3", {}),
    "other devices": ("--- --devices 2", {"shared": {"device": "cpu"}}),
}


def test_mistakes(golden: Golden) -> None:
    cases = {name: partial(prepare, *words.split(), **changes) for name, (words, changes) in MISTAKES.items()}
    golden("mistakes.txt", told(cases))


def test_a_script_against_itself_with_other_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    words = ("train.py", "--lr", "1", "---", "train.py", "--root", "{data}", "--token", "hunter2")
    pair = prepare(*words, shared={"device": "cpu", "iterations": "5"}, data=".")

    assert (pair.a.label, pair.b.label) == ("train.py --lr 1", "train.py --root '{data}' --token '[redacted]'")
    a, b = pair.a.plan, pair.b.plan
    assert (a.spec.script, b.spec.script) == (words[:3], words[4:])
    assert (a.spec.iterations, a.spec.min_seconds, a.spec.ceilings) == (5, 3.0, False)
    assert a.workplace == b.workplace == Workplace(folder=tmp_path, data=str(tmp_path))
    assert not pair.are_equal
    assert prepare("train.py", "---", "train.py").are_equal


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Any) -> None:
    from launcher import docker_engine

    docker.hold("sha256:" + "a" * 64, "rooflaunch:one")
    docker.hold("sha256:" + "b" * 64, "rooflaunch:two")
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    monkeypatch.setattr(sides, "outside_facts", dict)

    pair = prepare(images=("rooflaunch:one", "rooflaunch:two"), shared={"device": "cpu"})

    assert (pair.a.label, pair.b.label) == (
        "rooflaunch:one (sha256:aaaaaaaaaaaa)",
        "rooflaunch:two (sha256:bbbbbbbbbbbb)",
    )
    assert [side.plan.container.image for side in (pair.a, pair.b) if side.plan.container] == [
        "sha256:" + "a" * 64,
        "sha256:" + "b" * 64,
    ]
    assert not pair.are_equal
    assert prepare(images=("rooflaunch:one", "rooflaunch:one"), shared={"device": "cpu"}).are_equal
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    pair = prepare("train.py", images=("rooflaunch:one", "rooflaunch:two"), shared={"device": "cpu"})
    assert [side.plan.spec.script for side in (pair.a, pair.b)] == [("train.py",)] * 2
    assert pair.a.plan.container is not None
    assert pair.a.plan.container.command[-1] == "train.py"
    with pytest.raises(ToolError) as caught:
        prepare(images=("rooflaunch:one", "rooflaunch:three"), shared={"device": "cpu"})
    assert str(caught.value) == "the engine has no image 'rooflaunch:three'"

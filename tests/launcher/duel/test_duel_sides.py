"""What A and B are, from what was typed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.duel import sides
from launcher.duel.sides import EXAMPLE, SCRIPT_EXAMPLE, Pair, Request
from launcher.machine.runtime import Workplace
from workload.contract.errors import ToolError, UsageError

OPTIONS = "an option of launch local --help, without --repeats and --profile"


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


def test_a_segment_measures_3_seconds_and_no_ceilings_unless_told_otherwise() -> None:
    environment = {"ROOFLAUNCH_REPEATS": "5", "ROOFLAUNCH_PROFILE": "torch"}
    pair = prepare("---", "--ceilings", "--min-seconds", "1", environment=environment)

    a, b = pair.a.plan.spec, pair.b.plan.spec
    assert (a.ceilings, a.min_seconds, b.ceilings, b.min_seconds) == (False, 3.0, True, 1.0)
    assert (a.repeats, a.profile, b.repeats, b.profile) == (1, "none", 1, "none")


def test_sides_need_the_same_number_of_devices() -> None:
    assert prepare("--devices", "2", "---", "--devices", "2", shared={"device": "cpu"}).are_equal
    with pytest.raises(UsageError) as caught:
        prepare("---", "--devices", "2", shared={"device": "cpu"})
    assert str(caught.value) == "a duel needs the same number of devices on both sides; got --devices 1 and 2"
    assert "launch sweep with devices = [1, 2]" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "changes", "message", "hint"),
    [
        pytest.param((), {}, "a duel needs two sides: options, commits or images", EXAMPLE, id="nothing"),
        pytest.param(
            ("---",),
            {"commits": ("a", "b")},
            "a duel compares either options, or commits, or images",
            "put options of both sides before --",
            id="two kinds",
        ),
        pytest.param(
            ("--precision", "fp32"),
            {},
            "exactly one --- must separate the arguments of A and B; got 0 in '--precision fp32'",
            EXAMPLE,
            id="one side",
        ),
        pytest.param(
            ("---", "--precison", "bf16"),
            {},
            "options of B: No such option: --precison (Possible options: --precision)",
            OPTIONS,
            id="unknown option",
        ),
        pytest.param(
            ("--lr", "---", "-m", "package.train"),
            {},
            "B is the script 'package.train', but A is '--lr', which is not a script",
            SCRIPT_EXAMPLE,
            id="an option against a script",
        ),
        pytest.param(
            ("-m", "json.tool", "---", "-m", "json.tool", "{data}"),
            {},
            "{data} in the script's arguments stands for its data, but --data is missing",
            "--data PATH",
            id="data that nobody named",
        ),
        pytest.param(
            ("-m", "x", "---", "-m", "x"),
            {"data": "nowhere"},
            "no data at 'nowhere'",
            "--data FOLDER, with a folder that exists",
            id="no data",
        ),
        pytest.param(
            ("---",),
            {"data": "."},
            "--data is only for your own script",
            f"leave --data out, or {SCRIPT_EXAMPLE}",
            id="data without a script",
        ),
        pytest.param(("---", "--repeats", "3"), {}, "options of B: No such option: --repeats", OPTIONS, id="repeats"),
    ],
)
def test_mistakes(words: tuple[str, ...], changes: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(*words, **changes)
    assert (str(caught.value), caught.value.hint) == (message, hint)


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

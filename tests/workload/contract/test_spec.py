import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workload.told import told
from workload.contract.errors import UsageError
from workload.contract.spec import (
    SCRIPT_ONLY_OPTIONS,
    Device,
    Optimizer,
    Origin,
    Precision,
    Profile,
    RunSpec,
    arguments,
    options,
    resolve,
)
from workload.contract.trainer import Context


def test_defaults_are_the_contract() -> None:
    resolved = resolve({}, {}, None)
    assert resolved.spec == RunSpec()
    assert resolved.origin == {}
    spec = resolved.spec
    assert (spec.model, spec.dataset, spec.precision, spec.device) == ("resnet18", "synthetic", "fp32", "auto")


@pytest.mark.parametrize(
    ("device", "batch_size", "warmup", "iterations", "min_seconds"),
    [(Device.CPU, 16, 3, 20, 0.0), (Device.CUDA, 32, 10, 100, 3.0), (Device.MPS, 32, 10, 100, 3.0)],
)
def test_device_decides_what_was_left_open(
    device: Device, batch_size: int, warmup: int, iterations: int, min_seconds: float
) -> None:
    spec = RunSpec().filled(device, cpus=4)
    assert (spec.device, spec.batch_size, spec.warmup, spec.iterations) == (device, batch_size, warmup, iterations)
    assert spec.min_seconds == min_seconds
    assert RunSpec(min_seconds=0.0).filled(device, cpus=4).min_seconds == 0
    assert (spec.image_size, spec.workers) == (224, 0)


@pytest.mark.parametrize(
    ("dataset", "cpus", "image_size", "workers"),
    [("synthetic", 4, 224, 0), ("cifar10", 4, 32, 4), ("imagenette", 64, 224, 8), ("photos", 1, 224, 1)],
)
def test_data_set_decides_size_and_workers(dataset: str, cpus: int, image_size: int, workers: int) -> None:
    spec = RunSpec(dataset=dataset).filled(Device.CPU, cpus=cpus)
    assert (spec.image_size, spec.workers) == (image_size, workers)


def test_what_was_given_stays() -> None:
    given = RunSpec(batch_size=1, warmup=0, iterations=7, image_size=64, workers=0, dataset="photos")
    filled = given.filled(Device.CPU, cpus=8)
    assert (filled.batch_size, filled.warmup, filled.iterations, filled.image_size, filled.workers) == (1, 0, 7, 64, 0)


def test_option_beats_environment_beats_config_beats_default(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text('model = "vgg16"\nbatch_size = 4\nseed = 3\ncompile = true\n')
    environment = {"ROOFLAUNCH_MODEL": "resnet34", "ROOFLAUNCH_BATCH_SIZE": "8", "PATH": "/bin"}
    resolved = resolve({"model": "resnet50"}, environment, tmp_path)
    spec = resolved.spec
    assert (spec.model, spec.batch_size, spec.seed, spec.compile, spec.warmup) == ("resnet50", 8, 3, True, None)
    assert resolved.origin == {
        "model": Origin.OPTION,
        "batch_size": Origin.ENVIRONMENT,
        "seed": Origin.CONFIG,
        "compile": Origin.CONFIG,
    }


@pytest.mark.parametrize(
    ("typed", "amount"),
    [
        *(("50000", 50_000), ("50,000", 50_000), ("1_281_167", 1_281_167), ("50k", 50_000), ("1", 1)),
        *(("1.28M", 1_280_000), ("1B", 10**9), ("2.5b", 2_500_000_000), ("1e9", 10**9), ("1e15", 10**15)),
        # As TOML and JSON give them.
        *((50_000, 50_000), (1e9, 10**9)),
    ],
)
def test_amount_of_work_in_the_forms_that_people_write(typed: object, amount: int) -> None:
    spec = resolve({"samples": typed}, {}, None).spec
    assert spec.samples == amount
    assert resolve({"samples": arguments(spec)[-1]}, {}, None).spec == spec
    assert resolve({"samples": typed}, {}, None, script=("train.py",)).spec.samples == amount


WRONG: list[dict[str, object]] = [
    *({"batch_size": value} for value in ("0", "many", "9" * 300, True)),
    {"warmup": "-1"},
    {"iterations": "0"},
    *({"min_seconds": value} for value in ("-0.1", "nan", "3s", True)),
    # The hint names the choice that was meant.
    *({"precision": value} for value in ("fp8", "fp16", "int8")),
    *({"optimizer": value} for value in ("lion", "adamW")),
    *({"samples": value} for value in ("0", "abc", "1.5", "5,00", True)),
    {"model": ""},
    {"compile": "maybe"},
    # Options that contradict each other.
    {"precision": "tf32", "device": "cpu"},
    {"download": True},
    {"subset": "5"},
    {"ceilings": False, "fresh_ceilings": True},
    {"profile_throughput": True},
    {"profile_step_bytes": True, "profile": "torch"},
    {"prefetch_factor": "4"},
    {"dataset": "photos", "workers": "0", "prefetch_factor": "4"},
    {"dataset": "photos", "workers": "0", "persistent_workers": True},
    {"devices": "2", "device": "mps"},
    {"devices": "2", "profile": "torch"},
    {"machines": "2", "profile": "torch"},
    {"dataset": "photos", "device": "cpu", "pin_memory": True},
]
WRONG_VARIABLES = {"ROOFLAUNCH_BATCHSIZE": "4", "ROOFLAUNCH_BATCH_SIZE": "x", "ROOFLAUNCH_ZONE": "x"}
WRONG_FILES: dict[str, bytes | None] = {
    "a folder": None,
    "a key that is no option": b"batchsize = 4",
    "half a line": b"batch_size = ",
    "another encoding": b"\xff\xfe",
    "deep lists": b"batch_size = " + b"[" * 5000,
    "a value that breaks its rule": b"batch_size = '0'",
    "a switch that is a number": b"compile = 3",
    "a table": b"[model]\na = 1",
    "a table of the launcher as text": b'gcp = "my-project"',
}


def test_wrong_options_in_words(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    texts = [told(options, lambda: resolve(options, {}, None)) for options in WRONG]  # noqa: B023 - called at once
    for name, value in WRONG_VARIABLES.items():
        texts.append(told(f"{name}={value}", lambda: resolve({}, {name: value}, None)))  # noqa: B023
    for name, content in WRONG_FILES.items():
        path = tmp_path / "rooflaunch.toml"
        path.mkdir() if content is None else path.write_bytes(content)
        texts.append(told(name, lambda: resolve({}, {}, tmp_path)))
        path.rmdir() if content is None else path.unlink()
    # Python's versions give different reasons.
    page = re.sub(r"(not a readable TOML file): .*", r"\1: …", "".join(texts))
    golden("options.txt", page.replace(str(tmp_path), "FOLDER"))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch_size", "1", 1),
        ("warmup", "0", 0),
        ("min_seconds", "0.5", 0.5),
        ("min_seconds", "10", 10.0),
        ("compile", "YES", True),
        ("ceilings", "off", False),
        ("precision", "bf16", Precision.BF16),
        ("optimizer", "adamw", Optimizer.ADAMW),
    ],
)
def test_text_becomes_a_value(name: str, text: str, value: object) -> None:
    assert getattr(resolve({name: text}, {}, None).spec, name) == value


@pytest.mark.parametrize(
    "allowed",
    [
        {"prefetch_factor": 4, "workers": 4, "dataset": "photos"},
        {"prefetch_factor": 4, "persistent_workers": True, "pin_memory": True, "dataset": "photos"},
        {"pin_memory": True, "workers": 0, "device": "cuda", "dataset": "photos"},
        {"pin_memory": False, "persistent_workers": False, "workers": 0, "device": "cpu"},
        # The device may turn out to be a GPU.
        {"precision": "tf32"},
        {"precision": "tf32", "device": "cuda"},
    ],
)
def test_options_that_fit(allowed: dict[str, object]) -> None:
    spec = resolve(allowed, {}, None).spec
    assert {name: getattr(spec, name) for name in allowed} == allowed


def test_words_of_the_launcher_are_no_run_options(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text('seed = 3\n[gcp]\nproject = "my-project"\n')
    cloud = {f"ROOFLAUNCH_{name}": "x" for name in ("PROJECT", "BUCKET", "REPOSITORY", "SERVICE_ACCOUNT", "NETWORK")}
    resolved = resolve({}, cloud | {"ROOFLAUNCH_SUBNETWORK": "x"}, tmp_path)
    assert (resolved.spec, resolved.origin) == (RunSpec(seed=3), {"seed": Origin.CONFIG})
    assert resolve({}, {"ROOFLAUNCH_COMPUTE_ENDPOINT": "x"}, None).origin == {}


# Options whose value depends on others.
OF_ITS_OWN = {
    "model": "vgg16",
    "dataset": "cifar10",
    "data_dir": "/d",
    "ncu_metrics": "dram__bytes.sum,sm__x.avg",
    "device": Device.CPU,
    "precision": Precision.BF16,
    "profile": Profile.NCU,
    "optimizer": Optimizer.ADAM,
    "pin_memory": False,
    "persistent_workers": False,
    "warmup": 0,
    "min_seconds": 0.5,
}
PROFILING = {"ncu_metrics"} | {option.name for option in options() if option.name.startswith("profile")}


@pytest.mark.parametrize(
    "left_out",
    # Options that contradict each other.
    [{"ceilings", "devices", "machines"}, {"fresh_ceilings", *PROFILING}],
    ids=["profile", "devices"],
)
def test_every_option_survives_the_command_line(left_out: set[str]) -> None:
    changed: dict[str, object] = {}
    for number, option in enumerate(options(), 2):
        if option.name not in SCRIPT_ONLY_OPTIONS | left_out:
            usual = getattr(RunSpec(), option.name) is not True if option.kind is bool else number
            changed[option.name] = OF_ITS_OWN.get(option.name, usual)
    spec = RunSpec(**changed)  # type: ignore[arg-type]
    words = arguments(spec)
    flags = {option.flag: option for option in options()} | {option.off_flag: option for option in options()}
    given: dict[str, object] = {}
    while words:
        option = flags[words.pop(0)]
        given[option.name] = changed[option.name] if option.kind is bool else words.pop(0)
    assert given.keys() == changed.keys()
    assert resolve(given, {}, None).spec == spec
    assert arguments(RunSpec()) == []


def test_switches_that_turn_off() -> None:
    by_name = {option.name: option for option in options()}
    assert by_name["no_augment"].off_flag == "--augment"
    assert by_name["compile"].off_flag == "--no-compile"
    assert by_name["ceilings"].arguments(value=False) == ["--no-ceilings"]


def test_context_survives_and_foreign_text_is_refused() -> None:
    context = Context(runtime="docker", place="here", repeat=2, repeats=3, spec_origin={"model": "option"})
    assert Context.from_argument(context.to_argument()) == context
    assert Context().to_argument() == "{}"
    for text in ("", "[]", "3", '{"unknown": 1}'):
        with pytest.raises(UsageError, match="--context is only for launchers"):
            Context.from_argument(text)

from pathlib import Path

import pytest

from workload.contract.errors import ExitCode, UsageError
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


PRECISION = "precision must be one of fp32, tf32, amp, bf16"
OPTIMIZER = "optimizer must be one of sgd, adam, adamw"


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("batch_size", "0", "batch size must be a positive integer; got '0'", "--batch-size 32"),
        ("batch_size", "many", "batch size must be a positive integer; got 'many'", "--batch-size 32"),
        ("batch_size", "9" * 5000, f"batch size must be a positive integer; got '{'9' * 5000}'", "--batch-size 32"),
        ("batch_size", True, "batch size must be a positive integer; got 'True'", "--batch-size 32"),
        ("warmup", "-1", "warmup must be an integer of at least 0; got '-1'", "--warmup 10"),
        ("iterations", "0", "iterations must be a positive integer; got '0'", "--iterations 100"),
        ("min_seconds", "-0.1", "min seconds must be a number of at least 0; got '-0.1'", "--min-seconds 3"),
        ("min_seconds", "nan", "min seconds must be a number of at least 0; got 'nan'", "--min-seconds 3"),
        ("min_seconds", "3s", "min seconds must be a number of at least 0; got '3s'", "--min-seconds 3"),
        ("min_seconds", True, "min seconds must be a number of at least 0; got 'True'", "--min-seconds 3"),
        # The hint names the choice that was meant.
        ("precision", "fp8", f"{PRECISION}; got 'fp8'", "--precision fp32"),
        ("precision", "fp16", f"{PRECISION}; got 'fp16'", "--precision amp"),
        ("precision", "int8", f"{PRECISION}; got 'int8'", "--precision fp32"),
        ("optimizer", "lion", f"{OPTIMIZER}; got 'lion'", "--optimizer sgd"),
        ("optimizer", "adamW", f"{OPTIMIZER}; got 'adamW'", "--optimizer adamw"),
        ("model", "", "model must be text that is not empty; got ''", "--model resnet50"),
        ("compile", "maybe", "compile must be true or false; got 'maybe'", "--compile"),
    ],
)
def test_value_that_breaks_its_rule(name: str, value: object, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({name: value}, {}, None)
    assert (str(caught.value), caught.value.hint, caught.value.exit_code) == (message, hint, ExitCode.USAGE)


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
    ("spec", "message", "hint"),
    [
        (
            {"precision": "tf32", "device": "cpu"},
            "precision tf32 needs an NVIDIA GPU of compute capability 8.0 or newer; got 'cpu'",
            "--precision fp32, or --precision bf16",
        ),
        (
            {"download": True},
            "only cifar10 and imagenette can be downloaded; the data set is 'synthetic'",
            "--dataset cifar10 --download",
        ),
        ({"subset": "5"}, "synthetic data has no subset; got --subset 5", "--dataset PATH, or leave --subset out"),
        (
            {"ceilings": False, "fresh_ceilings": True},
            "--fresh-ceilings and --no-ceilings contradict each other",
            "leave out --fresh-ceilings or --no-ceilings",
        ),
        (
            {"profile_throughput": True},
            "--profile-throughput needs --profile ncu; got --profile none",
            "--profile ncu --profile-throughput, or leave --profile-throughput out",
        ),
        (
            {"profile_step_bytes": True, "profile": "torch"},
            "--profile-step-bytes needs --profile ncu; got --profile torch",
            "--profile ncu --profile-step-bytes, or leave --profile-step-bytes out",
        ),
        (
            {"prefetch_factor": "4"},
            "synthetic data needs no DataLoader; got --prefetch-factor 4",
            "--dataset PATH, or leave out --prefetch-factor 4",
        ),
        (
            {"dataset": "photos", "workers": "0", "prefetch_factor": "4"},
            "--prefetch-factor 4 needs workers; got --workers 0",
            "--workers 4, or leave out --prefetch-factor 4",
        ),
        (
            {"dataset": "photos", "workers": "0", "persistent_workers": True},
            "--persistent-workers needs workers; got --workers 0",
            "--workers 4, or leave out --persistent-workers",
        ),
        (
            {"devices": "2", "device": "mps"},
            "a Mac has one GPU; got --devices 2",
            "--cpu, or leave --devices out",
        ),
        (
            {"devices": "2", "profile": "torch"},
            "only a run of one device can be profiled; got --profile torch --devices 2",
            "leave --profile out, or profile the same configuration without --devices",
        ),
        (
            {"dataset": "photos", "device": "cpu", "pin_memory": True},
            "--pin-memory needs a GPU of NVIDIA or AMD; got 'cpu'",
            "leave out --pin-memory",
        ),
    ],
)
def test_contradicting_options(spec: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(spec, {}, None)
    assert (str(caught.value), caught.value.hint) == (message, hint)


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


def test_unknown_key_of_the_config_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text("batchsize = 4\n")
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, tmp_path)
    assert str(caught.value) == f"{tmp_path}/rooflaunch.toml: unknown key 'batchsize'"
    assert caught.value.hint.endswith("; did you mean batch_size?")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # None: a folder.
        (None, "not a readable TOML file"),
        (b"batch_size = ", "not a readable TOML file"),
        (b"\xff\xfe", "not a readable TOML file"),
        (b"batch_size = " + b"[" * 5000, "not a readable TOML file"),
        (b"batch_size = '0'", "rooflaunch.toml: batch size must be a positive integer; got '0'"),
        (b"compile = 3", "rooflaunch.toml: compile must be true or false; got '3'"),
        (b"[model]\na = 1", "rooflaunch.toml: model must be text"),
    ],
)
def test_bad_config(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "rooflaunch.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        resolve({}, {}, tmp_path)


def test_unknown_and_bad_environment_variables() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, {"ROOFLAUNCH_BATCHSIZE": "4"}, None)
    assert str(caught.value) == "unknown environment variable 'ROOFLAUNCH_BATCHSIZE'"
    assert "ROOFLAUNCH_BATCH_SIZE" in caught.value.hint
    with pytest.raises(UsageError, match="ROOFLAUNCH_BATCH_SIZE: batch size must be a positive integer; got 'x'"):
        resolve({}, {"ROOFLAUNCH_BATCH_SIZE": "x"}, None)
    assert resolve({}, {"ROOFLAUNCH_COMPUTE_ENDPOINT": "x"}, None).origin == {}


def test_words_of_the_launcher_are_no_run_options(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text('seed = 3\n[gcp]\nproject = "my-project"\n')
    cloud = {f"ROOFLAUNCH_{name}": "x" for name in ("PROJECT", "BUCKET", "REPOSITORY", "SERVICE_ACCOUNT", "NETWORK")}
    resolved = resolve({}, cloud | {"ROOFLAUNCH_SUBNETWORK": "x"}, tmp_path)
    assert (resolved.spec, resolved.origin) == (RunSpec(seed=3), {"seed": Origin.CONFIG})
    with pytest.raises(UsageError, match="unknown environment variable 'ROOFLAUNCH_ZONE'"):
        resolve({}, {"ROOFLAUNCH_ZONE": "x"}, None)
    (tmp_path / "rooflaunch.toml").write_text('gcp = "my-project"\n')
    with pytest.raises(UsageError, match="unknown key 'gcp'"):
        resolve({}, {}, tmp_path)


@pytest.mark.parametrize("left_out", ["ceilings", "fresh_ceilings"])
def test_every_option_survives_the_command_line(left_out: str) -> None:
    changed = {
        "model": "vgg16",
        "device": Device.CPU,
        "batch_size": 3,
        "precision": Precision.BF16,
        "dataset": "cifar10",
        "data_dir": "/d",
        "download": True,
        "subset": 9,
        "image_size": 64,
        "warmup": 0,
        "iterations": 2,
        "min_seconds": 0.5,
        "repeats": 4,
        "profile": Profile.NCU,
        "profile_steps": 5,
        "profile_step_bytes": True,
        "profile_throughput": True,
        "ncu_metrics": "dram__bytes.sum,sm__x.avg",
        "channels_last": True,
        "compile": True,
        "deterministic": True,
        "no_augment": True,
        "grad_accumulation": 2,
        "workers": 3,
        "prefetch_factor": 4,
        "pin_memory": False,
        "persistent_workers": False,
        "optimizer": Optimizer.ADAM,
        "seed": 7,
        "devices": 2,
        "ceilings": False,
        "fresh_ceilings": True,
    }
    untouched = {option.name for option in options()} - changed.keys() - SCRIPT_ONLY_OPTIONS
    assert untouched == set(), "a new option belongs into this test"
    # The two ceilings contradict each other, and so do devices and profile.
    del changed[left_out]
    profiling = [name for name in changed if name.startswith("profile") or name == "ncu_metrics"]
    for name in ["devices"] if left_out == "ceilings" else profiling:
        del changed[name]
    spec = RunSpec(**changed)  # type: ignore[arg-type]
    words = arguments(spec)
    flags = {option.flag: option for option in options()} | {option.off_flag: option for option in options()}
    given: dict[str, object] = {}
    while words:
        option = flags[words.pop(0)]
        given[option.name] = changed[option.name] if option.kind is bool else words.pop(0)
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

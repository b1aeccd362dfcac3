import tomllib
from pathlib import Path
from typing import Any

import pytest

from launcher.backends import BACKENDS
from launcher.backends.gcp.options import Options, Where
from launcher.script.options import LocalOptions
from launcher.sweep import matrix
from launcher.sweep.matrix import Matrix
from launcher.values import Runtime
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Origin, Precision

FILE = Path("night.toml")
AXES = """
[matrix]
model = ["resnet18", "resnet50"]
batch_size = [32, 64]
"""
HERE = """
[[on]]
backend = "local"
"""
DESIGN = """
name = "imagenette-2026"
repeats = 2
seed = 7
[defaults]
dataset = "synthetic"
warmup = 4
[matrix]
model = ["resnet18", "resnet50"]
batch_size = [32, 64]
[[exclude]]
model = "resnet50"
batch_size = 64
[[on]]
backend = "local"
device = "cpu"
runtime = "process"
[[on]]
name = "t4"
backend = "gcp"
gpu = "t4"
zone = ["us-central1-a", "us-central1-b"]
max_run_time = "90m"
external_ip = false
bucket = "my-bucket"
machines = 2
"""


def read(text: str, **more: Any) -> Matrix:
    settings = {"file": FILE, "environment": {}, "config_folder": None, **more}
    return matrix.read(tomllib.loads(text), **settings)


def test_a_file_becomes_places_with_configurations() -> None:
    whole = read(DESIGN)
    assert (whole.name, whole.repeats, whole.seed, whole.runs, whole.warnings) == ("imagenette-2026", 2, 7, 12, ())
    here, there = whole.places
    assert (here.place.name, here.place.backend, here.place.machines) == ("local-cpu", "local", 1)
    assert (here.place.options, here.place.where) == (LocalOptions(runtime=Runtime.PROCESS), None)
    assert (there.place.name, there.place.machines) == ("t4", 2)
    zones = ("us-central1-a", "us-central1-b")
    assert there.place.options == Options(gpu="t4", zones=zones, max_run_time_s=5400, external_ip=False)
    assert there.place.where == Where(bucket="my-bucket")
    texts = ["resnet18, batch_size 32", "resnet18, batch_size 64", "resnet50, batch_size 32"]
    for place in whole.places:
        assert [configuration.text for configuration in place.configurations] == texts
    assert {configuration.spec.device for configuration in here.configurations} == {Device.CPU}
    assert {configuration.spec.device for configuration in there.configurations} == {Device.AUTO}
    assert {configuration.spec.warmup for configuration in there.configurations} == {4}


def test_what_a_place_is_asked_for_is_without_limits_costs_and_output() -> None:
    here, there = read(DESIGN).places
    assert here.place.asked == {"name": "local-cpu", "backend": "local", "runtime": "process"}
    assert there.place.asked == {
        "name": "t4",
        "backend": "gcp",
        "gpu": "t4",
        "zones": ["us-central1-a", "us-central1-b"],
        "external_ip": False,
    }


def test_alike_gpus_are_one_place_and_its_name_alone_tells_them_apart() -> None:
    text = AXES + "".join(f'{HERE}name = "{name}"\n{key}\n' for name, key in (("a", ""), ("b", "gpu_index = 1")))
    without, chosen = read(text).places
    assert chosen.place.options == LocalOptions(gpu_index=1)
    assert chosen.place.asked == {**without.place.asked, "name": "b"}


def test_an_index_and_a_cpu_at_one_place() -> None:
    with pytest.raises(UsageError) as caught:
        read(AXES + HERE + 'device = "cpu"\ngpu_index = 1\n')
    why = "--gpu-index chooses an NVIDIA GPU, but the device is cpu; got --gpu-index 1"
    assert why in str(caught.value)


def test_a_value_of_the_file_wins_over_the_environment_and_that_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text('iterations = 7\nprecision = "bf16"\nwarmup = 9\nrepeats = 5\n')
    environment = {"ROOFLAUNCH_PRECISION": "amp", "ROOFLAUNCH_BATCH_SIZE": "8"}
    whole = read("[defaults]\nwarmup = 2" + AXES + HERE, environment=environment, config_folder=tmp_path)
    [place] = whole.places
    spec = place.configurations[0].spec
    assert (spec.batch_size, spec.precision, spec.iterations, spec.warmup, spec.repeats) == (32, Precision.AMP, 7, 2, 1)
    assert whole.repeats == 5
    assert place.origin == {
        "model": Origin.OPTION,
        "batch_size": Origin.OPTION,
        "precision": Origin.ENVIRONMENT,
        "iterations": Origin.CONFIG,
        "warmup": Origin.OPTION,
    }


def test_what_is_usual() -> None:
    whole = read(AXES + HERE)
    assert (whole.name, whole.repeats, whole.seed) == ("night", 3, 0)
    assert [(place.place.name, place.place.machines) for place in whole.places] == [("local", 1)]


@pytest.mark.parametrize(
    ("entry", "name", "machines"),
    [
        ('backend = "gcp"\ngpu = "l4"', "gcp-l4", 0),
        ('backend = "ssh"\nhost = "me@box"', "ssh-me-box", 1),
        ('backend = "local"\ndevice = "cuda"', "local-cuda", 1),
        ('backend = "local"\nname = "laptop"', "laptop", 1),
    ],
    ids=["gcp", "ssh", "local", "named"],
)
def test_usual_names_and_machines_of_places(entry: str, name: str, machines: int) -> None:
    [place] = read(f"{AXES}[[on]]\n{entry}").places
    assert (place.place.name, place.place.machines) == (name, machines)


def test_an_exclude_may_be_of_one_place_and_of_several_values() -> None:
    rules = '[[exclude]]\non = "local"\nbatch_size = [32, 64]\nmodel = "resnet50"\n'
    here, there = read(AXES + rules + HERE + '[[on]]\nbackend = "gcp"\ngpu = "t4"\n').places
    assert [configuration.text for configuration in here.configurations] == [
        "resnet18, batch_size 32",
        "resnet18, batch_size 64",
    ]
    assert len(there.configurations) == 4


def test_an_exclude_that_matches_nothing_is_a_warning() -> None:
    whole = read(AXES + '[[exclude]]\nmodel = "resnet50"\nbatch_size = 128\n' + HERE)
    assert whole.warnings == ('night.toml: an [[exclude]] matches nothing: model = "resnet50", batch_size = 128',)
    assert whole.runs == 12


TF32_ON_CPU = (
    'at [[on]] local-cpu, with precision = "tf32": precision tf32 needs an NVIDIA GPU of compute capability 8.0'
    " or newer; got 'cpu'"
)
GCP = '[[on]]\nbackend = "gcp"\ngpu = "t4"\n'


WRONG = [
    (
        AXES + HERE + '[[on]]\nbackend = "slurm"\naccont = "<yours>"',
        "[[on]] 2: unknown key 'accont', which is not an option of slurm",
        "did you mean account?",
    ),
    ("repeat = 3" + AXES + HERE, "unknown key 'repeat'", "did you mean repeats?"),
    ('[matrix]\nmodell = ["resnet18"]' + HERE, "[matrix] unknown key 'modell', which is not a run option",
     "did you mean model?"),
    (AXES + "[[exclude]]\nprecision = 3" + HERE,
     "[[exclude]] 1: unknown key 'precision', which is not an option of [matrix], nor the key 'on'",
     "the keys are model, batch_size, on"),
    (HERE, "the matrix is empty: no option varies", '[matrix] with model = ["resnet18"]'),
    ("[matrix]\nmodel = []" + HERE, "the matrix is empty: model has no values", 'model = ["resnet50"]'),
    ("[matrix]\nmodel = 'resnet18'" + HERE, "[matrix] model must be a list; got 'resnet18'",
     'model = ["resnet18"], or [defaults]'),
    ("[matrix]\nbatch_size = [32, '32']" + HERE, "[matrix] batch_size has 32 twice", "leave one of them out"),
    ("[matrix]\nbatch_size = [32, 0]" + HERE,
     "[matrix] batch_size: batch size must be a positive integer; got '0'", "batch_size = 32"),
    ("[matrix]\nbatch_size = [[32]]" + HERE, "[matrix] batch_size: batch size must be one value; got '[32]'",
     "batch_size = 32; only options in [matrix] have several values"),
    ("[defaults]\nprecision = ['fp32']" + AXES, "[defaults] precision: precision must be one value; got '['fp32']'",
     'precision = "fp32"; only options in [matrix] have several values'),
    ("[defaults]\ncompile = 'maybe'" + AXES, "[defaults] compile: compile must be true or false; got 'maybe'",
     "compile = true"),
    ("defaults = 3" + AXES + HERE, "defaults must be a table; got '3'", "[defaults]"),
    ("on = 3" + AXES, "on must be a list of tables; got '3'", "[[on]]"),
    ("repeats = 0" + AXES + HERE, "repeats must be a positive integer; got '0'", "repeats = 3"),
    ("repeats = [3]" + AXES + HERE, "repeats must be one value; got '[3]'",
     "repeats = 3; only options in [matrix] have several values"),
    ("[defaults]\nrepeats = 3" + AXES, "[defaults] repeats: repeats belong to the whole matrix, each repeat is a block",
     "repeats = 3 at the top of the file"),
    ("seed = 'a'" + AXES + HERE, "seed must be an integer; got 'a'", "seed = 0"),
    ("name = 'a b'" + AXES + HERE, "name must be up to 63 letters, digits, '.', '_' or '-'; got 'a b'",
     'name = "night-1"'),
    (AXES, "no place to run", '[[on]] with backend = "local", or "gcp" and gpu'),
    (AXES + "[[on]]\ndevice = 'cpu'", "[[on]] 1 has no backend", f"backend is one of local, {', '.join(BACKENDS)}"),
    (AXES + "[[on]]\nbackend = 'gpc'", "[[on]] 1 has the unknown backend 'gpc'", "did you mean gcp?"),
    (AXES + "[[on]]\nbackend = 'gcp'", "[[on]] 1: Missing option '--gpu'", "launch gcp --help"),
    (AXES + HERE + HERE, "two places are named 'local'", 'name = "local-2" in one of the [[on]]'),
    (AXES + HERE + "machines = 2", "[[on]] 1: local is a single machine; got machines = 2",
     "an [[on]] for each machine"),
    (AXES + GCP + "machines = 0", "[[on]] 1: machines must be a positive integer; got '0'",
     "machines = 3, or leave it out"),
    (AXES + GCP + "gpu_count = 0",
     "[[on]] 1: Invalid value for '--gpu-count': should be greater than or equal to 1; got '0'", "launch gcp --help"),
    (AXES + GCP + "max_run_time = 60",
     "[[on]] 1: --max-run-time must be a duration such as 60m or 1h30m, from 30 s to 120 d; got '60'",
     "as options of launch gcp: --max-run-time 60m"),
    (AXES + HERE + "cpus = 0", "[[on]] 1: --cpus must be a positive number; got '0'",
     "as options of launch local: --cpus 1.5"),
    (AXES + HERE + 'runtime = "process"\nimage = "mine"',
     "[[on]] 1: image cannot be used with --runtime process: only containers have them",
     "as options of launch local: --runtime docker, or leave them out"),
    (AXES + HERE + "batch_size = 8", "[[on]] local sets batch_size, which [matrix] varies",
     '[[exclude]] with on = "local" and the values of batch_size to leave out'),
    (AXES + "[[exclude]]\non = 'locl'\nmodel = 'vgg11'" + HERE, "[[exclude]] 1: no place is named 'locl'",
     "did you mean local?"),
    (AXES + "[[exclude]]\non = 'local'" + HERE, "[[exclude]] 1 names no option of [matrix]", "model = …"),
    (AXES + "[[exclude]]\nbatch_size = [32, 64]" + HERE,
     "[[on]] local has nothing to do, because every combination is excluded", "fewer [[exclude]]"),
    ("[matrix]\nprecision = ['fp32', 'tf32']" + HERE + "device = 'cpu'",
     TF32_ON_CPU,
     ('[[exclude]] with on = "local-cpu" and the values that are impossible there, or --precision fp32, or '
         "--precision bf16")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), WRONG, ids=[message for _, message, _ in WRONG])
def test_what_is_wrong_with_a_file(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert (str(refused.value), refused.value.hint) == (f"night.toml: {message}", hint)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        matrix.require_places(read(DESIGN), ["t4", "tt4"])
    assert (str(refused.value), refused.value.hint) == ("no place is named 'tt4'", "did you mean t4?")


def test_too_many_runs_are_refused_before_anything_is_combined() -> None:
    sizes = list(range(1, 1001))
    wide = f"repeats = 3\n[matrix]\nbatch_size = {sizes}\nsubset = {sizes}\nimage_size = {sizes}\n" + HERE
    with pytest.raises(UsageError) as refused:
        read(wide)
    assert str(refused.value) == "night.toml: 3,000,000,000 runs before [[exclude]], more than 10,000"
    assert refused.value.hint == "fewer values"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[matrix", "is no TOML: "),
        (b"\xff", "is no TOML: "),
        (b"a = " + b"[" * 5000, "is no TOML: "),
        (None, "there is no matrix "),
        ("folder", "cannot be read: Is a directory$"),
    ],
    ids=["no TOML", "no text", "deep", "no file", "a folder"],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    path = tmp_path / "m.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(UsageError, match=message):
        matrix.load(path)

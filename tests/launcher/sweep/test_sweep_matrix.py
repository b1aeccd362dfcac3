import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp.options import Options, Where
from launcher.script.options import LocalOptions
from launcher.sweep import matrix
from launcher.sweep.matrix import Matrix
from tests.launcher.told import Golden, told
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Origin, Precision

FILE = Path("night.toml")
SIZES = ("batch_size", "subset", "image_size")
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


GCP = '[[on]]\nbackend = "gcp"\ngpu = "t4"\n'
EXCLUDE = AXES + "[[exclude]]\n"
WRONG = {
    "unknown key of a place": AXES + HERE + '[[on]]\nbackend = "slurm"\naccont = "<yours>"',
    "unknown key": "repeat = 3" + AXES + HERE,
    "unknown run option": '[matrix]\nmodell = ["resnet18"]' + HERE,
    "excluded option that does not vary": EXCLUDE + "precision = 3" + HERE,
    "nothing varies": HERE,
    "option without values": "[matrix]\nmodel = []" + HERE,
    "no list": "[matrix]\nmodel = 'resnet18'" + HERE,
    "a value twice": "[matrix]\nbatch_size = [32, '32']" + HERE,
    "a value that breaks its rule": "[matrix]\nbatch_size = [32, 0]" + HERE,
    "a list in a list": "[matrix]\nbatch_size = [[32]]" + HERE,
    "a list as default": "[defaults]\nprecision = ['fp32']" + AXES,
    "no boolean": "[defaults]\ncompile = 'maybe'" + AXES,
    "defaults are no table": "defaults = 3" + AXES + HERE,
    "places are no tables": "on = 3" + AXES,
    "no repeats": "repeats = 0" + AXES + HERE,
    "a list of repeats": "repeats = [3]" + AXES + HERE,
    "repeats as default": "[defaults]\nrepeats = 3" + AXES,
    "seed is no number": "seed = 'a'" + AXES + HERE,
    "name of two words": "name = 'a b'" + AXES + HERE,
    "no place": AXES,
    "no backend": AXES + "[[on]]\ndevice = 'cpu'",
    "unknown backend": AXES + "[[on]]\nbackend = 'gpc'",
    "no GPU": AXES + "[[on]]\nbackend = 'gcp'",
    "a place twice": AXES + HERE + HERE,
    "several machines of one": AXES + HERE + "machines = 2",
    "no machines": AXES + GCP + "machines = 0",
    "no GPUs": AXES + GCP + "gpu_count = 0",
    "limit without a unit": AXES + GCP + "max_run_time = 60",
    "no CPUs": AXES + HERE + "cpus = 0",
    "image for a process": AXES + HERE + 'runtime = "process"\nimage = "mine"',
    "place sets what varies": AXES + HERE + "batch_size = 8",
    "excluded at an unknown place": EXCLUDE + "on = 'locl'\nmodel = 'vgg11'" + HERE,
    "excluded without an option": EXCLUDE + "on = 'local'" + HERE,
    "all is excluded": EXCLUDE + "batch_size = [32, 64]" + HERE,
    "impossible at a place": "[matrix]\nprecision = ['fp32', 'tf32']" + HERE + "device = 'cpu'",
    "GPU's index at a CPU": AXES + HERE + 'device = "cpu"\ngpu_index = 1\n',
    "too many runs": "[matrix]\n" + "".join(f"{name} = {list(range(1, 1001))}\n" for name in SIZES) + HERE,
}


def test_what_is_wrong_with_a_file(golden: Golden) -> None:
    golden("wrong_matrices.txt", told({name: partial(read, text) for name, text in WRONG.items()}))


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

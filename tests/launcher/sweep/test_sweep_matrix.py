import json
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.gcp.options import Options, Where
from launcher.sweep import matrix
from launcher.sweep.matrix import Matrix
from tests.launcher.told import Golden, told
from workload.contract.errors import UsageError
from workload.contract.spec import Origin, Precision

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


T4 = '[[on]]\nbackend = "gcp"\ngpu = "t4"\n'
EXCLUDED = '[[exclude]]\non = "local"\nbatch_size = [32, 64]\nmodel = "resnet50"\n'
FILES = {
    "a design": DESIGN,
    # The name alone tells alike GPUs apart.
    "two GPUs": AXES + "".join(f'{HERE}name = "{name}"\n{key}\n' for name, key in (("a", ""), ("b", "gpu_index = 1"))),
    "a cloud": f'{AXES}[[on]]\nbackend = "gcp"\ngpu = "l4"',
    "ssh": f'{AXES}[[on]]\nbackend = "ssh"\nhost = "me@box"',
    "a device": AXES + HERE + 'device = "cuda"',
    "an exclude of one place and of several values": AXES + EXCLUDED + HERE + T4,
    "an exclude that matches nothing": AXES + '[[exclude]]\nmodel = "resnet50"\nbatch_size = 128\n' + HERE,
}


def described(whole: Matrix) -> str:
    lines = [f"{whole.name}: {whole.repeats} repeats, seed {whole.seed}, {whole.runs} runs", *whole.warnings]
    for one in whole.places:
        usual = vars(type(one.place.options)()) if one.place.backend == "local" else {}
        changed = {key: value for key, value in vars(one.place.options).items() if key in usual and value != usual[key]}
        lines.append(f"place {one.place.name}, {one.place.machines or 'any number of'} machines of {one.place.backend}")
        lines.append(f"    options {json.dumps(changed)}; asked for {json.dumps(one.place.asked)}")
        lines += [f"    {made.text}; {made.spec.device}, warmup {made.spec.warmup}" for made in one.configurations]
    return "\n".join(lines)


def test_a_file_becomes_places_with_configurations(golden: Golden) -> None:
    golden("matrices.txt", told({name: lambda text=text: described(read(text)) for name, text in FILES.items()}))
    # What is asked for is without limits, costs and output.
    _, there = read(DESIGN).places
    zones = ("us-central1-a", "us-central1-b")
    assert there.place.options == Options(gpu="t4", zones=zones, max_run_time_s=5400, external_ip=False)
    assert there.place.where == Where(bucket="my-bucket")


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
    "machines as default": "[defaults]\nmachines = 2" + AXES,
    "seed is no number": "seed = 'a'" + AXES + HERE,
    "name of two words": "name = 'a b'" + AXES + HERE,
    "no place": AXES,
    "no backend": AXES + "[[on]]\ndevice = 'cpu'",
    "unknown backend": AXES + "[[on]]\nbackend = 'gpc'",
    "no GPU": AXES + "[[on]]\nbackend = 'gcp'",
    "a place twice": AXES + HERE + HERE,
    "several machines of one": AXES + HERE + "machines = 2",
    "no machines": AXES + T4 + "machines = 0",
    "no GPUs": AXES + T4 + "gpu_count = 0",
    "limit without a unit": AXES + T4 + "max_run_time = 60",
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


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    with pytest.raises(UsageError, match="there is no matrix "):
        matrix.load(path)
    for content in (b"[matrix", b"\xff", b"a = " + b"[" * 5000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is no TOML: "):
            matrix.load(path)
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory$"):
        matrix.load(tmp_path)

"""What a plan says of a script before it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.machine.runtime import Workplace
from launcher.script import local_script
from launcher.script.files import pack
from launcher.script.options import HereOptions
from launcher.values import Runtime
from tests.launcher.told import Golden


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__DOT__", ".").replace("__IN__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


SCRIPT = """
import os, torch, numpy as np
import einops.layers
from timm.models import create
import local, package.sub
from package import other
with open(os.devnull): import inside_with
try: import apex
except ImportError: apex = None
if np.ones(1).sum() > 2: import asked_for
def later(): import wandb
class Net: import in_class
if __name__ == "__main__": import of_main
import rooflaunch, workload
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "local.py").write_text("import lightning\nfrom . import nothing\n")
    (tmp_path / "broken.py").write_text("import (")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import of_init\n")
    (package / "sub.py").write_text("from .other import x\nfrom ..nowhere import y\n")
    (package / "other.py").write_text("import of_other, train\n")
    (package / "__main__.py").write_text("from package.sub import z\n")
    return tmp_path


OF_PACKAGE = {"of_init", "of_other"}
OF_TRAIN = {"torch", "numpy", "einops", "timm", "inside_with", "in_class", "of_main", "lightning"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("train.py", "--lr", "1"), OF_TRAIN | OF_PACKAGE),
        (("-m", "package.sub"), OF_TRAIN | OF_PACKAGE),
        (("-m", "package"), OF_TRAIN | OF_PACKAGE),
        (("local.py",), {"lightning"}),
        (("broken.py",), set()),
        (("-m", "nowhere"), set()),
    ],
)
def test_imports_are_those_of_the_scripts_own_modules(words: tuple[str, ...], found: set[str], folder: Path) -> None:
    assert local_script.imports(words, folder) == found


def test_imports_that_may_be_missing(golden: Golden, tmp_path: Path) -> None:
    """Pillow, PyYAML and tqdm are in every image."""
    here = local_script.this_python(tmp_path)
    of_image = "import torch, torchvision, PIL, yaml, tqdm, numpy, einops, cv2, no_such_package\n"
    more = b"# more\neinops==0.8.1\nNo.Such_Package>=2 ; python_version > '3'\n"
    cases = {
        "this Python": ("import torch, pytest, mine, no_such_package, another_one\n", here),
        "this Python has all": ("import torch, mine\n", here),
        "an image": (of_image, local_script.image(b"")),
        "an image with more packages": (of_image, local_script.image(more)),
        "an image with all": (of_image, local_script.image(b"einops\nno-such-package\nopencv-python\n")),
        "another machine's Python": ("import torch, torchvision, numpy, pytest\n", local_script.their_python()),
    }
    text = ""
    for name, (script, known) in cases.items():
        write(tmp_path, train__DOT__py=script, mine__DOT__py="")
        text += f"{name}: {list(local_script.unknown_imports(('train.py',), tmp_path, known))}\n"
    golden("imports.txt", text.replace(sys.executable, "PYTHON"))


@pytest.mark.world
def test_arguments_whose_files_stay_here(tmp_path: Path) -> None:
    folder, outside = tmp_path / "work", tmp_path / "photos"
    write(folder, train__DOT__py="", conf__IN__a__DOT__toml="", new__DOT__toml="", weights__DOT__pt="")
    write(outside, a__DOT__jpg="")
    (folder / ".gitignore").write_text("*.pt\n")
    for words in (["init", "--quiet"], ["add", "train.py", "conf", ".gitignore"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    words = ("train.py", "conf/a.toml", "conf", ".", "--lr=0.1", "nowhere.txt", "/dev/null", "{data}/x", "-v", "")
    words += ("--weights=weights.pt", "--more", "new.toml", "../photos", str(outside / "a.jpg"))
    script_files = pack(words, folder)
    said = local_script.left_behind(
        words, folder, reached=[folder], why_not=lambda below: script_files.why_not(folder, below)
    )
    away = "in the arguments is outside of this folder and is not sent: use --data for data"
    assert list(said) == [
        "'weights.pt' in the arguments is not sent: git ignores it",
        "'new.toml' in the arguments is not sent: git does not track it, and no --include names it",
        f"'../photos' {away}",
        f"'{outside}/a.jpg' {away}",
    ]
    said = local_script.left_behind(words, folder, reached=[folder, outside], why_not=lambda _: "")
    assert not list(said), "a container sees what --data names"


@pytest.mark.world
def test_the_plan_says_what_will_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, train__DOT__py="import torch, einops\n", weights__DOT__pt="")
    (tmp_path / ".gitignore").write_text("*.pt\n")
    for words in (["init", "--quiet"], ["add", "train.py"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    script = ("--", "train.py", "weights.pt")
    stays, missing = "'weights.pt' in the arguments is not sent: git ignores it", "imports einops, which"
    monkeypatch.setattr(sys, "argv", ["launch", "ssh", "--host", "me@box", "--dry-run", *script])
    assert main() == 0
    said = [f"note       {stays}", f"note       {missing} the Python there may not have"]
    assert capsys.readouterr().out.splitlines()[-2:] == said
    gpu = ("gcp", "--gpu", "t4", "--project", "p-1-2-3")
    monkeypatch.setattr(sys, "argv", ["launch", *gpu, "--dry-run", "--format", "json", *script])
    assert main() == 0
    noted = json.loads(capsys.readouterr().out)["notes"]
    assert noted[-2:] == [stays, f"{missing} the image may not have (--requirements FILE adds packages)"]
    monkeypatch.setattr(sys, "argv", ["launch", "local", "--runtime", "process", "--dry-run", *script])
    assert main() == 0
    assert capsys.readouterr().out.endswith(f"\nnote       {missing} this Python, {sys.executable}, does not have\n")


def test_what_a_container_does_not_see(tmp_path: Path) -> None:
    folder, data = tmp_path / "work", tmp_path / "data"
    write(folder, train__DOT__py="import einops\n", known__DOT__py="")
    write(data, a="")
    (folder / "requirements.txt").write_text("einops\n")
    options = HereOptions(requirements=str(folder / "requirements.txt"))
    place = Workplace(folder=folder, data=str(data))
    words = ("-m", "train", str(data / "a"), str(tmp_path))
    away = f"'{tmp_path}' in the arguments is outside of this folder and is not sent: use --data for data"
    assert local_script.notes_of(words, options, place, Runtime.DOCKER) == (away,)
    unseen = "no module 'lightning.run' is in this folder; perhaps the image has it"
    assert local_script.notes_of(("-m", "lightning.run"), options, place, Runtime.DOCKER) == (unseen,)
    assert local_script.notes_of(("-m", "known"), options, place, Runtime.PROCESS) == ()

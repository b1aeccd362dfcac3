import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.workload.conftest import LayOut
from workload import __version__
from workload.environment.collect import (
    _build_facts,
    commit_facts,
    installed_packages,
    software_facts,
    speed_variables,
)
from workload.environment.machine import HostSystem

SHA = "0123456789abcdef0123456789abcdef01234567"
CLEAN = f"# branch.oid {SHA}\n# branch.head main"


def test_only_variables_that_change_speed_are_recorded() -> None:
    kept = {
        "OMP_NUM_THREADS": "4",
        "KMP_AFFINITY": "granularity=fine",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "x",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT": "10000",
        "LD_PRELOAD": "libtcmalloc.so",
        "MALLOC_CONF": "x",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "CUDA_LAUNCH_BLOCKING": "1",
        "GOMP_CPU_AFFINITY": "0-3",
        "MKL_NUM_THREADS": "4",
    }
    secrets = ("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN", "WANDB_API_KEY")
    others = ("PATH", "omp_num_threads", "MY_OMP_NUM_THREADS", "TORCH_TOKEN", "CUDA_SECRET")
    dropped = dict.fromkeys(secrets + others, "secret")
    assert speed_variables({**kept, **dropped}) == kept


# What `git status` says of a checkout.
STATUS = {
    "clean": CLEAN,
    "changed": f"{CLEAN}\n1 .M N... 100644 100644 100644 a b workload/contract/spec.py",
    "a new file": f"{CLEAN}\n? workload/new.py",
    "no commit yet": "# branch.oid (initial)\n# branch.head main",
    "no git, or git refuses": None,
}
BUILDS = {
    "x86 with MKL": (
        "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64\n"
        "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d2)\n  - OpenMP 201511 (a.k.a. OpenMP 4.5)\n"
        "  - CPU capability usage: AVX512\n"
        "  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, LAPACK_INFO=x\n"
    ),
    "a Mac": "  - CPU capability usage: NO AVX\n  - Build settings: BLAS_INFO=accelerate, X=1\n",
    "nothing": "",
}


def test_commits_and_builds(lay_out: LayOut, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    text = ""
    for baked in ("abc", "", None):
        # An installed copy asks no git.
        machine = lay_out(environ={} if baked is None else {"ROOFLAUNCH_COMMIT": baked})
        text += f"commit, installed with {baked!r}: {commit_facts(machine, tmp_path)}\n"
    (tmp_path / ".git").mkdir()
    for name, status in STATUS.items():
        machine = lay_out(environ={"ROOFLAUNCH_COMMIT": "baked"}, tools={"git": status})
        text += f"commit, {name}: {commit_facts(machine, tmp_path)}\n"
    text += "".join(f"build, {name}: {_build_facts(build)}\n" for name, build in BUILDS.items())
    golden("software.txt", text)


@pytest.mark.world
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_of_a_real_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        command = ("git", "-C", str(tmp_path), *identity, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "a.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": head, "commit_dirty": False}
    (tmp_path / "notes.txt").write_text("outside the trainer")
    assert commit_facts(HostSystem(environ={}), tmp_path)["commit_dirty"] is False
    (tmp_path / "workload" / "b.py").write_text("2")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": head, "commit_dirty": True}


def test_software_of_this_process(lay_out: LayOut) -> None:
    facts = software_facts(lay_out(environ={"COLAB_RELEASE_TAG": "release-1"}, tools={"git": CLEAN}))
    assert facts["rooflaunch"] == __version__
    assert facts["torch"] == torch.__version__
    assert facts["colab"] == "release-1"
    assert facts["variables"] == {}
    assert f"torch=={importlib.metadata.version('torch')}" in facts["packages"]


def test_software_that_is_missing(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    def mismatched() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(torch.backends.cudnn, "version", mismatched)
    facts = software_facts(lay_out(tools={"git": None}))
    assert [facts[name] for name in ("torchvision", "cudnn", "colab")] == [None] * 3


# --- installed packages


def package(folder: Path, name: str, metadata: str, *, kind: str = "dist-info/METADATA") -> None:
    path = folder / f"{name}.{kind}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(metadata)


def test_the_same_as_importlib_finds_here() -> None:
    expected = {f"{each.metadata['Name']}=={each.version}" for each in importlib.metadata.distributions()}
    found = installed_packages()
    assert set(found) == expected
    assert found == sorted(found, key=lambda text: text.partition("==")[0].lower().replace("_", "-"))


def test_names_and_versions_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    url = "https://user:secret@index.internal/simple"
    package(
        first,
        "Zed_lib-2.0+cu128",
        f"Metadata-Version: 2.1\nName: Zed_lib\nVersion: 2.0+cu128\nHome-page: {url}\n\nName: no\n",
    )
    package(first, "mine-1.0", "Name: mine\nVersion: 1.0\n")
    (first / "mine-1.0.dist-info" / "direct_url.json").write_text(f'{{"url": "file:///home/me/mine", "x": "{url}"}}')
    package(first, "old", "Name: old\nVersion: 0.1\n", kind="egg-info/PKG-INFO")
    package(first, "older-0.2", "Name: older\nVersion: 0.2\n", kind="egg-info")
    # Imported from the first folder; the name may be written in another way.
    package(second, "zed.lib-3.0", "Name: zed.lib\nVersion: 3.0\n")
    package(second, "b-1", "Name: b\r\nVersion: 1\r\n")
    assert installed_packages([str(first), str(second), str(tmp_path / "absent")]) == [
        *("b==1", "mine==1.0", "old==0.1", "older==0.2", "Zed_lib==2.0+cu128")
    ]


@pytest.mark.parametrize(
    "metadata",
    ["", "Name: a\n", "Version: 1\n", "Name: a b\nVersion: 1\n", f"Name: {'a' * 300}\nVersion: 1\n", "\0" * 99],
)
def test_damaged_metadata_is_left_out(tmp_path: Path, metadata: str) -> None:
    package(tmp_path, "a-1", metadata)
    package(tmp_path, "b-1", "Name: b\nVersion: 1\n")
    (tmp_path / "empty-1.dist-info").mkdir()
    (tmp_path / "link-1.dist-info").symlink_to("nowhere")
    assert installed_packages([str(tmp_path), "", os.devnull]) == ["b==1"]

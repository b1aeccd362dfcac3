import importlib.metadata
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.workload.conftest import LayOut
from workload import __version__
from workload.environment.machine import HostSystem
from workload.environment.software import _build_facts, commit_facts, software_facts, speed_variables

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
    dropped = dict.fromkeys(
        (
            "AWS_SECRET_ACCESS_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "PATH",
            "omp_num_threads",
            "MY_OMP_NUM_THREADS",
            "TORCH_TOKEN",
            "CUDA_SECRET",
        ),
        "secret",
    )
    assert speed_variables({**kept, **dropped}) == kept


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (CLEAN, (SHA, False)),
        (f"{CLEAN}\n1 .M N... 100644 100644 100644 a b workload/contract/spec.py", (SHA, True)),
        (f"{CLEAN}\n? workload/new.py", (SHA, True)),
        ("# branch.oid (initial)\n# branch.head main", ("baked", None)),
        (None, ("baked", None)),
    ],
    ids=["clean", "changed", "a new file", "no commit yet", "no git, or git refuses"],
)
def test_commit_of_a_checkout(
    lay_out: LayOut, tmp_path: Path, status: str | None, expected: tuple[str, bool | None]
) -> None:
    (tmp_path / ".git").mkdir()
    machine = lay_out(environ={"ROOFLAUNCH_COMMIT": "baked"}, tools={"git": status})
    assert commit_facts(machine, tmp_path) == dict(zip(("commit", "commit_dirty"), expected, strict=True))


@pytest.mark.parametrize(("baked", "expected"), [("abc", "abc"), ("", None), (None, None)])
def test_commit_of_an_installed_copy_asks_no_git(
    lay_out: LayOut, tmp_path: Path, baked: str | None, expected: str | None
) -> None:
    machine = lay_out(environ={} if baked is None else {"ROOFLAUNCH_COMMIT": baked})
    assert commit_facts(machine, tmp_path) == {"commit": expected, "commit_dirty": None}


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64\n"
                "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d2)\n  - OpenMP 201511 (a.k.a. OpenMP 4.5)\n"
                "  - CPU capability usage: AVX512\n"
                "  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, LAPACK_INFO=x\n"
            ),
            ("mkl", "2024.2-Product", "3.7.1", "201511", "AVX512"),
        ),
        (
            "  - CPU capability usage: NO AVX\n  - Build settings: BLAS_INFO=accelerate, X=1\n",
            ("accelerate", None, None, None, "NO AVX"),
        ),
        ("", (None,) * 5),
    ],
    ids=["x86 with MKL", "a Mac", "nothing"],
)
def test_build_facts(text: str, expected: tuple[str | None, ...]) -> None:
    names = ("blas", "mkl", "onednn", "openmp", "cpu_capability")
    assert _build_facts(text) == dict(zip(names, expected, strict=True))


def test_software_of_this_process(lay_out: LayOut) -> None:
    facts = software_facts(lay_out(environ={"COLAB_RELEASE_TAG": "release-1"}, tools={"git": CLEAN}))
    assert facts["rooflaunch"] == __version__
    assert facts["torch"] == torch.__version__
    assert facts["numpy"] == importlib.metadata.version("numpy")
    assert facts["intra_op_threads"] == torch.get_num_threads()
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
    assert [facts[name] for name in ("torchvision", "numpy", "cudnn", "colab")] == [None] * 4

from pathlib import Path

import pytest

from workload.contract import operating_system
from workload.contract.errors import ExitCode, UsageError
from workload.contract.operating_system import from_checkout


def test_a_module_beside_the_packages_is_imported() -> None:
    assert from_checkout("benchmarks.gpu_truth.evidence", "gpu-truth").SCHEMA == 1


def test_an_installed_package_says_that_it_has_no_such_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "ROOT", tmp_path)
    with pytest.raises(UsageError) as caught:
        from_checkout("benchmarks.gpu_truth.evidence", "gpu-truth")
    folder = tmp_path / "benchmarks" / "gpu_truth"
    expected = f"there is no '{folder}': gpu-truth is part of the repository, not of the installed package"
    assert str(caught.value) == expected
    assert caught.value.hint.startswith("run gpu-truth from a checkout: ")
    assert caught.value.hint.endswith("docs/gpu-truth.md")
    assert caught.value.exit_code == ExitCode.USAGE

import pytest
import torch

from workload.environment import gpu_code


@pytest.mark.parametrize(
    ("capabilities", "targets", "missing"),
    [
        (["7.5", "8.9"], ["sm_75", "sm_86"], []),
        (["8.9"], ["sm_89"], []),
        (["8.0"], ["sm_86"], ["8.0"]),
        (["9.0"], ["sm_89"], ["9.0"]),
        (["7.0", "7.5"], ["sm_75"], ["7.0"]),
        (["12.0", "10.0"], ["sm_100"], ["12.0"]),
        (["9.0"], ["sm_90a"], []),
        (["12.1", "12.0"], ["sm_120"], []),
        # PTX is no code: it would be compiled at the first start.
        (["9.0"], ["compute_90"], ["9.0"]),
        (["9.0", "8.0"], [], ["9.0", "8.0"]),
        ([], ["sm_75"], []),
        ([], [], []),
    ],
)
def test_code_runs_on_its_own_and_later_minor_versions(
    capabilities: list[str], targets: list[str], missing: list[str]
) -> None:
    assert gpu_code.missing(capabilities, targets) == missing


@pytest.mark.parametrize(
    ("capabilities", "code", "printed"),
    [
        (["7.5", "8.9"], 0, ""),
        ([], 0, ""),
        (
            ["7.0", "8.9", "9.0"],
            1,
            "error: torch has no code for compute capability 7.0, 9.0; it has sm_75 sm_80 compute_80\n",
        ),
    ],
)
def test_script(
    capabilities: list[str],
    code: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: "sm_75 sm_80 compute_80", raising=False)
    assert gpu_code.main(capabilities) == code
    assert capsys.readouterr().out == printed


def test_build_for_the_cpu_has_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: None, raising=False)
    assert gpu_code.built_targets() == []
    monkeypatch.delattr(torch._C, "_cuda_getArchFlags")
    assert gpu_code.built_targets() == []
    assert gpu_code.main(["8.9"]) == 1

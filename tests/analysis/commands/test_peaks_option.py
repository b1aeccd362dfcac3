"""The user's own peaks: in the working folder, or in the file that `--peaks` names."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import analysis
from analysis.loading import index
from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from tests.analysis.own_peaks import own_t4
from workload.contract import peaks
from workload.contract.errors import ExitCode

HERE = "a bench of the lab, read 2026-11, from peaks.toml, in the working folder"


@pytest.fixture(autouse=True)
def vendors_again() -> Iterator[None]:
    yield
    peaks.use(None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run on a T4 without measured ceilings, in `results`."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "results", 0, ceilings=None)
    return tmp_path


def points(analyze: Analyze, *words: str) -> tuple[dict[str, object], str]:
    code, out, err = analyze("roofline", "results", "--format", "json", *words)
    assert code == ExitCode.DONE
    return json.loads(out)[0], err


@pytest.mark.usefixtures("folder")
def test_roofline_uses_the_working_folder_or_the_named_file(analyze: Analyze) -> None:
    point, err = points(analyze)
    assert (point["roof_flop_per_s"], point["peak_source"]) == (8.1e12, "NVIDIA T4 datasheet, read 2026-11")
    assert "peaks " not in err
    own_t4(Path("peaks.toml"), tflop_per_s=4)
    point, err = points(analyze)
    assert (point["roof_flop_per_s"], point["peak_source"], point["bound"]) == (4e12, HERE, "compute")
    assert "peaks      from peaks.toml, in the working folder: T4 (replaced)\n" in err
    own_t4(Path("lab.toml"), tflop_per_s=5)
    point, err = points(analyze, "--peaks", "lab.toml")
    assert (point["roof_flop_per_s"], point["peak_source"]) == (
        5e12,
        HERE.replace("peaks.toml, in the working folder", "lab.toml"),
    )
    assert "peaks      from lab.toml: T4 (replaced)\n" in err


@pytest.mark.parametrize(
    "command",
    ["summary", "roofline", "compare", "variance", "audit", "kernels", "report", "import"],
)
@pytest.mark.usefixtures("folder")
def test_every_command_refuses_a_wrong_file(analyze: Analyze, command: str) -> None:
    Path("lab.toml").write_text("[[gpu]]\ngb = 300\n")
    code, out, err = analyze(*command.split(), "results", "--peaks", "lab.toml")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.splitlines()[0] == "error: 'lab.toml': there is no key gpu.gb; a number's key ends in its unit"
    assert "gb_per_s" in err.splitlines()[1]


def test_report_names_the_origin(analyze: Analyze, folder: Path) -> None:
    own_t4(Path("peaks.toml"), tflop_per_s=4)
    code, _, _ = analyze("report", "results", "--markdown", "report.md")
    assert code == ExitCode.DONE
    assert HERE in (folder / "report.html").read_text()
    assert HERE in (folder / "report.md").read_text()


def test_index_is_valid_only_for_its_peaks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEWEST", 1)
    # 3.4 TFLOP/s: below half of 8.1, above half of 4.
    assert analysis.load("results").runs["bound"].tolist() == ["neither"]
    own_t4(Path("peaks.toml"), tflop_per_s=4)
    assert analysis.load("results").runs["bound"].tolist() == ["compute"]
    assert analysis.load("results").summary()["bound"].tolist() == ["compute"]
    Path("peaks.toml").unlink()
    assert analysis.load("results").runs["bound"].tolist() == ["neither"]
    own = own_t4(folder / "lab.toml", tflop_per_s=4)
    assert analysis.load("results", peaks=own).runs["bound"].tolist() == ["compute"]

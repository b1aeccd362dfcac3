"""`analyze` in this process; a report of a matrix of runs, and one whose texts are hostile, made once for all tests."""

import sys

import pandas as pd
import pytest

import analysis
from analysis.__main__ import main
from analysis.report.compose import compose
from analysis.report.content import Report
from analysis.report.evidence import ReportEvidence, gather
from tests.analysis.in_process import Analyze
from tests.analysis.report.report_bundles import hostile, matrix
from workload.contract.errors import ExitCode


def pytest_configure(config: pytest.Config) -> None:
    """Everyday tests keep texts of tables as Python objects: frames of few rows take a quarter less time.

    CI keeps them as users have them, in pyarrow.
    """
    if "not (slow" in config.option.markexpr:
        pd.set_option("mode.string_storage", "python")


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Analyze:
    """Run `analyze` with some words; returns exit code, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["analyze", *map(str, words)])
        capsys.readouterr()
        code = main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert code != ExitCode.BUG
        return code, out, err

    return run


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> ReportEvidence:
    return gather(analysis.load(matrix(tmp_path_factory.mktemp("report") / "results")))


@pytest.fixture(scope="session")
def report(evidence: ReportEvidence) -> Report:
    return compose(evidence)


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compose(gather(analysis.load(hostile(tmp_path_factory.mktemp("hostile") / "results"))))

"""A report of a matrix of runs, and one whose texts are hostile; made once for all tests of reports."""

import pytest
from report_bundles import hostile, matrix

import analysis
from analysis.report.compose import compose
from analysis.report.content import Report
from analysis.report.evidence import ReportEvidence, gather


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> ReportEvidence:
    return gather(analysis.load(matrix(tmp_path_factory.mktemp("report") / "results")))


@pytest.fixture(scope="session")
def report(evidence: ReportEvidence) -> Report:
    return compose(evidence)


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compose(gather(analysis.load(hostile(tmp_path_factory.mktemp("hostile") / "results"))))

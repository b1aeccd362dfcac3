"""Findings of an audit in the public files, as listed in data/README.md."""

import re
from pathlib import Path

import pytest

import analysis
from analysis.audit import audit
from analysis.importing import UserFacts, import_file
from tests.analysis.audit.rules import ByRuleAndFile, by_rule_and_file

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")

LAPTOP_64, LAPTOP_128, T4 = "rtx4080laptop_resnet50_b64.csv", "rtx4080laptop_resnet50_b128.csv", "t4_resnet18_b128.csv"
H100, RTX4090 = "h100_resnet50_amp_b1280.csv", "rtx4090_resnet50_fp32_b224.csv"
V100_NCU, L4_NCU, GEMM_NCU = "v100_resnet50_wide.csv", "l4_resnet18_long_nvtx.csv", "rtx5070_gemm_long_bom_crlf.csv"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ByRuleAndFile:
    folder = tmp_path_factory.mktemp("imported")
    for name in (LAPTOP_64, LAPTOP_128, T4, H100, RTX4090):
        import_file(DATA / "iterations" / name, UserFacts(), output=folder)
    for name, batch_size in ((V100_NCU, 1), (L4_NCU, 64), (GEMM_NCU, 1)):
        given = UserFacts(
            model="resnet50" if name == V100_NCU else "resnet18",
            batch_size=batch_size,
            precision="fp32",
            profile_steps=1,
        )
        import_file(DATA / "ncu" / name, given, output=folder)
    return by_rule_and_file(analysis.load(folder))


@pytest.mark.parametrize(
    ("rule", "file", "figure"),
    [
        (
            "unsynchronised timing",
            LAPTOP_64,
            "^every 10th step from 1 on: 40 % of the other steps' time by the timer, 102 % by the time stamps$",
        ),
        ("mean of rates", LAPTOP_64, r"by images over wall time: 1\.15 x"),
        ("mean of rates", LAPTOP_128, r"by images over wall time: 1\.41 x"),
        ("mean of rates", T4, r"^653\.9 images/s by the log's rates, 312\.2 by images over wall time: 2\.09 x"),
        (
            "wall time not explained",
            T4,
            r"^steps and waits add up to 57\.7 % of the wall time: 42\.3 % are outside of the timed parts$",
        ),
        ("spill cliff", LAPTOP_128, r"^21\.92 images/s at batch size 128, 318\.2 at 64: 0\.07 x$"),
        (
            "scattered steps",
            LAPTOP_128,
            (
                r"^the middle 90 % of steps take 4\.46 to 7\.98 s: 1\.8 x "
                r"\(2\.67 to 12\.1 s in all; 0\.914 to 8\.56 s by the timer\)$"
            ),
        ),
        ("labels disagree", T4, r"^the place 'envA' stands for 2 devices: rtx4080 laptop \(2\), t4 \(1\)$"),
        ("no backward kernels", L4_NCU, "^98 launches, but no kernel"),
        (
            "imported without facts",
            T4,
            "^the file does not say: device, precision, driver, torch, data set, image size$",
        ),
    ],
)
def test_an_audit_finds(found: ByRuleAndFile, rule: str, file: str, figure: str) -> None:
    (finding,) = found[rule, file]
    assert re.search(figure, finding.figure)


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        ("unsynchronised timing", {LAPTOP_64, LAPTOP_128}),
        ("spill cliff", {LAPTOP_128}),
        ("throttling", set()),
        # 39 rows at batch size 128 beside 100 at 64 may be all that there were.
        ("incomplete series", set()),
        ("labels disagree", {LAPTOP_64, LAPTOP_128, T4}),
        ("no backward kernels", {L4_NCU, GEMM_NCU}),
        ("counters unavailable", {GEMM_NCU}),
        ("too few runs", {LAPTOP_64, LAPTOP_128, T4, H100, RTX4090}),
    ],
)
def test_an_audit_accuses_no_other_file(found: ByRuleAndFile, rule: str, files: set[str]) -> None:
    assert {file for name, file in found if name == rule} == files


def test_a_file_name_against_the_devices_own_attribute(tmp_path: Path) -> None:
    copied = tmp_path / "resnet50-a100.csv"
    copied.write_bytes((DATA / "ncu" / V100_NCU).read_bytes())
    import_file(copied, UserFacts(model="resnet50", batch_size=1), output=tmp_path / "results")

    (finding,) = [each for each in audit(analysis.load(tmp_path / "results")) if each.rule == "labels disagree"]

    assert finding.figure == "the file 'resnet50-a100.csv' names a100, the device is 'Tesla V100-SXM2-16GB'"

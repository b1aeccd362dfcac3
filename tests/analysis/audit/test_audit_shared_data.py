"""What data/README.md says an audit must find in the public files, found there."""

from collections import defaultdict
from pathlib import Path

import pytest

import analysis
from analysis.audit import Finding, audit
from analysis.importing import UserFacts, import_file

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")

LAPTOP_64, LAPTOP_128, T4 = "rtx4080laptop_resnet50_b64.csv", "rtx4080laptop_resnet50_b128.csv", "t4_resnet18_b128.csv"
H100, RTX4090 = "h100_resnet50_amp_b1280.csv", "rtx4090_resnet50_fp32_b224.csv"
V100_NCU, L4_NCU, GEMM_NCU = "v100_resnet50_wide.csv", "l4_resnet18_long_nvtx.csv", "rtx5070_gemm_long_bom_crlf.csv"

Found = dict[tuple[str, str], list[Finding]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Findings by rule and file."""
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
    results = analysis.load(folder)
    names = dict(zip(results.runs["run_id"], results.runs["imported_file"], strict=True))
    by_file: Found = defaultdict(list)
    for finding in audit(results):
        for run_id in finding.subject:
            by_file[finding.rule, names[run_id]].append(finding)
    return by_file


def figure(found: Found, rule: str, file: str) -> str:
    (finding,) = found[rule, file]
    return finding.figure


def files(found: Found, rule: str) -> set[str]:
    return {file for each, file in found if each == rule}


def test_the_timer_without_synchronisation(found: Found) -> None:
    assert figure(found, "unsynchronised timing", LAPTOP_64) == (
        "every 10th step from 1 on: the timer reads 40 % of the other steps, the time stamps 102 %"
    )
    assert files(found, "unsynchronised timing") == {LAPTOP_64, LAPTOP_128}


@pytest.mark.parametrize(("file", "factor"), [(LAPTOP_64, "1.15"), (LAPTOP_128, "1.41"), (T4, "2.09")])
def test_the_mean_of_rates(found: Found, file: str, factor: str) -> None:
    assert f"by images over wall time: {factor} x" in figure(found, "mean of rates", file)


def test_the_rates_of_the_t4(found: Found) -> None:
    assert figure(found, "mean of rates", T4).startswith("653.9 images/s by the log's rates, 312.2 by images over")


def test_the_time_outside_the_timed_part(found: Found) -> None:
    assert figure(found, "wall time not explained", T4) == (
        "steps and waits add up to 57.7 % of the wall time: 42.3 % are outside of the timed parts"
    )


def test_the_spilling_batch(found: Found) -> None:
    assert figure(found, "spill cliff", LAPTOP_128) == "21.92 images/s at batch size 128, 318.2 at 64: 0.07 x"
    assert figure(found, "scattered steps", LAPTOP_128) == (
        "5 % to 95 % of the steps take 4.46 to 7.98 s: 1.8 x (2.67 to 12.1 s in all; the timer says 0.914 to 8.56 s)"
    )
    assert files(found, "spill cliff") == {LAPTOP_128}
    assert files(found, "throttling") == set()


def test_no_series_is_held_against_another_batch_size(found: Found) -> None:
    """39 rows at batch size 128 beside 100 at 64 may be all that there were."""
    assert files(found, "incomplete series") == set()


def test_the_labels_that_disagree(found: Found) -> None:
    assert figure(found, "labels disagree", T4) == ("the place 'envA' stands for 2 devices: rtx4080 laptop (2), t4 (1)")
    assert files(found, "labels disagree") == {LAPTOP_64, LAPTOP_128, T4}


def test_the_profile_without_backward_pass(found: Found) -> None:
    assert figure(found, "no backward kernels", L4_NCU).startswith("98 launches, but no kernel")
    assert files(found, "no backward kernels") == {L4_NCU, GEMM_NCU}


def test_the_profile_without_flop(found: Found) -> None:
    assert files(found, "counters unavailable") == {GEMM_NCU}


def test_one_run_each(found: Found) -> None:
    assert files(found, "too few runs") == {LAPTOP_64, LAPTOP_128, T4, H100, RTX4090}


def test_what_imported_files_do_not_say(found: Found) -> None:
    assert figure(found, "imported without facts", T4) == (
        "the file does not say: device, precision, driver, torch, data set, image size"
    )


def test_a_file_name_against_the_devices_own_attribute(tmp_path: Path) -> None:
    copied = tmp_path / "resnet50-a100.csv"
    copied.write_bytes((DATA / "ncu" / V100_NCU).read_bytes())
    import_file(copied, UserFacts(model="resnet50", batch_size=1), output=tmp_path / "results")

    (finding,) = [each for each in audit(analysis.load(tmp_path / "results")) if each.rule == "labels disagree"]

    assert finding.figure == "the file 'resnet50-a100.csv' names a100, the device is 'Tesla V100-SXM2-16GB'"

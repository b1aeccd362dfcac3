"""The quirks of public logs and profiles: in files of our own, and in the public ones where they are at hand."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

import analysis
from analysis.api import Results
from analysis.importing import UserFacts, import_file
from analysis.readers import ncu
from analysis.readers.ncu import NcuFileError
from tests.analysis.audit.rules import ByRuleAndFile, by_rule_and_file
from tests.analysis.importing import like_public
from tests.analysis.importing.like_public import (
    BOM_CRLF,
    CORRELATED,
    LOGS,
    LONG_NVTX,
    NO_HEADER,
    NO_KERNELS,
    OUTSIDE,
    SPILLING,
    STEADY,
    UNSYNCHRONISED,
    WIDE,
)
from tests.analysis.sentence_runs import Golden

SHARED = Path(__file__).parents[4] / "shared" / "data"
PUBLIC_LOGS, PUBLIC_PROFILES = SHARED / "iterations", SHARED / "ncu"
PUBLIC = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return like_public.make(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("imported")
    for name in LOGS:
        import_file(files / "iterations" / name, UserFacts(), output=folder)
    for name, batch_size in ((WIDE, 1), (LONG_NVTX, 64), (BOM_CRLF, 2)):
        given = UserFacts(model="resnet18", batch_size=batch_size, precision="fp32", profile_steps=1)
        import_file(files / "ncu" / name, given, output=folder)
    return analysis.load(folder)


@pytest.fixture(scope="module")
def findings(runs: Results) -> ByRuleAndFile:
    return by_rule_and_file(runs)


# --- logs: what an audit finds


def test_findings_by_file(findings: ByRuleAndFile, golden: Golden) -> None:
    """By hand, of the unsynchronised log: 0.9 x 320 + 0.1 x 800 images/s, against 64 images in 0.202 s."""
    lines = [f"{file}: {rule}: {one.figure}" for (rule, file), found in findings.items() for one in found]
    golden("quirks.txt", "\n".join([*sorted(lines), ""]))


@pytest.mark.parametrize(
    ("file", "work", "precision", "rows", "wall", "claimed"),
    [
        # Wall: images of the rows after the first over the time between first and last stamp.
        (UNSYNCHRONISED, ("resnet50", 64), None, 100, 316.832, 368.0),
        (SPILLING, ("resnet50", 128), None, 39, 18.068, 37.362),
        (OUTSIDE, ("resnet18", 128), None, 64, 343.15, 640.0),
        (CORRELATED, ("resnet50", 1024), "amp", 190, 2227.04, 2216.6),
        (STEADY, ("resnet50", 256), "fp32", 190, 825.75, 821.91),
        pytest.param(
            PUBLIC_LOGS / "rtx4080laptop_resnet50_b64.csv", ("resnet50", 64), None, 100, 318.21, 366.47, marks=PUBLIC
        ),
        pytest.param(
            PUBLIC_LOGS / "rtx4080laptop_resnet50_b128.csv", ("resnet50", 128), None, 39, 21.917, 30.830, marks=PUBLIC
        ),
        pytest.param(PUBLIC_LOGS / "t4_resnet18_b128.csv", ("resnet18", 128), None, 64, 312.19, 649.66, marks=PUBLIC),
        pytest.param(
            PUBLIC_LOGS / "h100_resnet50_amp_b1280.csv", ("resnet50", 1280), "amp", 198, 2633.83, 2791.81, marks=PUBLIC
        ),
        pytest.param(
            PUBLIC_LOGS / "rtx4090_resnet50_fp32_b224.csv", ("resnet50", 224), "fp32", 198, 662.49, 720.97, marks=PUBLIC
        ),
    ],
)
def test_imported_logs(
    file: str | Path,
    work: tuple[str, int],
    precision: str | None,
    rows: int,
    wall: float,
    claimed: float,
    files: Path,
    tmp_path: Path,
) -> None:
    import_file(files / "iterations" / file, UserFacts(), output=tmp_path)
    loaded = analysis.load(tmp_path)
    assert loaded.problems == ()
    run = loaded.runs.iloc[0]
    assert (run["model"], run["batch_size"], len(loaded.steps)) == (*work, rows)
    assert (run["precision"] if isinstance(run["precision"], str) else None) == precision
    assert run["images_per_s"] == pytest.approx(wall, rel=1e-4)
    assert run["claimed_images_per_s"] == pytest.approx(claimed, rel=1e-4)


# --- profiles


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a profile adds up to; of public files as computed independently (data/README.md beside them)."""

    launches: int
    time_s: float
    read: int
    written: int
    add_mul_fma: tuple[int, int, int] | None
    flop: float | None
    device: str


PROFILES = {
    # 1 + … + 5 = 15 times 1 us, 3 kB, 1 kB and 10 + 20 + 2 x 100 FLOP; the file's own device beats the user's word.
    WIDE: Totals(
        launches=5, time_s=15e-6, read=45_000, written=15_000,
        add_mul_fma=(150, 300, 1500), flop=15 * 230, device="Tesla V100-SXM2-16GB",
    ),
    LONG_NVTX: Totals(
        launches=3, time_s=15e-6, read=1_500_000 + 1_024_250 + 250, written=0,
        add_mul_fma=(0, 0, 2_433_500), flop=2 * 2_433_500, device="NVIDIA L4",
    ),
    BOM_CRLF: Totals(
        launches=1, time_s=10.5e-3, read=53_250_000, written=3_500_000,
        add_mul_fma=None, flop=None, device="NVIDIA L4",
    ),
    "v100_resnet50_wide.csv": Totals(
        launches=620, time_s=10.268160e-3, read=1370874016, written=474155872,
        add_mul_fma=(501318032, 220020430, 12634203039), flop=25989744540, device="Tesla V100-SXM2-16GB",
    ),
    "l4_resnet18_long_nvtx.csv": Totals(
        launches=98, time_s=7.376250e-3, read=607558840, written=102390000,
        add_mul_fma=(35270784, 26223242, 2433449797), flop=4928393620, device="NVIDIA L4",
    ),
    "rtx5070_gemm_long_bom_crlf.csv": Totals(
        launches=1, time_s=10.195552e-3, read=53261312, written=3377920,
        add_mul_fma=None, flop=None, device="NVIDIA L4",
    ),
}  # fmt: skip


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest, files: Path) -> tuple[Path, Totals]:
    """A profile of ours or a public one, and what it adds up to."""
    path = files / "ncu" / request.param
    if not path.is_file():
        path = PUBLIC_PROFILES / request.param
        if not path.is_file():
            pytest.skip("needs ../shared/data")
    return path, PROFILES[request.param]


def test_totals(profile: tuple[Path, Totals]) -> None:
    path, expected = profile
    read = ncu.read(path)
    kernels = read.kernels
    assert (read.warnings, read.is_partial) == ((), False)
    assert len(kernels) == expected.launches
    assert kernels["duration_s"].sum() == pytest.approx(expected.time_s, rel=1e-12)
    moved = [round(kernels[f"dram_{name}bytes"].sum(), 3) for name in ("read_", "write_", "")]
    assert moved == [expected.read, expected.written, expected.read + expected.written]
    counts = tuple(read.totals.get(f"fp32_{operation}") for operation in ("add", "mul", "fma"))
    assert counts == (expected.add_mul_fma or (None, None, None))
    flop = math.nan if expected.flop is None else expected.flop
    assert kernels["flop"].sum(min_count=1) == pytest.approx(flop, rel=0, abs=0, nan_ok=True)
    assert not kernels["flop_is_lower_bound"].any()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (NO_KERNELS, "ncu profiled no kernels"),
        (NO_HEADER, "the profiled program ended with error code"),
        pytest.param(PUBLIC_PROFILES / "failed_no_kernels.csv", "ncu profiled no kernels", marks=PUBLIC),
        pytest.param(
            PUBLIC_PROFILES / "failed_no_header.csv", "the profiled program ended with error code", marks=PUBLIC
        ),
    ],
)
def test_profiles_that_failed(name: str | Path, reason: str, files: Path) -> None:
    with pytest.raises(NcuFileError) as caught:
        ncu.read(files / "ncu" / name)
    assert reason in str(caught.value)

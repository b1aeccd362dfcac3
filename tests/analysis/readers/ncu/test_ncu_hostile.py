"""Whatever a file holds: it is read, or refused with an error of ours; soon."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.readers import ncu
from tests.analysis.readers.ncu.ncu_files import DRAM, FFMA, STARTED, TIME, line, long, save, who, wide
from workload.contract.errors import RooflaunchError

SHARED = Path(__file__).parents[5] / "shared" / "data" / "ncu"


def refused_or_read(path: Path) -> RooflaunchError | ncu.NcuFile:
    try:
        return ncu.read(path)
    except RooflaunchError as error:
        return error


def survives(path: Path) -> None:
    found = refused_or_read(path)
    if isinstance(found, RooflaunchError):
        assert str(found)
        assert found.hint
        assert "\x1b" not in found.report()
    else:
        assert len(found.kernels)
        assert list(found.kernels["launch"]) == list(range(len(found.kernels)))


@given(content=st.binary(max_size=3000))
def test_random_bytes(content: bytes, tmp_path: Path) -> None:
    survives(save(tmp_path, content))


@given(cells=st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), min_size=1, max_size=5))
def test_any_text_in_the_cells(cells: list[list[str]], tmp_path: Path) -> None:
    encodable = [[cell.encode(errors="replace").decode() for cell in row] for row in cells]
    survives(save(tmp_path, wide({TIME: "ns", DRAM: "byte", FFMA: "inst"}, encodable)))
    rows = [(launch, TIME, unit, value) for launch, (_, unit, value) in enumerate(encodable)]
    survives(save(tmp_path, long(rows)))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    "name", ["v100_resnet50_wide", "l4_resnet18_long_nvtx", "cc75_details_ragged", "rtx5070_gemm_long_bom_crlf"]
)
def test_real_files_cut_off_and_damaged(name: str, tmp_path: Path) -> None:
    content = (SHARED / f"{name}.csv").read_bytes()
    draw = random.Random(0)
    for _ in range(12):
        part = content[: draw.randrange(len(content))]
        survives(save(tmp_path, part))
        damaged = bytearray(part)
        for _ in range(min(len(part), draw.choice([1, 5, 100]))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        survives(save(tmp_path, bytes(damaged)))


MEGABYTE = 1 << 20


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "content",
    [
        wide({TIME: "ns"}, [["5"]], names=["k<" * (MEGABYTE // 2)]),
        wide({TIME: "ns"}, [["5" * MEGABYTE]]),
        long([(0, TIME, "u" * MEGABYTE, "5")]),
        wide({STARTED: "", TIME: "ns"}, [['1  "' + "a:" * MEGABYTE + '"', "5"]]),
        wide({STARTED: "", TIME: "ns"}, [['"' * MEGABYTE, "5"]]),
        wide({f"a__{number}.sum": "" for number in range(20_000)}, [["5"] * 20_000]),
        wide({TIME: "ns"}, [["5"]]) + '"' * MEGABYTE,
        wide({TIME: "ns"}, [["5"]]) + "x" * MEGABYTE,
        wide({TIME: "ns"}, [["5"]]) + "," * MEGABYTE,
        wide({TIME: "ns"}, [["5"]]) + "\n" * MEGABYTE,
        wide({TIME: "ns"}, [["5"]]) + "\x00" * MEGABYTE,
        "\x00" * MEGABYTE,
        '"ID",' * (MEGABYTE // 5),
        ("ID," + "Kernel Name," * 10 + "\n") * 2000,
        wide({TIME: "ns"}, [["5"]]) * 500,
        line(["ID", *["Kernel Name"] * 1000, TIME]) + line(["", *[""] * 1000, "ns"]) + line([0, *["k"] * 1000, "5"]),
        line(["ID", "Kernel Name", "Metric Name", "Metric Value"]) + line([0, "k", TIME, "5"]),
        line(["ID", "Kernel Name", "Metric Value", "Metric Name"]) + line([0, "k"]),
        wide({TIME: "ns"}, [["5"]]).replace('"0"', f'"{2**63}"'),
        wide({TIME: "ns"}, [["5"]]).replace('"0"', '"-5"'),
        line([*who()[:0], "ID", "Kernel Name", TIME]) + line(["", "", "ns"]) + line(["²", "k", "5"]),
        "0%" * MEGABYTE + wide({TIME: "ns"}, [["5"]]),
        "x" + "\n" * MEGABYTE,
        "x" + " " * MEGABYTE,
        "Nsight Compute" * (MEGABYTE // 14),
        "Kernel Name" * (MEGABYTE // 11),
        "Metric Name " + " " * MEGABYTE,
        "Total Time " * (MEGABYTE // 11),
        "==ERROR== " * (MEGABYTE // 10),
    ],
    ids=range(29),
)
def test_extreme_files(content: str, tmp_path: Path) -> None:
    survives(save(tmp_path, content))

import math
from pathlib import Path

import pyarrow as pa
import pytest

from analysis.readers import ncu
from analysis.readers.ncu import table
from analysis.readers.ncu.table import NcuFileError
from tests.analysis.readers.ncu.ncu_files import FFMA, TIME, long, save, wide

PERCENT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def test_numbers_with_and_without_thousands() -> None:
    column = pa.chunked_array([pa.array(["2,433,449", "-2", "1e3", "4,963.19", ".5", None, "inf", "CachePreferNone"])])
    found, foreign = table.convert(column)
    expected = [2433449, -2, 1000, 4963.19, 0.5, math.nan, math.nan, math.nan]
    assert found.tolist() == pytest.approx(expected, nan_ok=True)
    assert foreign == "CachePreferNone"


@pytest.mark.parametrize("cell", ["65,77", "0,344", "1234,344", "1.117.344", "117.344,5", "3,1415"])
def test_decimal_commas_are_refused(cell: str, tmp_path: Path) -> None:
    for text in (
        wide({TIME: "ns", PERCENT: "%"}, [["5", cell]]),
        long([(0, TIME, "ns", "5"), (0, PERCENT, "%", cell)]),
    ):
        path = save(tmp_path, text)
        with pytest.raises(NcuFileError) as caught:
            ncu.read(path)
        reason = f"'{cell}' is a number of another locale than English"
        assert str(caught.value) == f"'{path}' has no table of Nsight Compute: {reason}"
        assert caught.value.hint == "export again with LC_ALL=C"


def test_a_fraction_of_an_instruction_is_refused_and_one_of_a_time_is_read(tmp_path: Path) -> None:
    for text in (wide({FFMA: "inst", TIME: "us"}, [["117.344", "5"]]), long([(0, FFMA, "inst", "117.344")])):
        with pytest.raises(NcuFileError, match=r"'117\.344' is a number of another locale"):
            ncu.read(save(tmp_path, text))
    found = ncu.read(save(tmp_path, wide({TIME: "us"}, [["117.344"]])))
    assert found.kernels["duration_s"][0] == pytest.approx(117.344e-6)

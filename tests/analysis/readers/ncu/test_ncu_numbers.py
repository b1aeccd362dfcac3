import math
from pathlib import Path

import pyarrow as pa
import pytest

from analysis.readers import ncu
from analysis.readers.ncu import numbers
from analysis.readers.ncu.errors import NcuFileError
from analysis.readers.ncu.numbers import NumberFormat
from tests.analysis.readers.ncu.ncu_files import DRAM, FFMA, TIME, long, save, wide

PERCENT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def column(*texts: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


@pytest.mark.parametrize(
    ("texts", "is_whole", "expected"),
    [
        (["5", "117"], False, NumberFormat.PLAIN),
        (["117.34"], False, NumberFormat.ENGLISH),
        (["628.032000"], False, NumberFormat.ENGLISH),
        (["117.344"], False, NumberFormat.PLAIN),
        (["117.344"], True, NumberFormat.EUROPEAN),
        (["1.117.344"], False, NumberFormat.EUROPEAN),
        (["117.344", "65,77"], False, NumberFormat.EUROPEAN),
        (["0,344"], False, NumberFormat.EUROPEAN),
        (["1234,344"], False, NumberFormat.EUROPEAN),
        (["2,433,449"], False, NumberFormat.ENGLISH),
        (["2,433"], False, NumberFormat.ENGLISH),
        (["2,433", "3.71"], False, NumberFormat.ENGLISH),
        (["117.344", "2,433"], True, NumberFormat.ENGLISH),
        (["117.344", "0.5", "2,433"], True, NumberFormat.ENGLISH),
        (["1e-05"], False, NumberFormat.PLAIN),
        ([None], False, NumberFormat.PLAIN),
        ([], False, NumberFormat.PLAIN),
    ],
)
def test_format_of_a_file(texts: list[str], is_whole: bool, expected: NumberFormat) -> None:
    assert numbers.decide([(column(*texts), is_whole)]) is expected


@pytest.mark.parametrize(
    ("form", "texts", "expected"),
    [
        (NumberFormat.PLAIN, ["1234.5", "-2", "1e3"], [1234.5, -2, 1000]),
        (NumberFormat.ENGLISH, ["2,433,449", "3.71", "4,963,609,951.19"], [2433449, 3.71, 4963609951.19]),
        (NumberFormat.EUROPEAN, ["117.344", "65,77", "1.117.344,5"], [117344, 65.77, 1117344.5]),
        (
            NumberFormat.PLAIN,
            ["1'234'567", "1 234.5", "1\u202f234\u202f567", "1\u00a0234"],
            [1234567, 1234.5, 1234567, 1234],
        ),
        (NumberFormat.EUROPEAN, ["1 234,5", "1'2'3"], [1234.5, 123]),
    ],
)
def test_conversion(form: NumberFormat, texts: list[str], expected: list[float]) -> None:
    found, foreign = numbers.convert(column(*texts), form)
    assert list(found) == expected
    assert foreign is None


def test_what_is_no_number_is_named() -> None:
    found, foreign = numbers.convert(column("5", "CachePreferNone", None, "inf"), NumberFormat.PLAIN)
    assert found.tolist() == pytest.approx([5, math.nan, math.nan, math.nan], nan_ok=True)
    assert foreign == "CachePreferNone"


def test_decided_once_for_all_columns(tmp_path: Path) -> None:
    found = ncu.read(save(tmp_path, wide({TIME: "ns", PERCENT: "%"}, [["117.344", "65,77"]])))
    assert found.number_format is NumberFormat.EUROPEAN
    assert found.kernels["duration_s"][0] == pytest.approx(117344e-9)
    assert found.kernels["sm_percent"][0] == 65.77
    found = ncu.read(save(tmp_path, long([(0, TIME, "ns", "117.344"), (0, PERCENT, "%", "65,77")])))
    assert found.kernels["duration_s"][0] == pytest.approx(117344e-9)


def test_a_fraction_of_an_instruction_is_a_thousands_mark(tmp_path: Path) -> None:
    for text in (wide({FFMA: "inst", TIME: "us"}, [["117.344", "5"]]), long([(0, FFMA, "inst", "117.344")])):
        assert ncu.read(save(tmp_path, text)).totals["fp32_fma"] == 117344
    found = ncu.read(save(tmp_path, wide({TIME: "us"}, [["117.344"]])))
    assert found.kernels["duration_s"][0] == pytest.approx(117.344e-6), "a time may have a fraction"


def test_two_formats_in_one_file_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, wide({DRAM: "byte", PERCENT: "%"}, [["2,433,449", "65,77"]]))
    with pytest.raises(NcuFileError) as caught:
        ncu.read(path)
    reason = "'2,433,449' and '65,77' cannot be numbers of one format"
    assert str(caught.value) == f"'{path}' has no table of Nsight Compute: {reason}"
    assert caught.value.hint == "export again with LC_ALL=C"


def test_marks_beyond_the_first_rows(tmp_path: Path) -> None:
    rows = [["7"]] * 500 + [["2,433,449"]] + [["8"]] * 500
    found = ncu.read(save(tmp_path, wide({DRAM: "byte"}, rows)))
    assert found.totals["dram"] == 500 * 7 + 2433449 + 500 * 8


def test_evidence_between_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_END_ROWS", 2)
    assert numbers.decide([(column("1", "2", "65,77", "3", "4"), False)]) is NumberFormat.EUROPEAN

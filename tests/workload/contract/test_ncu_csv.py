"""The table among ncu's output, and names of its metrics. tests/analysis reads real files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.workload.told import told
from workload.contract import ncu_csv, vocabulary
from workload.contract.errors import UsageError
from workload.contract.ncu_csv import DamagedTableError, Layout, NcuSource, NoTableError, Quantity
from workload.contract.spec import Profile, RunSpec, arguments, resolve

WIDE = '"ID","Kernel Name","dram__bytes.sum"\n"","","Kbyte"\n"0","a, b","1"\n'
LONG = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","a","x","byte","1"\n'


def source(text: str) -> NcuSource:
    return NcuSource(path=Path("kernels.csv"), content=text.encode())


@pytest.mark.parametrize(
    ("before", "text", "delimiter"),
    [
        ("", WIDE, ","),
        ("==PROF== Connected\n", WIDE, ","),
        ("==PROF== Profiling a: 0%", WIDE, ","),
        ("\N{BYTE ORDER MARK}", WIDE, ","),
        ("", "ID;Kernel Name;dram__bytes.sum\n;;byte\n0;a;1\n", ";"),
        ("", "ID\tKernel Name\tdram__bytes.sum\r\n\t\tbyte\r\n0\ta\t1\r\n", "\t"),
    ],
    ids=["alone", "below messages", "glued to a message", "byte order mark", "semicolons", "tabs"],
)
def test_where_the_table_begins(before: str, text: str, delimiter: str) -> None:
    head = ncu_csv.find(source(before + text))
    assert head.header == ("ID", "Kernel Name", "dram__bytes.sum")
    assert head.delimiter == delimiter
    assert ncu_csv.units_of(source(before + text), head)[0] is not None
    assert not head.is_cut


def test_a_file_without_a_table_is_quoted() -> None:
    with pytest.raises(NoTableError) as caught:
        ncu_csv.find(source("nothing\n==ERROR== No kernels were profiled.\n"))
    assert caught.value.head.startswith(b"nothing")
    assert caught.value.text.splitlines()[-1] == "==ERROR== No kernels were profiled."


def test_rows_have_their_tables_head_and_line() -> None:
    text = f"==PROF== x\n{WIDE}\n==PROF== Disconnected\n{LONG}"
    head = ncu_csv.find(source(text))
    table_rows = [(table.header[2], table.units, line, row) for table, line, row in ncu_csv.rows(source(text), head)]
    assert table_rows == [
        ("dram__bytes.sum", ["", "", "Kbyte"], 2, ["0", "a, b", "1"]),
        ("dram__bytes.sum", ["", "", "Kbyte"], 4, ["==PROF== Disconnected"]),
        ("Metric Name", None, 6, ["0", "a", "x", "byte", "1"]),
    ]
    assert ncu_csv.lines_before(source(text), head) == 2


def test_a_row_that_is_cut_off_is_left_out() -> None:
    text = f'{WIDE}"1","b'
    head = ncu_csv.find(source(text))
    assert head.is_cut
    assert [row[0] for _, _, row in ncu_csv.rows(source(text), head)] == ["0"]


def test_a_damaged_row_is_named() -> None:
    text = f'{WIDE}"1","{"b" * (17 << 20)}","1"\n'
    head = ncu_csv.find(source(text))
    with pytest.raises(DamagedTableError, match=r"^line 3 below its header is damaged: field larger than"):
        list(ncu_csv.rows(source(text), head))


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        (("dram__bytes.sum",), Layout.WIDE),
        (("Metric Name", "Metric Value"), Layout.LONG),
        (("Metric Name", "Metric Value", "Rule Name"), Layout.DETAILS),
    ],
)
def test_layouts(columns: tuple[str, ...], layout: Layout) -> None:
    assert ncu_csv.layout_of(("ID", "Kernel Name", *columns)) == layout


@pytest.mark.parametrize(
    ("unit", "as_bytes", "as_any"), [("Mbyte", 1e6, 1e6), (" byte ", 1, 1), ("ns", None, 1e-9), ("furlong", None, None)]
)
def test_units(unit: str, as_bytes: float | None, as_any: float | None) -> None:
    assert ncu_csv.factor(Quantity.BYTES, unit) == as_bytes
    assert ncu_csv.factor_of_any(unit) == as_any


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("dram__bytes.sum", ["dram__bytes.sum"]),
        (" dram__bytes.sum,sm__x.avg.pct , dram__bytes.sum,", ["dram__bytes.sum", "sm__x.avg.pct"]),
        ("launch__registers_per_thread", ["launch__registers_per_thread"]),
    ],
)
def test_list(text: str, names: list[str]) -> None:
    assert vocabulary.metric_names(vocabulary.parse_metrics(text)) == names
    assert vocabulary.parse_metrics(vocabulary.parse_metrics(text)) == vocabulary.parse_metrics(text)


def test_file_has_commas_lines_and_comments() -> None:
    Path("names.txt").write_bytes(
        b"\xef\xbb\xbf# of the rubric\r\ndram__bytes.sum,\r\nsm__x.avg # trailing\r\n\r\nl2__a.sum, sm__x.avg\r\n"
    )
    assert vocabulary.parse_metrics("names.txt") == "dram__bytes.sum,sm__x.avg,l2__a.sum"
    # A list wins, although a file has this name: the list comes from another machine, which has read its file.
    Path("dram__bytes.sum").write_text("l2__a.sum")
    assert vocabulary.parse_metrics("dram__bytes.sum") == "dram__bytes.sum"


WRONG: dict[str, bytes | None] = {
    **dict.fromkeys(("absent.txt", "", "dram__bytes.sum,Dram", "regex:dram.*", ".")),
    "empty.txt": b"# nothing\n",
    "bad.txt": b"dram__bytes.sum\n\nsm__x; rm -rf /\n",
}


def test_wrong_metrics_in_words(golden: Callable[[str, str], None]) -> None:
    texts = []
    for value, content in WRONG.items():
        if content is not None:
            Path(value).write_bytes(content)
        texts.append(told(value, partial(resolve, {"ncu_metrics": value, "profile": "ncu"}, {}, None)))
    golden("ncu_metrics.txt", "".join(texts))


def test_names_and_not_the_file_travel() -> None:
    Path("names.txt").write_text("dram__bytes.sum\nsm__x.avg\n")
    spec = resolve({"ncu_metrics": "names.txt", "profile": "ncu"}, {}, None).spec
    words = arguments(spec)
    assert words[words.index("--ncu-metrics") + 1] == "dram__bytes.sum,sm__x.avg"
    Path("names.txt").unlink()
    assert RunSpec.from_json(spec.to_json()) == spec
    assert arguments(RunSpec(profile=Profile.NCU)) == ["--profile", "ncu"]


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_metrics_need_ncu(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"^--ncu-metrics needs --profile ncu; got --profile {kind}$"):
        resolve({"ncu_metrics": "dram__bytes.sum", "profile": kind}, {}, None)

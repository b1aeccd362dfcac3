"""What a row of a table is: an iteration, one of several, or a run."""

import gzip
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.loading.configurations import measured
from analysis.readers.iteration_log import Log, read
from tests.analysis.in_process import Analyze
from tests.analysis.readers.logs.trainer_logs import timm
from workload.contract import bundle
from workload.contract.errors import ExitCode, UsageError

BEGIN = 1763159640
HEADER = "model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp"


def steps(count: int = 20, *, batch_size: int = 64) -> list[str]:
    """Iterations of 0.2 s."""
    rate = batch_size / 0.2
    return [f"resnet50,{batch_size},{step},200.0,{rate:.1f},{BEGIN + 0.2 * step:.1f}" for step in range(count)]


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows, ""])


def refusal(text: str, batch_size: int | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read(text, file="log.csv", batch_size=batch_size)
    return caught.value.report()


def imported(tmp_path: Path, text: str | bytes, **options: Any) -> list[dict[str, Any]]:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "log.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    folders = import_file(path, UserFacts(**options), output=tmp_path / "out")
    return [dict(bundle.read(folder).document) for folder in folders]


def only(text: str) -> Log:
    (log,) = read(text, file="log.csv")
    return log


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(table(*steps()).encode("utf-16"), id="utf-16"),
        pytest.param(table(*steps()).replace(",", ";").encode("cp1252"), id="semicolon"),
        pytest.param(table(*steps()).replace(",", "|").replace("\n", "\r").encode(), id="bar, carriage return"),
        pytest.param(table(*steps()).replace(",", "\t").encode(), id="tab"),
        pytest.param(
            ("," + table(*(f"{number},{row}" for number, row in enumerate(steps())))).encode(), id="pandas index"
        ),
        pytest.param(
            "\n".join(",".join(reversed(row.split(","))) for row in table(*steps()).splitlines()).encode(),
            id="other order",
        ),
        pytest.param(("GPU warmed up\nstart, now\n" + table(*steps())).encode(), id="output before"),
    ],
)
def test_the_same_log_in_any_form(tmp_path: Path, text: bytes) -> None:
    (record,) = imported(tmp_path, text)
    assert (record["spec"]["model"], record["spec"]["batch_size"]) == ("resnet50", 64)
    assert record["timing"]["images_per_s"] == pytest.approx(320, rel=1e-6)
    assert record["timing"]["step_s"]["median"] == pytest.approx(0.2)
    assert record["imported"]["ignored"] == []


def test_a_row_every_ten_iterations(tmp_path: Path) -> None:
    rows = [f"{10 * number},200,{BEGIN + 2 * number}" for number in range(12)]
    (record,) = imported(tmp_path, table(*rows, header="step,iter_time_ms,timestamp"), model="m", batch_size=64)
    # 110 iterations in 22 s.
    assert record["timing"]["images_per_s"] == pytest.approx(320)
    assert record["timing"]["images"] == 110 * 64
    assert record["notes"] == [
        "a row every 10 iterations: the other iterations count in the wall time, but not as steps"
    ]
    assert record["timing"].get("explained_fraction") is None
    found = analysis.load(tmp_path / "out").audit()["rule"].tolist()
    assert not {"wall time not explained", "unsynchronised timing"} & set(found)


def test_a_missing_row_counts_as_an_iteration(tmp_path: Path) -> None:
    rows = steps()
    (record,) = imported(tmp_path, table(*rows[:7], *rows[8:]))
    assert record["timing"]["images_per_s"] == pytest.approx(320, rel=1e-6)


def test_steps_that_begin_again_begin_another_run_or_epoch(tmp_path: Path) -> None:
    later = [row.replace(str(BEGIN)[:-1], str(BEGIN + 1000)[:-1]) for row in steps(4)]
    two = imported(tmp_path, table(*steps(4), *later))
    assert [record["timing"]["images_per_s"] for record in two] == [pytest.approx(320, rel=1e-6)] * 2
    assert (
        "iter_idx starts again: what follows is another run; if it is an epoch, add a column epoch" in two[0]["notes"]
    )
    rows = [f"{row},{epoch}" for epoch, part in enumerate((steps(4), later)) for row in part]
    assert only(table(*rows, header=f"{HEADER},epoch")).iterations == [1] * 8


def joined(*names: str) -> str:
    """Three logs of 20 rows in one table; the last two share all known labels."""
    parts = [("RTX 4080", "A", "a.csv", 0.2), ("T4", "B", "a.csv", 0.2), ("T4", "C", "b.csv", 0.4)]
    cells = [dict(zip(("environment", "who", "source_file"), part, strict=False)) for part in parts]
    rows = [
        ",".join([row.replace("200.0", f"{1e3 * part[3]:.1f}"), *(cell[name] for name in names)])
        for cell, part in zip(cells, parts, strict=True)
        for row in steps()
    ]
    return table(*rows, header=",".join([HEADER, *names])).replace(",iter_idx,", ",lr,")


def test_columns_that_say_which_run_separate_runs(tmp_path: Path) -> None:
    records = imported(tmp_path, joined("environment", "source_file", "who"))
    assert [record["environment"]["place"] for record in records] == ["RTX 4080", "T4", "T4"]
    assert [record["timing"]["step_s"]["median"] for record in records] == [0.2, 0.2, 0.4]
    assert all(record["imported"].get("losses") is None for record in records)
    assert [note for note in records[1]["notes"] if "who" in note] == [
        "column 'who' is not read; in this run it is 'B'"
    ]


def test_an_unread_column_that_may_separate_runs_is_a_loss(tmp_path: Path) -> None:
    records = imported(tmp_path, joined("environment", "who"))
    assert [record["imported"].get("losses") for record in records] == [
        None,
        ["column 'who' is not read; it may separate the rows of this run: 'B', 'C'"],
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_rates_alone_are_runs(tmp_path: Path, count: int) -> None:
    text = table(*["Tesla T4,resnet50,fp32,64,120"] * count, header="gpu,model,precision,batch,img_per_s")
    assert [record["timing"]["images_per_s"] for record in imported(tmp_path, text)] == [120] * count


def test_a_step_column_that_the_stamps_deny_is_refused() -> None:
    rows = [f"{10 * number},200,{BEGIN + 0.2 * number:.1f}" for number in range(12)]
    assert refusal(table(*rows, header="step,iter_time_ms,timestamp"), batch_size=64) == (
        "error: 'log.csv' contradicts itself: its column step advances by 10 a row, and 10 iterations of 0.2 s do not"
        " fit into the 0.2 s between its time stamps\nhint: if each row is an iteration, remove the column step; if"
        " each time is that of 10 iterations together, divide the times by 10"
    )


@pytest.mark.parametrize("header", ["step,iter_time_ms,timestamp", "lr,iter_time_ms,timestamp"])
def test_stamps_of_runs_are_refused(header: str) -> None:
    rows = [f"{number},200,{BEGIN + 60 * number}" for number in range(12)]
    assert refusal(table(*rows, header=header)) == (
        "error: 'log.csv' contradicts itself: its time stamps are 300 times as far apart as an iteration of 0.2 s"
        " takes\nhint: if each row is a run, write a table of rates: gpu,model,precision,batch,img_per_s"
    )


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        pytest.param("run,model,batch_size,images_per_s", ["1,m,64,205", "2,m,64,206"], id="numbered"),
        pytest.param("model,batch,img_per_s", ["m,64,205", "m,128,206"], id="configurations"),
        pytest.param("model,bs,train_step_time,img_per_s", ["m,64,312,205", "m,206,1000,206"], id="times and rates"),
    ],
)
def test_a_table_with_a_row_per_run_gives_runs_without_steps(tmp_path: Path, header: str, rows: list[str]) -> None:
    text = table(*rows, header=header)
    records = imported(tmp_path, text)
    assert [record["timing"]["images_per_s"] for record in records] == [pytest.approx(205), pytest.approx(206)]
    assert {note for record in records for note in record["notes"]} == {
        "a table with a row per run: nothing in the table confirms its figures"
    }
    loaded = analysis.load(tmp_path / "out")
    assert loaded.problems == ()
    assert len(loaded.steps) == 0
    assert sorted(loaded.runs["images_per_s"]) == [pytest.approx(205), pytest.approx(206)]
    assert len(loaded.summary())


@pytest.mark.slow
def test_runs_of_a_table_are_measured_runs(tmp_path: Path, analyze: Analyze) -> None:
    rows = ("Tesla T4,resnet18,fp32,64,205", "Tesla V100-SXM2-16GB,resnet18,fp32,64,410")
    imported(tmp_path, table(*rows, header="gpu,model,precision,batch,img_per_s"))
    loaded = analysis.load(tmp_path / "out")
    assert set(measured(loaded.runs)["images_per_s"]) == {205, 410}
    assert list(loaded.compare(by="device_name")["ratio"]) == [pytest.approx(2)]
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    assert analyze("report", tmp_path / "out", "-o", page, "--markdown", text)[0] == ExitCode.DONE
    fastest = "resnet18 reached its highest throughput, 410.0 images/s (one run: no interval), at batch 64, fp32"
    assert f"{fastest} on Tesla V100-SXM2-16GB (imported)" in text.read_text()


def test_a_code_page_is_no_loss_and_a_gzip_file_that_breaks_off_is(tmp_path: Path) -> None:
    (record,) = imported(tmp_path, table(*steps()).replace("resnet50", "modèle").encode("cp1252"))
    assert record["imported"].get("losses") is None
    assert record["notes"] == ["byte 65 is no UTF-8: the file was read as Windows-1252"]
    packed = gzip.compress("\n".join([HEADER, *steps(2000), ""]).encode())
    (record,) = imported(tmp_path, packed[: len(packed) // 2])
    assert "the gzip file ends too early: its beginning was read" in record["imported"]["losses"]


@pytest.mark.parametrize("text", [table(*steps()), timm()], ids=["table", "text"])
def test_a_file_twice_counts_once(text: str, tmp_path: Path) -> None:
    (once,) = imported(tmp_path / "once", text)
    (twice,) = imported(tmp_path / "twice", text * 2)
    assert once["timing"] == twice["timing"]
    assert once["imported"].get("losses") is None
    assert twice["imported"]["losses"] == ["the file contains everything twice: its second half is left out"]


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    records = imported(tmp_path, table(*steps(), *steps(batch_size=128)), batch_size=32, model="resnet50")
    assert [record["spec"]["batch_size"] for record in records] == [64, 128], "the option cannot hold for both"
    assert [record["timing"]["images_per_s"] for record in records] == [
        pytest.approx(320, rel=1e-6),
        pytest.approx(640, rel=1e-6),
    ]


def test_one_bad_run_of_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    bad = [row.replace("200.0", "0") for row in steps(batch_size=128)]
    with pytest.raises(UsageError, match="line 22: iter_time_ms must be positive; got '0'"):
        imported(tmp_path, table(*steps(), *bad))
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("first", "second", "started"),
    [
        ("2025-11-14 22:34:00", "2025-11-14 22:34:00.500", None),
        ("2025-11-14 22:34:00,000", "2025-11-14 22:34:00,500", None),
        ("2025/11/14 22:34:00", "2025/11/14 22:34:00.5", None),
        ("2025-11-14T22:34:00Z", "2025-11-14T22:34:00.5Z", "2025-11-14T22:34:00+00:00"),
    ],
)
def test_time_stamps_without_a_zone(tmp_path: Path, first: str, second: str, started: str | None) -> None:
    text = f'step_s,timestamp\n0.5,"{first}"\n0.5,"{second}"\n'
    (record,) = imported(tmp_path, text, model="m", batch_size=4)
    assert record["timing"]["images_per_s"] == 8
    assert record["timing"]["started_at"] == started
    note = "time stamps without a time zone: durations are known, but not when the run started"
    assert record["notes"] == ([] if started else [note])


def test_zones_on_some_stamps_are_refused() -> None:
    text = "step_s,timestamp\n0.5,2025-11-14T22:34:00Z\n0.5,2025-11-14T22:34:01\n"
    assert refusal(text).startswith("error: 'log.csv': some time stamps say their time zone and others do not")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'log.csv' is empty"),
        ("\n \n", "'log.csv' is empty"),
        ("# A title\n\nWords.\n", "'log.csv' is not a known kind of log; it begins with '# A title'; readable are"),
        ("Epoch 1/3\n", "'log.csv' looks like a training log without the time of an iteration; readable are"),
    ],
)
def test_what_is_no_log_says_what_it_looks_like(text: str, message: str) -> None:
    assert refusal(text).startswith(f"error: {message}")


def test_a_row_that_says_too_little_is_left_out_of_a_table(tmp_path: Path) -> None:
    text = table("T4,vgg16,8,50", "L4,vgg16,,90", "A100,vgg16,16,300", header="gpu,model,batch,img_per_s")
    first, second = imported(tmp_path, text)
    assert [first["spec"]["batch_size"], second["spec"]["batch_size"]] == [8, 16]
    loss = "line 3 is left out: does not say the batch size"
    assert first["imported"]["losses"] == second["imported"]["losses"] == [loss]
    assert loss in first["notes"]
    three = imported(tmp_path / "again", text, batch_size=32)
    assert [record["spec"]["batch_size"] for record in three] == [8, 32, 16]


def test_a_table_of_which_no_row_says_enough_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, table("T4,50", "L4,90", header="gpu,img_per_s"))
    assert str(caught.value) == f"'{tmp_path}/log.csv': line 2 is left out: does not say the model or the batch size"

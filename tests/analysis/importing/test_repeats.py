"""Files that hold something twice: each row and launch counts once, and the bundle says so."""

from functools import partial
from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.tables import repeated_rows
from tests.analysis import in_process
from tests.analysis.readers.logs.trainer_logs import dllogger_json, pytorch_examples, timm
from tests.analysis.readers.ncu.foreign_profiles import NEW_TEXT, NSYS
from workload.contract.record import Record

HEADER = "iter_idx,iter_time_ms,loss"
imported = partial(in_process.imported, model="resnet50", batch_size=64, profile_steps=1)


def rows(first: int, last: int) -> list[str]:
    """Iterations of different times."""
    return [f"{number},{200 + (number * 37 % 101) / 10:.1f},{6 - number / 100:.2f}" for number in range(first, last)]


def losses(record: Record) -> list[str]:
    assert record.imported is not None
    return list(record.imported.losses or ())


def csv(*lines: str) -> str:
    return "\n".join([HEADER, *lines, ""])


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (csv(*rows(0, 40)), []),
        (csv(*rows(0, 40)) * 2, ["the file contains everything twice: its second half is left out"]),
        (csv(*rows(0, 40), *rows(0, 40)), ["40 rows twice in the file, from line 42 to 81: left out"]),
        (csv(*rows(0, 30), *rows(20, 40)), ["10 rows twice in the file, from line 32 to 41: left out"]),
    ],
    ids=["once", "the file twice", "its rows twice", "overlapping parts"],
)
def test_a_log_counts_each_row_once(text: str, loss: list[str], tmp_path: Path) -> None:
    record = imported(tmp_path, text)
    assert (record.timing.images, losses(record)) == (39 * 64, loss)
    assert set(loss) <= set(record.notes or ())


@pytest.mark.parametrize(
    "lines",
    [
        # Epochs whose times are rounded alike, and a series that does not move.
        [f"{step},{time},6.00" for _ in range(2) for step, time in enumerate([12, 13, 12, 12, 13] * 8)],
        [f"{step},12,6.00" for step in range(80)],
    ],
    ids=["epochs of few different times", "a constant"],
)
def test_rounded_times_that_are_alike_are_no_repetition(lines: list[str], tmp_path: Path) -> None:
    record = imported(tmp_path, csv(*lines))
    assert (record.timing.images, losses(record)) == (79 * 64, [])


@pytest.mark.parametrize("text", [pytorch_examples(), timm(), dllogger_json()], ids=["pytorch", "timm", "dllogger"])
def test_a_text_log_twice(text: str, tmp_path: Path) -> None:
    once = imported(tmp_path, text, "train.log")
    (other := tmp_path / "twice").mkdir()
    twice = imported(other, text * 2, "train.log")
    assert losses(once) == []
    assert losses(twice) == ["the file contains everything twice: its second half is left out"]
    assert (once.timing.images, once.timing.measured_s) == (twice.timing.images, twice.timing.measured_s)


def launches(first: int, last: int) -> str:
    """Launches as ncu prints them for people, each of another time."""
    start = NEW_TEXT.index("  void volta")
    one = NEW_TEXT[start : NEW_TEXT.index("  vectorized_elementwise")]
    return "".join(one.replace("10.00", f"{10 + number / 10:.2f}") for number in range(first, last))


@pytest.mark.parametrize(
    ("text", "number", "repeated"),
    [
        (NEW_TEXT, 2, 0),
        (NEW_TEXT * 2, 2, 2),
        (launches(0, 30), 30, 0),
        (launches(0, 20) + launches(8, 30), 30, 12),
        # The same kernel twice, as tiny ones are.
        (launches(0, 30) + launches(29, 30), 31, 0),
    ],
    ids=["once", "twice", "many", "overlapping", "one alike"],
)
def test_launches_of_a_text_count_once(text: str, number: int, repeated: int, tmp_path: Path) -> None:
    (tmp_path / "ncu.txt").write_text(text)
    found = ncu.read(tmp_path / "ncu.txt")
    assert len(found.kernels) == number
    loss = f"==WARNING== {repeated} kernels a second time in the file (same figures): each is counted once"
    assert found.losses == ((loss,) if repeated else ())


@pytest.mark.parametrize("text", [NSYS * 2, NSYS + NSYS.split("\n", 1)[1]], ids=["the file", "its rows"])
def test_kernels_of_nsys_count_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(text)
    found = ncu.read(tmp_path / "trace.csv")
    assert len(found.kernels) == 2
    assert any("in the file twice" in loss for loss in found.losses)


def test_only_rows_of_different_figures_prove_a_repetition() -> None:
    figures = [f"{number}.{number}25" for number in range(10, 20)]
    assert repeated_rows(figures * 2, figures * 2) == list(range(10, 20))
    assert repeated_rows([*figures, "between", *figures], [*figures, "", *figures]) == list(range(11, 21))
    assert repeated_rows(["7.25"] * 40, ["7.25"] * 40) == []
    assert repeated_rows(figures[:3] * 2, figures[:3] * 2) == []

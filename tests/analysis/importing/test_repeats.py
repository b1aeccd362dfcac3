"""Files that hold something twice: each row and launch counts once, and the bundle says so."""

from functools import partial
from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.tables import repeated_rows
from tests.analysis import in_process
from tests.analysis.readers.logs.trainer_logs import megatron, pytorch_examples, timm
from tests.analysis.readers.ncu.foreign_profiles import NSYS
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
        [f"{time},6.00" for time in [12, 13, 12, 12, 13] * 16],
        ["12,6.00"] * 80,
    ],
    ids=["epochs of few different times", "a constant"],
)
def test_rounded_times_that_are_alike_are_no_repetition(lines: list[str], tmp_path: Path) -> None:
    record = imported(tmp_path, "\n".join(["iter_time_ms,loss", "11,6.00", *lines, ""]))
    assert (record.timing.images, losses(record)) == (80 * 64, [])


@pytest.mark.parametrize("text", [pytorch_examples(), timm(), megatron()], ids=["pytorch", "timm", "megatron"])
def test_a_text_log_twice(text: str, tmp_path: Path) -> None:
    once = imported(tmp_path, text, "train.log")
    (other := tmp_path / "twice").mkdir()
    twice = imported(other, text * 2, "train.log")
    assert losses(once) == []
    assert losses(twice) == ["the file contains everything twice: its second half is left out"]
    assert (once.timing.images, once.timing.measured_s) == (twice.timing.images, twice.timing.measured_s)


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

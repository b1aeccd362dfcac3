"""Tables of others with another delimiter, another order of columns, or two columns of one name."""

import csv
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import analysis
from analysis.audit import audit
from analysis.importing import UserFacts, import_file
from analysis.loading.configurations import NotPoolableError, completed, group, require_poolable
from analysis.readers import ncu
from benchmarks.synthetic_bundles import make
from tests.analysis import in_process
from tests.analysis.readers.ncu.foreign_profiles import NSYS
from tests.analysis.readers.ncu.ncu_files import COUNTS, DETAILS, ROW, line, long, who, wide
from tests.analysis.readers.traces.kineto_traces import V100, document, product_step
from workload.contract import bundle
from workload.contract.errors import UsageError

WIDE = wide(COUNTS, [ROW, ROW])
CELLS = [(metric, unit, cell) for (metric, unit), cell in zip(COUNTS.items(), ROW, strict=True)]
LONG = long([(launch, *cells) for launch in (0, 1) for cells in CELLS])
PAGE = line(DETAILS) + "".join(line([*who(launch), "Section", *cells]) for launch in (0, 1) for cells in CELLS)


imported = partial(in_process.imported, model="mine", batch_size=4, profile_steps=1)


# Cells of a row in another order; `number` counts the rows.
ORDERS: dict[str, Callable[[list[str], int], list[str]]] = {
    "in order": lambda row, _: row,
    "reversed": lambda row, _: row[::-1],
    "ID in the middle": lambda row, _: [*row[4:6], *row[:4], *row[6:]],
    "behind pandas' index": lambda row, number: [str(number - 1) if number else "", *row],
}


def written(text: str, *, delimiter: str = ",", order: str = "in order", is_quoted: bool = True) -> str:
    """The same cells in another form."""
    out = io.StringIO()
    quoting = csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    for number, row in enumerate(csv.reader(io.StringIO(text))):
        writer.writerow(ORDERS[order](row, number))
    return out.getvalue()


@pytest.mark.parametrize("is_quoted", [True, False], ids=["quoted", "bare"])
@pytest.mark.parametrize(("delimiter", "order"), [*zip([",", ";", "\t", "|"], ORDERS, strict=True)])
@pytest.mark.parametrize("text", [WIDE, LONG], ids=["wide", "long"])
def test_every_delimiter_and_order(text: str, delimiter: str, order: str, is_quoted: bool, tmp_path: Path) -> None:
    form = written(text, delimiter=delimiter, order=order, is_quoted=is_quoted)
    profile = imported(tmp_path, form).profile
    assert (profile.kernels_profiled, profile.flop_per_step, profile.dram_bytes_per_step) == (2, 46, 128)


@pytest.mark.parametrize("text", [WIDE, LONG, PAGE], ids=["wide", "long", "details"])
def test_lines_that_end_in_a_carriage_return_alone(text: str, tmp_path: Path) -> None:
    assert imported(tmp_path, text.replace("\n", "\r")).profile.flop_per_step == 46


def test_a_details_page_with_semicolons(tmp_path: Path) -> None:
    assert imported(tmp_path, written(PAGE, delimiter=";")).profile.flop_per_step == 46


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("order", ["in order", "reversed"])
def test_a_trace_of_nsys_in_every_form(delimiter: str, order: str, tmp_path: Path) -> None:
    form = written(NSYS[NSYS.index("Start") :], delimiter=delimiter, order=order)
    assert imported(tmp_path, form).profile.kernel_time_s_per_step == pytest.approx(12.5e-6)
    assert ncu.read(tmp_path / "file.txt").kernels["grid"].tolist() == ["(64, 2, 1)", "(1, 1, 1)"]


def test_an_aggregated_table_is_still_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"Kernel Name","Invocations","Metric Name","Average"\n"k","3","x","1"\n')
    with pytest.raises(UsageError, match="aggregated table without single launches"):
        ncu.read(tmp_path / "a.csv")


# --- logs that name a device, and count images and seconds


LOG = "model,batch_size,step,images_processed,elapsed_sec,images_per_sec,device_name,torch_version\n" + "".join(
    f"resnet18,{{batch}},{step},{64 * (step + 1)},{0.5 * (step + 1):.2f},{{rate}},Tesla T4,2.3.1\n"
    for step in range(20)
)


@pytest.mark.parametrize(
    ("batch", "rate", "rule"),
    [
        (64, 128, None),
        (32, 128, "labels disagree"),
        (64, 300, "mean of rates"),
    ],
    ids=["agree", "another batch size", "another rate"],
)
def test_a_log_that_counts_images_and_seconds(batch: int, rate: int, rule: str | None, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG.format(batch=batch, rate=rate))
    (made,) = import_file(tmp_path / "log.csv", UserFacts(), output=tmp_path / "results")
    record = bundle.read_record(made)
    assert record.environment.device.name == "Tesla T4"
    assert record.environment.software is not None
    assert record.environment.software.torch == "2.3.1"
    assert (record.timing.images, record.timing.measured_s) == (19 * 64, pytest.approx(9.5))
    found = {finding.rule for finding in audit(analysis.load(tmp_path / "results"))}
    for one in ("labels disagree", "mean of rates"):
        assert (one in found) is (one == rule)


def test_a_log_of_images_and_seconds_alone(tmp_path: Path) -> None:
    text = "images_processed,elapsed_sec\n" + "".join(f"{64 * n},{0.5 * n}\n" for n in range(1, 9))
    record = imported(tmp_path, text, batch_size=None)
    assert (record.spec.batch_size, record.timing.images_per_s) == (64, pytest.approx(128))


# --- one name for different work


def traced(folder: Path, times: int, name: str) -> None:
    events = product_step(gpu_us=100 * times)
    events[1]["args"]["Input Dims"] = [[800 * times, 800], [800, 700]]
    (folder / name).write_text(document(events, deviceProperties=[V100], traceName=name))
    import_file(folder / name, UserFacts(model="other", batch_size=8), output=folder / "results")


def test_different_work_of_one_name_is_not_one_configuration(tmp_path: Path) -> None:
    for number, times in enumerate((1, 1, 2, 30)):
        traced(tmp_path, times, f"{number}.json")
    runs = analysis.load(tmp_path / "results").runs
    groups = group(completed(runs))
    assert sorted((len(one.runs), one.apart) for one in groups) == [
        (1, ("work 1.8 GFLOP a step",)),
        (1, ("work 27 GFLOP a step",)),
        (2, ("work 900 MFLOP a step",)),
    ]


def test_the_same_work_again_is_one_configuration(tmp_path: Path) -> None:
    for number in range(2):
        traced(tmp_path, 1, f"{number}.json")
    (found,) = group(completed(analysis.load(tmp_path / "results").runs))
    assert (len(found.runs), found["work"], found.apart) == (2, None, ())


def test_runs_of_different_work_cannot_be_pooled(tmp_path: Path) -> None:
    for number, flop in enumerate((1e9, 5e9)):
        make(tmp_path, number, imported={"file": f"{number}.json"}, complexity__train_flop_per_step=flop)
    runs = analysis.load(tmp_path).runs
    with pytest.raises(NotPoolableError, match="cannot pool: work is '1 GFLOP a step' in one run"):
        require_poolable(runs)

import base64
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from by_hand import for_every_figure, kernels, results, run
from hypothesis import given
from hypothesis import strategies as st
from report_bundles import HOSTILE, hostile, many, matrix

import analysis
from analysis import __main__ as door
from analysis.figures import registry
from analysis.figures.figure import Figure
from analysis.report import html, markdown, reproduce, words
from analysis.report.compose import compose
from analysis.report.content import Bullets, Commands, Paragraph, Picture, Report, Section, Table, figures_of
from analysis.report.evidence import ReportEvidence, gather
from analysis.report.sections import answer, complexity, context, design, discussion, variability
from benchmarks.synthetic_bundles import make
from launcher.backends.gcp import gpus as gcp_gpus
from tests.docs import grammar
from workload.contract import peaks
from workload.contract import record as contract
from workload.contract.errors import ExitCode
from workload.contract.record import GivenByUser, Record
from workload.contract.spec import Device, Precision, Profile, RunSpec, arguments
from workload.contract.tables import Column, Role
from workload.contract.text import printable

INTERVAL = re.compile(r"interval|\d to \d|no interval")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> ReportEvidence:
    return gather(analysis.load(matrix(tmp_path_factory.mktemp("report") / "results")))


@pytest.fixture(scope="module")
def report(evidence: ReportEvidence) -> Report:
    return compose(evidence)


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compose(gather(analysis.load(hostile(tmp_path_factory.mktemp("hostile") / "results"))))


def repeats(name: str, images_per_s: tuple[float, ...], **facts: Any) -> list[dict[str, Any]]:
    batch = facts.get("batch_size", 32)
    found = {"path": "/nowhere", **facts}
    return [run(f"{name}{number}", steps=[batch / rate] * 20, **found) for number, rate in enumerate(images_per_s)]


def of(*runs: Mapping[str, Any]) -> ReportEvidence:
    return gather(results(*runs))


def texts(section: Section) -> list[str]:
    """Everything that a reader of the section meets, one entry per sentence or cell."""
    found: list[str] = [section.title]
    for block in section.blocks:
        match block:
            case Paragraph():
                found.append(block.text)
            case Bullets():
                found += block.sentences
            case Table():
                found += [block.caption, *(cell for row in block.rows for cell in row)]
            case Picture():
                found += [block.figure.title, block.figure.caption, block.figure.text]
            case Commands():
                found += block.lines
    return [*found, *(text for part in section.parts for text in texts(part))]


# --- words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7.92e10, "FLOP/s", "79.2 GFLOP/s"),
        (999.0, "B", "999 B"),
        (1e3, "B", "1.00 kB"),
        (0.5, "FLOP", "0.500 FLOP"),
        (None, "B", words.ABSENT),
        (math.nan, "B", words.ABSENT),
    ],
)
def test_amounts_have_decimal_prefixes(value: float | None, unit: str, text: str) -> None:
    assert words.si(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "12.3 ms"), (2.5, "2.50 s"), (3e-6, "3.00 µs"), (None, words.ABSENT)]
)
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(("ratio", "text"), [(1.05, "+5.0 %"), (0.5, "-50 %"), (1.0, "+0.0 %"), (2.2, "+120 %")])
def test_changes_have_a_sign(ratio: float, text: str) -> None:
    assert words.change(ratio) == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"images_per_s": 123.4, "images_per_s_low": 120.0, "images_per_s_high": 126.0, "runs": 3},
            "123.4 images/s (95 % interval 120.0 to 126.0, 3 runs)",
        ),
        (
            {"images_per_s": 123.4, "images_per_s_low": None, "runs": 1, "interval": "one run: no interval"},
            "123.4 images/s (one run: no interval)",
        ),
        ({"images_per_s": 123.4, "runs": 1}, "123.4 images/s (no interval)"),
    ],
)
def test_a_rate_comes_with_its_interval(row: dict[str, Any], text: str) -> None:
    assert words.rate_with_interval(row) == text


def test_columns_without_content_are_left_out_and_long_tables_folded() -> None:
    columns = [Column(name="a", heading="A", role=Role.FACT), Column(name="b", heading="B")]
    table = words.table("c", columns, [{"a": "x", "b": None}] * 25)
    assert [heading.text for heading in table.headings] == ["A"]
    assert table.folded
    assert not words.table("c", columns, [{"a": "x"}] * 24).folded


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        (Column(name="x", heading="batch", digits=0), 16.0, "16"),
        (Column(name="x", heading="ratio", digits=3), 1.0, "1.00"),
        (Column(name="x", heading="share", unit="%", digits=2), 0.123, "12 %"),
        (Column(name="x", heading="step", unit="s", prefixed=True), 0.0123, "12.3 ms"),
        (Column(name="x", heading="rate", unit="FLOP/s", prefixed=True, digits=3), 7.92e10, "79.2 GFLOP/s"),
        (Column(name="x", heading="parameters", prefixed=True, digits=3), 11_689_512, "11.7 M"),
        (Column(name="x", heading="interval"), "1 to 2", "1 to 2"),
        (Column(name="x", heading="fault", role=Role.FACT), True, "yes"),
        (Column(name="x", heading="ratio"), None, words.ABSENT),
    ],
)
def test_a_cell_has_the_unit_and_the_digits_of_its_column(column: Column, value: Any, shown: str) -> None:
    assert words.cell(column, value) == shown


# --- the answer


def test_the_answer_names_the_fastest_and_how_far_it_is_ahead(evidence: ReportEvidence) -> None:
    first, second = answer.sentences(answer.ranking(evidence), evidence)
    assert first.startswith("mobilenet_v2 trains fastest on gcp-l4-us-central1-a (NVIDIA L4): 2020 images/s (95 % inte")
    assert (
        " 3 runs) at batch 64, fp32, ahead of gcp-t4-us-central1-a (Tesla T4) (2.00 x, jointly 95 % interval 1.9"
        in first
    )
    assert second.startswith("resnet18 trains fastest on gcp-l4-us-central1-a (NVIDIA L4): 404.0 images/s (95 % ")


def test_overlapping_environments_are_not_ranked() -> None:
    near = of(
        *repeats("a", (100.0, 110.0, 90.0)), *repeats("b", (99.0, 112.0, 91.0), place="t4", device_name="Tesla T4")
    )
    (sentence,) = answer.sentences(answer.ranking(near), near)
    assert "not distinguishable from t4 (Tesla T4) (0.994 x, jointly 95 % interval 0." in sentence
    alone = of(*repeats("a", (100.0,)), *repeats("b", (50.0,), place="t4", device_name="Tesla T4"))
    (sentence,) = answer.sentences(answer.ranking(alone), alone)
    assert "100.0 images/s (one run: no interval) at batch 32, fp32; t4 (Tesla T4) comes next, how far " in sentence


def test_cheapest_where_prices_exist(evidence: ReportEvidence) -> None:
    (table,) = [
        each for each in answer.section(evidence).blocks if isinstance(each, Table) and "Cheapest" in each.caption
    ]
    # 0.7 USD/h at 404 images/s against 0.5 at 202.
    assert table.rows[1][:6] == ["resnet18", "gcp-l4-us-central1-a", "NVIDIA L4", "64", "fp32", "0.481"]
    none = of(*repeats("a", (100.0, 101.0)))
    assert "No measured run has a price per hour, so nothing is said about cost." in texts(answer.section(none))


def test_nothing_measured_is_said() -> None:
    nothing = compose(of(run("a", status="failed", steps=[], path="/nowhere")))
    assert texts(nothing.sections[0])[1] == "No run has a throughput (1 failed), so nothing is said about speed."


# --- the discussion


def test_larger_batches_that_stop_pay_and_leave_open() -> None:
    found = of(
        *repeats("a", (100.0, 100.2, 99.8)),
        *repeats("b", (101.0, 101.2, 100.8), batch_size=64),
        *repeats("c", (10.0, 10.02, 9.98), model="vgg11"),
        *repeats("d", (20.0, 20.02, 19.98), model="vgg11", batch_size=64),
        *repeats("e", (50.0,), model="alexnet"),
        *repeats("f", (90.0,), model="alexnet", batch_size=64),
    )
    sentences, table = discussion.batch_sentences(found)
    assert sentences[0] == (
        "Of 3 series of batch sizes in 1 a larger batch certainly gains less than the limit, "
        "in 1 every larger batch certainly gains the limit or more, in 1 the intervals leave it open "
        "(limit: +5.0 % per step)."
    )
    assert sentences[1].startswith(
        "resnet18 · fp32 on local-cuda: batch 64 after 32 gains little (+1.0 %, 95 % interval +0."
    )
    assert sentences[1].endswith("so larger batches stop paying at 32.")
    assert sentences[2].startswith(
        "vgg11 · fp32 on local-cuda: every batch up to 64 pays, the last step from 32 (+100 %, 95"
    )
    assert sentences[3].startswith("alexnet · fp32 on local-cuda: cannot be said: ")
    assert table is not None
    assert len(table.rows) == 3


def in_blocks(name: str, images_per_s: float, wobble: float = 0.0, **facts: Any) -> list[dict[str, Any]]:
    """A run in each of 3 blocks, on hosts that differ by 30 %."""
    rates = [images_per_s * host * (1 + wobble * number) for number, host in enumerate((1.0, 1.2, 0.9))]
    block = {"job_name": "sweep", "position": 0.0, **facts}
    return [
        each | block | {"block": float(number), "hostname": f"vm-{number}", "images_per_s": rate}
        for number, (rate, each) in enumerate(zip(rates, repeats(name, tuple(rates), **facts), strict=True))
    ]


PAIRED = re.compile(r"; paired within 3 blocks: the interval is [\d.]+ x narrower than unpaired")


def test_runs_of_one_block_are_compared_with_each_other_as_compare_does() -> None:
    """Unpaired, hosts that differ by 30 % hide what is certain within each block."""
    found = of(
        *in_blocks("a", 100.0, usd_per_h=0.5),
        *in_blocks("b", 130.0, 0.001, batch_size=64, usd_per_h=0.5),
        *in_blocks("c", 103.0, 0.002, place="t4", device_name="Tesla T4", usd_per_h=0.7),
    )
    (fastest,) = answer.sentences(answer.ranking(found), found)
    assert ", ahead of t4 (Tesla T4) (" in fastest
    assert PAIRED.search(fastest)
    sentences, table = discussion.batch_sentences(found)
    assert "every batch up to 64 pays" in sentences[1]
    assert PAIRED.search(sentences[1])
    assert table is not None
    assert table.rows[0][-1].startswith("paired within 3 blocks: the interval is ")
    (dearest,) = discussion.hardware_sentences(found)
    assert PAIRED.search(dearest)
    # Without blocks, nothing is certain and nothing is said of pairing.
    unpaired = of(
        *(each | {"job_name": None, "block": None} for each in in_blocks("a", 100.0)),
        *(each | {"job_name": None, "block": None} for each in in_blocks("c", 103.0, place="t4")),
    )
    (sentence,) = answer.sentences(answer.ranking(unpaired), unpaired)
    assert "not distinguishable from" in sentence
    assert "paired" not in sentence


def test_batches_that_differ_in_more_than_their_size_are_not_called_one_size() -> None:
    two = of(run("a", batch_size=8, path="/a"), run("b", batch_size=16, precision="amp", path="/b"))
    assert discussion.batch_sentences(two) == (
        ["In no environment do runs of one model differ in batch size alone: this cannot be answered."],
        None,
    )


def test_a_batch_that_does_not_fit_is_an_answer() -> None:
    found = of(
        *repeats("a", (100.0, 101.0)), run("b", batch_size=64, status="out_of_memory", steps=[], path="/nowhere")
    )
    sentences, table = discussion.batch_sentences(found)
    assert sentences == [
        "resnet18, fp32 on local-cuda: batch 64 does not fit into memory.",
        "In no environment do runs of one model differ in batch size alone: this cannot be answered.",
    ]
    assert table is None


def test_expensive_hardware_in_time_and_money(evidence: ReportEvidence) -> None:
    sentences = list(discussion.hardware_sentences(evidence))
    assert sentences[0].startswith(
        "mobilenet_v2: gcp-l4-us-central1-a costs 1.40 x as much per hour as gcp-t4-us-central1-a; "
    )
    assert "2.00 x the images/s (95 % interval 1.9" in sentences[0]
    # 1.4 x the price for twice the images: 0.7 x the cost.
    assert re.search(
        r"per million images it is cheaper: 0\.6\d+ to 0\.7\d+ x the cost\. Expensive hardware wins twice\.$",
        sentences[0],
    )


def test_without_prices_hardware_is_compared_by_speed_alone() -> None:
    found = of(
        *repeats("a", (100.0, 101.0, 102.0)), *repeats("b", (40.0, 41.0, 42.0), place="t4", device_name="Tesla T4")
    )
    first, second, *_ = discussion.hardware_sentences(found)
    assert first.startswith("Fewer than two environments have a measured run with a price")
    assert second.startswith("resnet18, batch 32, fp32: local-cuda (NVIDIA L4) is 2.46 x as fast as t4 (Tesla T4)")
    alone = list(discussion.hardware_sentences(of(*repeats("a", (100.0, 101.0)))))
    assert alone[1].startswith("One environment was measured")


def test_memory_bounds_with_the_interval_of_the_intensity(evidence: ReportEvidence) -> None:
    (light, heavy) = discussion.memory_sentences(evidence)
    # 2e9 and 1e10 FLOP by 1e8 to 4e8 bytes.
    assert light.startswith("mobilenet_v2 is limited by memory in 6 of 6 configurations at 5.00 to 20.0 FLOP/byte: ")
    assert "at 25.0 to 100 FLOP/byte" in heavy
    assert "(ridge 27.7)" in heavy
    nothing = of(*repeats("a", (100.0, 101.0)))
    assert list(discussion.memory_sentences(nothing)) == [
        "No configuration has a bound: ceilings, FLOP or bytes are missing, or contradict each other."
    ]


def test_zones_are_compared_where_one_device_ran_in_two() -> None:
    found = of(
        *repeats("a", (100.0, 101.0, 102.0), zone="us-central1-a"),
        *repeats("b", (80.0, 81.0, 82.0), zone="us-central1-b"),
    )
    said = [each for each in discussion.zone_sentences(found) if "by zone" in each]
    assert len(said) == 1
    assert "is 1.25 x as fast as us-central1-b (95 %: " in said[0]
    same = of(*repeats("a", (100.0, 101.0, 102.0), zone="us-central1-a"))
    assert list(discussion.zone_sentences(same))[-1].startswith("No device was measured in two zones")


def test_no_claim_without_an_interval(evidence: ReportEvidence) -> None:
    unknown = (
        "cannot be",
        "does not fit",
        "nothing is said",
        "No ",
        "more are in the tables",
        "without a certain",
        "Of ",
    )
    for part in discussion.section(evidence).parts:
        for block in part.blocks:
            for sentence in block.sentences if isinstance(block, Bullets) else ():
                assert INTERVAL.search(sentence) or any(word in sentence for word in unknown), sentence


# --- other sections


def test_sections_come_in_the_order_of_a_lab_report(report: Report) -> None:
    assert [section.title for section in report.sections] == [
        "The answer",
        "Experiment design",
        "Model complexity",
        "Measurements",
        "Variability",
        "Roofline",
        "Discussion",
        "Environments",
        "Audit",
        "Limits",
        "Reproduce",
        "Words",
    ]
    assert report.facts == ["36 runs", "12 configurations", "2 environments", "2 models", "2026-11-01"]
    every = [text for section in report.sections for text in texts(section)]
    assert all(isinstance(text, str) for text in every)
    assert not [text for text in every if "nan" in text.split() or "None" in text.split()]


def test_the_run_matrix_counts_what_ran(evidence: ReportEvidence) -> None:
    (table,) = [each for each in design.section(evidence).blocks if isinstance(each, Table)]
    assert table.rows[0] == [
        "gcp-l4-us-central1-a", "NVIDIA L4", "gcp, docker", "mobilenet_v2, resnet18", "synthetic 224 px", "fp32",
        "16, 32, 64", "100", "3", "18", "18",
    ]  # fmt: skip


def test_runs_that_broke_off_are_listed() -> None:
    found = design.section(
        of(*repeats("a", (1.0,)), run("b", status="failed", error="boom", steps=[], path="/nowhere"))
    )
    table = found.blocks[-1]
    assert isinstance(table, Table)
    assert table.rows == [["b", "local-cuda", "resnet18", "32", "failed", "boom"]]


def test_complexity_per_image_step_and_layer(evidence: ReportEvidence) -> None:
    section = complexity.section(evidence)
    tables = [each for each in section.blocks if isinstance(each, Table)]
    assert [table.caption.split(":")[0] for table in tables] == [
        "Work per image", "Work per step", "Training FLOP by operation", "Growth by layer type",
    ]  # fmt: skip
    (row,) = [row for row in tables[0].rows if row[0] == "resnet18"]
    assert row[1:5] == ["11.7 M", "1.81 GMAC", "3.63 GFLOP", "10.0 GFLOP"]
    (step,) = [row for row in tables[1].rows if row[:3] == ["resnet18", "fp32", "64"]]
    assert step[3:7] == ["640 GFLOP", "6.40 GB", "25.6 GB", "25.0 to 100"]
    assert any("O(N·K·C·H·W·R·S / G)" in cell for row in tables[-1].rows for cell in row)
    (sentence,) = [each.text for each in section.blocks if isinstance(each, Paragraph)]
    assert (
        "mobilenet_v2 at batch 16, fp32, does the least work per byte: 5.00 FLOP; "
        "resnet18 at batch 16, fp32, the most: 25.0" in sentence
    )


def test_what_is_missing_is_told_with_its_reason(evidence: ReportEvidence) -> None:
    found = texts(context.limits(evidence))
    assert "kernel_breakdown: no run was profiled with --profile ncu" in found


def test_notes_that_differ_in_figures_are_one_line() -> None:
    found = of(
        *repeats("a", (1.0, 2.0), notes=["the run got 0.7 of 1 CPUs"]),
        *repeats("b", (1.0,), notes=["the run got 0.5 of 2 CPUs"]),
    )
    assert "the run got 0.7 of 1 CPUs (3 runs, with other figures)" in texts(context.limits(found))


def test_causes_are_summed_up_by_environment(evidence: ReportEvidence) -> None:
    tables = [each for each in variability.section(evidence).blocks if isinstance(each, Table)]
    assert tables[-1].caption == "Causes found, and how much they explain"
    assert ["gcp-t4-us-central1-a", "power cap", "18"] in [list(row[:3]) for row in tables[-1].rows]


# --- the top of the page


def kinds(section: Section) -> list[str]:
    return [type(block).__name__ for block in section.blocks]


def test_the_roofline_stands_right_below_the_answer_and_once(report: Report) -> None:
    top = next(section for section in report.sections if section.name == "answer")
    picture = next(block for block in top.blocks if isinstance(block, Picture))
    assert picture.figure.name == "roofline_combined"
    assert not any(isinstance(block, Table) for block in top.blocks[: top.blocks.index(picture)])
    names = [figure.name for figure in report.figures()]
    assert names.count("roofline_combined") == 1
    alone = compose(of(*repeats("a", (100.0, 102.0), bytes_lower_per_step=4e9, bytes_upper_per_step=16e9)))
    assert alone.figures()[0].name == "roofline_local-cuda"


def test_an_error_of_the_audit_stands_before_the_headline_and_in_it() -> None:
    # A step cannot attain more than the ceiling of its machine.
    facts = {"ceiling_flop_per_s": 1e11, "ceiling_bytes_per_s": 1e11}
    found = of(*repeats("a", (100.0, 102.0, 101.0), **facts), *repeats("b", (10.0, 10.1), model="vgg11"))
    errors = [finding for finding in found.findings if finding.severity == "error"]
    assert errors
    section = answer.section(found)
    assert kinds(section)[:3] == ["Paragraph", "Bullets", "Bullets"]
    said, listed, sentences = section.blocks[:3]
    assert isinstance(said, Paragraph)
    assert said.strong
    assert said.text.startswith(f"The audit found {words.counted(len(errors), 'error')}: ")
    assert isinstance(listed, Bullets)
    assert isinstance(sentences, Bullets)
    assert listed.sentences[0].startswith(f"{errors[0].rule}: {errors[0].figure} (a0")
    (resnet,) = [text for text in sentences.sentences if text.startswith("resnet18 ")]
    assert f"The audit found an error in its runs: {errors[0].rule}" in resnet


def test_without_errors_the_answer_comes_first() -> None:
    clean = of(*repeats("a", (100.0, 102.0)))
    assert not [finding for finding in clean.findings if finding.severity == "error"]
    assert kinds(answer.section(clean))[0] == "Bullets"


SINGLE = "One run has no interval"


@pytest.mark.parametrize(
    ("runs", "claim", "method"),
    [
        (
            [*repeats("a", (100.0, 101.0)), *repeats("b", (50.0, 50.5), batch_size=64)],
            "resnet18 had its highest throughput on local-cuda (NVIDIA L4): 100.5 images/s (95 % interval",
            "Every configuration was measured at least twice",
        ),
        (
            [*repeats("a", (100.0,)), *repeats("b", (50.0, 50.5), batch_size=64)],
            "resnet18 had its highest throughput, in one run, on local-cuda (NVIDIA L4): 100.0 images/s (one run: no",
            "1 of 2 configurations has one measured run. One run has no interval: its figures are what was seen once",
        ),
        (
            repeats("a", (100.0,)),
            "resnet18 on local-cuda (NVIDIA L4): 100.0 images/s (one run: no interval) at batch 32, fp32; nothing",
            "1 of 1 configuration has one measured run. One run has no interval",
        ),
    ],
    ids=["all repeated", "the fastest once", "one run"],
)
def test_a_claim_and_the_note_about_single_runs_agree(runs: Any, claim: str, method: str) -> None:
    found = compose(of(*runs))
    said = [text for section in found.sections for text in texts(section)]
    assert sum(text.startswith(claim) for text in said) == 1, said[:12]
    assert sum(text.startswith(method) for text in said) == 1
    assert not any("no claim rests" in text for text in said)


FALSE_WITHOUT_TIMES = ("nothing to rank", "0 configurations", "0 measured runs", "(no rows)", "One environment was")


def test_a_page_of_profiles_alone_says_what_profiles_show() -> None:
    profile = kernels("sgemm", "bn_fw").assign(
        family=["GEMM", "batch norm"],
        duration_s=[3e-3, 1e-3],
        flop=[4e9, 1e8],
        dram_bytes=[1e8, 1e8],
        flop_is_lower_bound=False,
        **dict.fromkeys(("l2_bytes", "l1_bytes", "sm_percent", "memory_percent", "dram_percent"), math.nan),
    )
    untimed = {"images_per_s": None, "step_median_s": None, "imported": True, "train_flop_per_image": None}
    found = of(run("a", steps=[], path="/nowhere", kernels=profile, **untimed))
    page = compose(found)
    assert page.facts[:2] == ["1 run", "1 configuration"]
    said = [text for section in page.sections for text in texts(section)]
    assert (
        "resnet18, batch 32, fp32 on local-cuda, profiled: most time of its kernels goes to GEMM 75 %, batch norm 25 %."
        in said
    )
    assert not [text for text in said if any(phrase in text for phrase in FALSE_WITHOUT_TIMES)]
    assert not [text for text in said if text.startswith("Warm-up steps are recorded")]
    assert page.figures()[0].name == "kernel_roofline_resnet18"
    tables = [block for section in page.sections for block in [*section.blocks] if isinstance(block, Table)]
    assert all(table.rows for table in tables)


def test_a_page_of_imports_says_whose_method_it_was() -> None:
    page = compose(of(*repeats("a", (100.0, 101.0), imported=True)))
    said = [text for section in page.sections for text in texts(section)]
    assert f"2 of 2 runs came from other people's files: {design.FOREIGN}" in said
    assert not [text for text in said if text.startswith("Warm-up steps are recorded")]
    assert "No cause of variation was found in the steps, and no run has telemetry to look for more in." in said


def test_every_figure_has_its_place(report: Report, evidence: ReportEvidence) -> None:
    drawn = [each.name for each in evidence.drawn if isinstance(each, Figure)]
    assert sorted(figure.name for figure in report.figures()) == sorted(drawn)
    # Each by its section; the last resort below is for one that nobody placed yet.
    assert "more" not in [section.name for section in report.sections]


def test_each_figure_of_the_registry_is_placed_in_a_section() -> None:
    """A new one without a section would only stand in the last resort; one that is never drawn here is not tested."""
    found = of(*for_every_figure())
    drawn_by = {
        name: [one.name for one in registry.built(build, found.material) if isinstance(one, Figure)]
        for name, build in registry.REGISTRY.items()
    }
    assert {name for name, names in drawn_by.items() if not names} == set()
    page = compose(found)
    placed = {figure.name for section in page.sections for figure in figures_of(section)}
    assert {name for names in drawn_by.values() for name in names} == placed
    assert "more" not in [section.name for section in page.sections]


@pytest.mark.timeout(600)
@pytest.mark.skipif("FULL_PAGES" not in os.environ, reason="draws 23 figures of 292 runs: FULL_PAGES=1 runs it")
def test_a_report_of_66_environments_draws_devices_and_says_so(tmp_path: Path) -> None:
    page = compose(gather(analysis.load(many(tmp_path / "results"))))
    assert page.facts[:3] == ["292 runs", "124 configurations", "66 environments"]
    figures = page.figures()
    assert 10 < len(figures) < 30
    assert [one.name for one in figures if not one.caption.startswith("66 environments: each device is one of")] == []


def test_a_figure_that_no_section_names_is_shown_all_the_same(evidence: ReportEvidence) -> None:
    chart = next(each for each in evidence.drawn if isinstance(each, Figure)).chart
    new = Figure(name="brand_new", title="New", caption="New.", text="1", chart=chart)
    page = compose(replace(evidence, drawn=[*evidence.drawn, new]))
    assert page.sections[-1].name == "more"
    assert [figure.name for figure in page.figures()].count("brand_new") == 1


# --- how to reproduce


LOCAL = {"backend": "local", "runtime": "process"}


def read(document: dict[str, Any]) -> Record:
    """A run.json of these sections and what every run has."""
    spec = {"model": "resnet18", "batch_size": 4} | document.get("spec", {})
    return contract.read({"run_id": "a", "status": "completed", **document, "spec": spec}).record


@pytest.mark.parametrize(
    ("environment", "spec", "line"),
    [
        (
            LOCAL,
            RunSpec(device=Device.CPU, batch_size=4, repeats=3),
            "launch local --runtime process --cpu --batch-size 4",
        ),
        ({"backend": "local"}, RunSpec(model="vgg11"), "launch local --model vgg11 --batch-size 4"),
        (
            {"backend": "local", "runtime": "docker"},
            RunSpec(device=Device.CUDA, precision=Precision.AMP, profile=Profile.NCU, ceilings=False),
            "launch local --runtime docker --cuda --batch-size 4 --precision amp --profile ncu --no-ceilings",
        ),
        (
            LOCAL,
            RunSpec(device=Device.CPU, dataset="/my photos; rm -rf ~"),
            "launch local --runtime process --cpu --batch-size 4 --dataset '/my photos; rm -rf ~'",
        ),
        (
            {
                "backend": "gcp",
                "device": {"name": "Tesla V100-SXM2-16GB"},
                "cloud": {"zone": "europe-west4-a", "machine_type": "n1-standard-8", "spot": True},
            },
            RunSpec(device=Device.CUDA, batch_size=64),
            "launch gcp --gpu v100 --zone europe-west4-a --machine-type n1-standard-8 --spot --batch-size 64",
        ),
        (
            {
                "backend": "gcp",
                "place": "gcp-a100-80gb-us-central1-a",
                "device": {"name": "NVIDIA A100-SXM4-80GB"},
                "cloud": {"zone": "us-central1-a", "machine_type": "a2-ultragpu-1g"},
            },
            RunSpec(),
            "launch gcp --gpu a100-80gb --zone us-central1-a --machine-type a2-ultragpu-1g --batch-size 4",
        ),
        (
            {"backend": "gcp", "device": {"name": 4}, "cloud": "no"},
            RunSpec(),
            "# it ran on Compute Engine, on a GPU whose name is not in its bundle",
        ),
        (
            {"backend": "slurm"},
            RunSpec(device=Device.CUDA, seed=1),
            "python -m workload train --device cuda --batch-size 4 --seed 1",
        ),
        ([], RunSpec(), "launch local --batch-size 4"),
    ],
)
def test_commands_repeat_the_run(environment: Any, spec: RunSpec, line: str) -> None:
    filled = replace(spec, batch_size=spec.batch_size or 4)
    record = {"environment": environment, "spec": json.loads(json.dumps(filled.to_json()))}
    assert reproduce.command(read(record)) == line
    if not line.startswith("#"):
        grammar.check(line)


def test_a_run_on_compute_engine_is_repeated_on_the_same_gpu_with_a_machine_that_has_it() -> None:
    """An A100 of 80 GB was to be repeated as `--gpu a100 --machine-type a2-ultragpu-1g`, which the launcher refuses."""
    offers = gcp_gpus.load()
    assert set(reproduce.ON_COMPUTE_ENGINE.items()) == {(offer.device, name) for name, offer in offers.items()}
    for name, offer in offers.items():
        device = peaks.named(offer.device)
        memory = float(offer.memory_gb) * 1e9
        cloud = {"zone": "us-central1-a", "machine_type": offer.default_machine_type, "spot": True}
        where = {"backend": "gcp", "device": {"name": device.names[0], "memory_total_bytes": memory}, "cloud": cloud}
        line = reproduce.command(read({"environment": where, "spec": {"batch_size": 4}}))
        assert line.startswith(f"launch gcp --gpu {name} --zone us-central1-a --machine-type "), (name, line)
        grammar.check(line)
        assert offer.default_machine_type in offer.machine_types
    ambiguous = {"backend": "gcp", "device": {"name": "A100"}}
    assert reproduce.command(read({"environment": ambiguous})).startswith("# it ran on Compute Engine, on a GPU whose")


def test_what_was_said_of_an_import_is_said_again() -> None:
    """Each option of `analyze import` that says what the file does not is kept in its bundles, and so is printed."""
    options = {name for parameter in grammar.DOORS["analyze"].commands["import"].params for name in parameter.opts}
    kept = {f"--{field.name.replace('_', '-')}" for field in fields(GivenByUser)}
    assert {name for name in options if name.startswith("--")} - {"--output", "--help", "--wide"} == kept
    given = {"model": "resnet50", "batch_size": 64, "precision": "amp", "gpu": "Tesla T4", "profile_steps": 2}
    line = reproduce.command(read({"imported": {"file": "a.csv", "given": given}}))
    grammar.check(line)
    assert [word for word in given if f"--{word.replace('_', '-')} " not in line] == []


def test_a_command_gives_the_same_spec_back(evidence: ReportEvidence) -> None:
    record = evidence.record(evidence.material.every["run_id"].iloc[0])
    line = reproduce.command(record)
    assert line.startswith(
        "launch gcp --gpu t4 --zone us-central1-a --machine-type n1-standard-4 --spot --batch-size 16 "
    )
    assert record is not None
    for word in arguments(replace(record.spec.run_spec(), device=Device.AUTO, repeats=1)):
        assert word in line.split()


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"imported": {"file": "my log.csv"}}, "analyze import 'my log.csv'"),
        (
            {
                "imported": {
                    "file": "ncu.csv",
                    "given": {"model": "resnet 50", "batch_size": 64, "gpu": "Tesla T4", "profile_steps": 4, "rm": 1},
                }
            },
            "analyze import ncu.csv --model 'resnet 50' --batch-size 64 --gpu 'Tesla T4' --profile-steps 4",
        ),
        ({"imported": {}}, "analyze import FILE"),
        ({"spec": {"precision": "fp7"}}, "# its spec cannot be read"),
        ({"spec": {"workers": 1.5}}, "# its spec cannot be read"),
    ],
)
def test_what_no_command_started_says_so(record: dict[str, Any], line: str) -> None:
    assert reproduce.command(read(record)) == line
    if not line.startswith("#"):
        grammar.check(line)


def test_repeats_share_a_line(evidence: ReportEvidence) -> None:
    lines = reproduce.commands(evidence)
    assert len(lines) == 2 * 12
    assert lines[0].startswith("# gcp-t4-us-central1-a: 20261101T000100Z-")
    assert lines[1].endswith(" --repeats 3")


def test_a_newline_in_a_spec_starts_no_second_command() -> None:
    record = read({"environment": LOCAL, "spec": {"model": "resnet18\nrm -rf ~"}})
    assert reproduce.command(record) == "launch local --runtime process --model 'resnet18\\nrm -rf ~' --batch-size 4"


# --- HTML


class Page(HTMLParser):
    """Elements, attributes and texts as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, list[str]] = {}
        self.open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        self.contents.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = "" if tag == self.open else self.open

    def handle_data(self, data: str) -> None:
        if self.open:
            self.contents[self.open][-1] += data

    def attributes(self, name: str) -> list[str | None]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(html.render(report))


def test_the_page_asks_nobody_for_anything(page: Page) -> None:
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"iframe", "img", "object", "embed", "form", "base"}
    assert page.attributes("src") == []
    assert [href for href in page.attributes("href") if not (href or "").startswith("#")] == ["data:,"]
    assert "@import" not in page.contents["style"][0]
    assert "url(" not in page.contents["style"][0]


def test_the_policy_runs_two_scripts_and_one_style(page: Page) -> None:
    (policy,) = page.attributes("content")[:1]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    types = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert types == ["application/json", "application/json", None, None]
    inline = [*page.contents["script"][2:], *page.contents["style"]]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
    assert [f"'sha256-{each}'" in policy for each in hashes] == [True, True, True]


def test_headings_and_pictures_can_be_read_aloud(page: Page, report: Report) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    charts = [attributes for _, attributes in page.elements if "data-figure" in attributes]
    assert [chart["data-figure"] for chart in charts] == [figure.name for figure in report.figures()]
    assert all(chart["aria-label"] for chart in charts)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    html_tag = page.elements[0]
    assert html_tag == ("html", {"lang": "en"})


def test_every_figure_is_in_the_page_once(page: Page, report: Report) -> None:
    specs = json.loads(page.contents["script"][1])
    names = [figure.name for figure in report.figures()]
    assert sorted(specs) == sorted(names)
    assert len(set(names)) == len(names)


def test_the_page_is_the_same_for_the_same_runs(evidence: ReportEvidence, report: Report) -> None:
    assert html.render(compose(evidence)) == html.render(report)


def test_hostile_texts_stay_texts(hostile_report: Report) -> None:
    text = html.render(hostile_report)
    found = Page(text)
    assert not {tag for tag, _ in found.elements} & {"img", "a:script", "iframe"}
    assert sum(tag == "script" for tag, _ in found.elements) == 4
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert printable(HOSTILE) in "".join(found.contents["td"])
    assert "49" not in [cell.strip() for cell in found.contents["td"]], "a template was evaluated"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    for name in json.loads(found.contents["script"][1]):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


@pytest.mark.parametrize(
    "changes",
    [
        {"complexity__bytes_per_step_lower": 1e-300, "complexity__bytes_per_step_upper": 1e-300},
        {"complexity__train_flop_per_step": 1e300, "complexity__train_flop_per_image": 1e300},
        {"timing__measured_s": 1.2, "timing__step_s": {"median": 1e-12, "p5": 1e-12, "p95": 1e12}},
        {"ceilings__flop_per_s": {"fp32": {"median": None}}, "cost": {"usd_per_h": 0.0}},
        {"timing": {}, "complexity": {}, "bound": None, "environment": {}, "spec": {"model": "m", "batch_size": 1}},
    ],
    ids=["no bytes", "all FLOP", "no time", "no ceiling, no price", "nothing"],
)
def test_absurd_figures_are_no_crash_and_no_axis(tmp_path: Path, changes: dict[str, Any]) -> None:
    for number in (1, 2, 3):
        make(tmp_path, number, **changes)
    found = compose(gather(analysis.load(tmp_path)))
    text = html.render(found)
    specs = json.loads(Page(text).contents["script"][1])
    numbers = [
        float(each) for each in re.findall(r"(?<=[:,\[])-?[0-9.]+(?:e[+-]?[0-9]+)?(?=[,}\]])", json.dumps(specs))
    ]
    assert all(abs(each) < 1e31 for each in numbers)
    assert markdown.render(found, figures=None)


def test_a_text_of_any_length_keeps_the_page_small(tmp_path: Path) -> None:
    for number in (1, 2):
        make(tmp_path, number, error="x" * 10**4, notes=["y" * 10**4], environment__host={"os": "z" * 10**4})
    text = html.render(compose(gather(analysis.load(tmp_path))))
    assert "z" * 5000 + "… (5000" in text
    assert len(text) < 2_000_000


@given(st.text(max_size=60))
def test_a_json_block_never_ends_early(text: str) -> None:
    block = str(html.json_block({"name": text}))
    assert not set("<>&") & set(block)
    assert json.loads(block) == {"name": text}


def test_code_that_would_end_its_block_is_refused() -> None:
    with pytest.raises(ValueError, match="the inlined code holds </script or a comment: it would end its block"):
        html._raw("a = '</SCRIPT>'", "</script")


# --- Markdown


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("resnet18 at 1.5 x", "resnet18 at 1.5 x"),
        ("mobilenet_v2", "mobilenet_v2"),
        ("_a_", r"\_a\_"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("a|b", r"a\|b"),
        ("[x](javascript:1)", r"\[x\](javascript:1)"),
        ("# no heading", r"\# no heading"),
        ("1. no list", r"1\. no list"),
        ("1.16 x", "1.16 x"),
        ("- no item", r"\- no item"),
        ("a\n\n# b", "a # b"),
        ("```", r"\`\`\`"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_markdown_escapes(text: str, escaped: str) -> None:
    assert markdown.escape(text) == escaped


@given(st.text(alphabet=st.sampled_from("ab _*`[]()<>|#-+=:~!&\\\n1.$@/{}\"'"), max_size=40))
def test_escaped_text_reads_as_it_was(text: str) -> None:
    """By a CommonMark parser with HTML and tables switched on."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    parser = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    expected = " ".join(text.split())
    tokens = parser.parse(f"x {markdown.escape(text)}" if not expected else markdown.escape(text))
    if not expected:
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    inline = tokens[1].children
    assert {child.type for child in inline} <= {"text", "text_special"}
    assert "".join(child.content for child in inline) == expected


def test_markdown_has_tables_pictures_and_commands(report: Report) -> None:
    text = markdown.render(report, figures="figures")
    assert text.startswith("# Training throughput, and what limits it\n\n36 runs · 12 configurations · 2 environments")
    assert "![Best throughput of each model and environment](figures/throughput_comparison.png)" in text
    assert "| model | fastest on | device | batch |" in text
    assert "```sh\n# gcp-t4-us-central1-a: " in text
    assert "![" not in markdown.render(report, figures=None)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(rows) > 60
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_hostile_markdown_holds_no_markup(hostile_report: Report) -> None:
    text = markdown.render(hostile_report, figures="figures")
    outside = re.sub(r"^(`{3,})sh\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in outside
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(", outside)
    assert "\x1b" not in text
    assert "\u202e" not in text


# --- the command


class Analyze:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *given: str | Path) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["analyze", *map(str, given)])
        code = door.main()
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Analyze:
    return Analyze(monkeypatch, capsys)


@pytest.mark.world
def test_the_command_writes_page_figures_and_markdown(analyze: Analyze, tmp_path: Path) -> None:
    matrix(tmp_path / "results", repeats=1)
    page, figures, text = tmp_path / "out" / "report.html", tmp_path / "figures", tmp_path / "out" / "report.md"
    code, out, err = analyze("report", tmp_path / "results", "-o", page, "--figures", figures, "--markdown", text)
    assert (code, err) == (ExitCode.DONE, "")
    assert out == f"{page}\n{figures}\n{text}\n"
    pictures = {path.stem for path in figures.glob("*.png")}
    assert {"throughput_env-gcp-t4-us-central1-a", "roofline_combined", "cost"} <= pictures
    assert {path.stem for path in figures.glob("*.svg")} == {*pictures, *(f"{name}-dark" for name in pictures)}
    linked = re.findall(r"!\[[^]]*\]\((.+?)\)", text.read_text())
    assert linked
    assert all((text.parent / link).resolve().is_file() for link in linked)
    assert page.read_text().startswith("<!doctype html>")
    assert not list(page.parent.glob(".*"))


def test_a_page_that_cannot_be_written_is_told(analyze: Analyze, tmp_path: Path) -> None:
    matrix(tmp_path / "results", repeats=1)
    (tmp_path / "file").write_text("")
    page = tmp_path / "file" / "report.html"
    code, _, err = analyze("report", tmp_path / "results", "-o", page)
    assert code == ExitCode.USAGE
    assert err == f"error: report '{page}' cannot be written: File exists\nhint: -o FILE, one that you may write\n"


def test_no_bundles_is_nothing_to_report(analyze: Analyze, tmp_path: Path) -> None:
    code, _, err = analyze("report", tmp_path, "-o", tmp_path / "report.html")
    assert code == ExitCode.NOTHING_TO_DO
    assert err == f"error: no bundle in '{tmp_path}'\nhint: launch local -o {tmp_path}\n"
    assert not (tmp_path / "report.html").exists()

"""What a report says of runs, section by section, and the command that writes it."""

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import for_every_figure, kernels, run
from report_bundles import many, matrix
from report_texts import of, repeats, texts

import analysis
from analysis import __main__ as door
from analysis.figures import registry
from analysis.figures.figure import Figure
from analysis.report import words
from analysis.report.compose import compose
from analysis.report.content import Bullets, Paragraph, Picture, Report, Section, Table, figures_of
from analysis.report.evidence import ReportEvidence, gather
from analysis.report.sections import answer, complexity, context, design, discussion, variability
from workload.contract.errors import ExitCode

INTERVAL = re.compile(r"interval|\d to \d|no interval")


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


def test_kernels_without_times_have_no_share_of_the_time() -> None:
    profile = kernels("sgemm").assign(
        family=["GEMM"],
        flop=4e9,
        dram_bytes=1e8,
        flop_is_lower_bound=False,
        **dict.fromkeys(
            ("duration_s", "l2_bytes", "l1_bytes", "sm_percent", "memory_percent", "dram_percent"), math.nan
        ),
    )
    untimed = {"images_per_s": None, "step_median_s": None, "imported": True, "train_flop_per_image": None}
    page = compose(of(run("a", steps=[], path="/nowhere", kernels=profile, **untimed)))
    said = [text for section in page.sections for text in texts(section)]
    assert not [text for text in said if "most time of its kernels" in text]


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
@pytest.mark.night(part="report")
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


@pytest.mark.slow
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


@pytest.mark.slow
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

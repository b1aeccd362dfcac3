"""Sentences and tables of a report, section by section, and the command that writes it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.figures import Figure, registry
from analysis.report import answer, context, measurements, template
from analysis.report.compose import compose
from analysis.report.content import Paragraph, Table, figures_of
from analysis.report.evidence import ReportEvidence, gather
from benchmarks.synthetic_bundles import make
from tests.analysis.by_hand import at_rates, for_every_figure, noisy, run
from tests.analysis.in_process import Analyze
from tests.analysis.report.report_bundles import matrix
from tests.analysis.report.report_texts import of, texts
from tests.analysis.sentence_runs import UNTIMED, Golden, batches, profile_alone
from workload.contract.errors import ExitCode

# --- the answer


PACKAGES = ["numpy==2.2.0", "Pillow==11.0", "torch==2.15.0+cu132"]


def with_packages(folder: Path, number: int, place: str, packages: list[str], **more: Any) -> None:
    make(folder, number, environment__place=place, environment__software__packages=packages, **more)


def test_packages_are_listed_once_and_those_that_differ_are_named(tmp_path: Path) -> None:
    with_packages(tmp_path, 1, "a", PACKAGES)
    with_packages(tmp_path, 2, "b", PACKAGES)
    with_packages(tmp_path, 3, "c", ["numpy==2.3.0", "torch==2.15.0+cu132"])
    # Another driver is another set of software of one environment.
    with_packages(tmp_path, 4, "c", ["numpy==2.2.0", "torch==2.15.0+cu132"], environment__device__driver_version="1")
    section = context.environment(gather(analysis.load(tmp_path)))
    differing = next(block for block in section.blocks if isinstance(block, Table) and "differ" in block.caption)
    assert [heading.text for heading in differing.headings] == ["package", "a, b", "c (1)", "c (2)"]
    assert [list(row) for row in differing.rows] == [
        ["numpy", "2.2.0", "2.3.0", "2.2.0"],
        ["Pillow", "11.0", "not installed", "not installed"],
    ]
    assert [(part.title, part.folded) for part in section.parts] == [
        *(("Packages of a, b (3)", True), ("Packages of c (1) (2)", True), ("Packages of c (2) (2)", True)),
    ]
    assert section.parts[0].blocks == [Paragraph(text=", ".join(PACKAGES))]


def test_five_sentences_at_most() -> None:
    names = ("resnet18", "resnet50", "vgg11", "vgg16")
    facts: dict[str, Any] = {"usd_per_h": 1.0}
    runs = [
        one | {"model": name, "run_id": f"{name}{one['run_id']}"} for name in names for one in batches(1.0, 2.0, 3.0)
    ]
    amp = at_rates("amp", (9.0, 9.1, 9.2), precision="amp", batch_size=16)
    once = at_rates("once", (5.0,), model="alexnet", train_flop_per_step=1e16)
    every = of(*(one | facts for one in (*runs, *amp, *once)))
    assert len(answer.sentences(every)) == answer.MOST_SENTENCES


# --- other sections


def test_what_one_acts_on_comes_first_and_the_rest_is_folded(evidence: ReportEvidence, golden: Golden) -> None:
    report = compose(evidence)
    assert [section.folded for section in report.sections] == [False] * 4 + [True] * 6
    page = template.as_markdown(report, figures="figures")
    golden("page.txt", page)
    assert not re.search(r"\b(nan|None)\b", page)
    assert "![" not in template.as_markdown(report, figures=None)


def test_sections_without_content_are_left_out() -> None:
    nothing = compose(of(run("a", status="failed", steps=[], path="/nowhere", train_flop_per_step=None)))
    assert [section.title for section in nothing.sections] == [
        "The answer", "Audit", "Method", "Places", "Reproduce", "Words",
    ]  # fmt: skip


# --- the top of the page


def test_of_one_environment_its_own_roofline_comes_first() -> None:
    alone = compose(of(*at_rates("a", (100.0, 102.0), bytes_lower_per_step=4e9, bytes_upper_per_step=16e9)))
    assert alone.figures()[0].name == "roofline_local-cuda"


def test_an_error_in_a_run_that_no_sentence_quotes_stands_under_audit() -> None:
    profile = run("p", steps=[], backward_kernels=0.0, imported=True, place="l4", **UNTIMED)
    beside = of(*at_rates("a", (100.0, 102.0)), profile)
    assert [finding.rule for finding in beside.findings if finding.severity == "error"] == ["no backward kernels"]
    assert not [text for text in answer.sentences(beside) if "The audit found" in text]
    assert answer.sentences(of(profile))[0].startswith("The audit found 1 error, so figures of these runs are wrong ")


FALSE_WITHOUT_TIMES = ("0 configurations", "(no rows)", "highest throughput", "Every configuration was")


def test_a_page_of_profiles_alone_says_what_profiles_show() -> None:
    page = compose(of(*profile_alone()))
    assert page.facts[:2] == ["1 run", "1 configuration"]
    said = [text for section in page.sections for text in texts(section)]
    assert [text for text in said if text.endswith("most kernel time goes to GEMM 75 %, batch norm 25 %.")]
    assert not [text for text in said if any(phrase in text for phrase in FALSE_WITHOUT_TIMES)]
    assert not [text for text in said if text.startswith("Warm-up steps are recorded")]
    assert page.figures()[0].name == "kernel_roofline_resnet18"
    tables = [block for section in page.sections for block in [*section.blocks] if isinstance(block, Table)]
    assert all(table.rows for table in tables)


def test_each_figure_of_the_registry_is_placed_in_a_section() -> None:
    """A new one without a section would only stand in the last resort; one that is never drawn here is not tested."""
    found = of(*for_every_figure())
    drawn_by = {
        name: [one.name for one in registry.built(build, found.material)] for name, build in registry.REGISTRY.items()
    }
    assert {name for name, names in drawn_by.items() if not names} == set()
    page = compose(found)
    placed = {figure.name for section in page.sections for figure in figures_of(section)}
    assert {name for names in drawn_by.values() for name in names} == placed
    assert "more" not in [section.name for section in page.sections]


def test_a_figure_that_no_section_names_is_shown_all_the_same(evidence: ReportEvidence) -> None:
    chart = evidence.drawn[0].chart
    new = Figure(name="brand_new", title="New", caption="New.", text="1", chart=chart)
    page = compose(replace(evidence, drawn=[*evidence.drawn, new]))
    assert page.sections[-1].name == "more"
    assert [figure.name for figure in page.figures()].count("brand_new") == 1


# --- the command


@pytest.mark.slow
@pytest.mark.world
def test_the_command_writes_page_figures_and_markdown(analyze: Analyze, tmp_path: Path) -> None:
    matrix(tmp_path / "results", repeats=1)
    page, figures, text = tmp_path / "out" / "report.html", tmp_path / "figures", tmp_path / "out" / "report.md"
    code, out, err = analyze("report", tmp_path / "results", "-o", page, "--figures", figures, "--markdown", text)
    assert (code, err) == (ExitCode.DONE, "")
    assert out == f"{page}\n{figures}\n{text}\n"
    pictures = {path.stem for path in figures.glob("*.png")}
    assert {"throughput_env-gcp-t4-us-central1-a", "roofline_combined"} <= pictures
    assert {path.stem for path in figures.glob("*.svg")} == pictures
    linked = re.findall(r"!\[[^]]*\]\((.+?)\)", text.read_text())
    assert linked
    assert all((text.parent / link).resolve().is_file() for link in linked)
    assert page.read_text().startswith("<!doctype html>")
    assert not list(page.parent.glob(".*"))


def test_a_sweep_of_a_script_has_a_row_for_each_setting_and_batch() -> None:
    runs = [
        run(
            f"{size}-{workers}-{repeat}",
            steps=noisy(seed=repeat, share=0.05),
            model="train.py",
            script=f"train.py --batch-size {size} --workers {workers}",
            batch_size=size,
            workers=float(workers),
            path="/nowhere",
        )
        for size in (32, 8)
        for workers in (1, 0)
        for repeat in range(3)
    ]
    evidence = of(*runs)
    for table in (*measurements._summary(evidence), *measurements._between(evidence)):
        assert isinstance(table, Table)
        headings = [heading.text for heading in table.headings]
        assert "units" not in headings
        shown = [[row[headings.index(name)] for name in ("settings", "batch", "runs")] for row in table.rows]
        assert shown == [[f"fp32, --workers {workers}", size, "3"] for workers in (0, 1) for size in ("8", "32")]
        assert not any("script" in cell for row in table.rows for cell in row)


# --- where the time went


def test_time_on_a_rented_machine_has_its_cost() -> None:
    rented = {"steps_s": 10.0, "imports_s": 5.0, "boot_s": 25.0, "finish_s": 0.1, "usd": 0.02}
    later = {**rented, "boot_s": 0.0, "usd": 0.01}
    [table] = measurements._time(of(*at_rates("a", [100.0], **rented), *at_rates("b", [100.0], **later)))
    assert isinstance(table, Table)
    assert table.rows == [
        ["local-cuda", "2", "55.2 s", "0.030", "36 %", "boot 25 s (0.014 USD), imports 10 s (0.0054 USD)"]
    ]
    assert "launcher" not in table.caption
    assert measurements._time(of(*at_rates("a", [100.0]))) == []
    [own] = measurements._time(of(*at_rates("a", [100.0], steps_s=10.0)))
    assert isinstance(own, Table)
    assert "without the launcher's own (its start, its checks before and after each run)" in own.caption

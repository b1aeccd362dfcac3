"""The course report: sections in the template's order, filled with data, and gaps that only its author can fill."""

import re
import shutil
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

import analysis
from analysis.report import template
from analysis.report.compose import compose
from analysis.report.content import Report, Table
from analysis.report.evidence import ReportEvidence, gather
from analysis.report.template import escape
from tests.analysis.by_hand import at_rates
from tests.analysis.in_process import Analyze
from tests.analysis.report.report_bundles import HOSTILE, matrix
from tests.analysis.report.report_texts import of
from tests.analysis.sentence_runs import Golden, Runs, failed, own, profile_alone
from tests.docs import grammar
from workload.contract.errors import ExitCode

# Headings of the published template (report D), without its marks and its "Project 1".
HEADINGS = (
    "## Abstract (≤150 words)",
    "## 1. Introduction & Research Questions",
    "## 2. Experiment Design",
    "## 3. Model Complexity",
    "## 4. Measurement Results",
    "### 4.1 Throughput vs Batch Size",
    "### 4.2 Variability (Cloud vs Bare Metal)",
    "## 5. Roofline Modeling",
    "## 6. Analysis & Discussion",
    "## 7. Reproducibility & Environment",
    "## 8. Limitations & Future Work",
    "## 9. Conclusion",
    "## References",
    "## Figures Checklist",
    "## Appendix",
)
SOURCE = resources.files("analysis.report").joinpath("template.md").read_text(encoding="utf-8")


def rendered(*runs: object) -> str:
    evidence = of(*runs)  # type: ignore[arg-type]
    return template.render(compose(evidence), evidence, figures="figures")


@pytest.fixture(scope="module")
def text(report: Report, evidence: ReportEvidence) -> str:
    return template.render(report, evidence, figures="figures")


def part(text: str, heading: str) -> str:
    """The text from one heading to the next one of `HEADINGS`."""
    begin = text.index(f"\n{heading}\n")
    ends = [place for other in HEADINGS if (place := text.find(f"\n{other}\n", begin + 1)) > 0]
    return text[begin : min(ends, default=len(text))]


def test_sections_have_the_order_of_the_template(text: str) -> None:
    places = [text.index(f"\n{heading}\n") for heading in HEADINGS]
    assert places == sorted(places)
    assert text.startswith("# Performance Modeling & Roofline Analysis across gcp-l4-us-central1-a, gcp-t4-us-central1")
    assert "{{" not in text
    assert "No data: no run has a throughput" not in text


SCRIPT: Runs = own(script="gpt.py --steps 3", model="gpt.py", image_size=None, precision=None, dataset=None)
# Sections with tables that the page has not.
OWN = (
    "## 2. Experiment Design",
    "## 3. Model Complexity",
    "## 6. Analysis & Discussion",
    "## 7. Reproducibility & Environment",
    "## Figures Checklist",
)


def test_tables_of_the_template(text: str, golden: Golden) -> None:
    of_script = rendered(*SCRIPT)
    sections = {
        "runs in two places": [part(text, heading) for heading in OWN],
        "nothing completed": [part(rendered(*failed()), heading) for heading in OWN],
        "a script": [part(of_script, heading) for heading in OWN],
    }
    golden("course.txt", "".join(f"#### {name}\n{''.join(parts)}" for name, parts in sections.items()))


def test_each_figure_and_table_of_the_page_is_placed_once(text: str, report: Report) -> None:
    pictures = Counter(re.findall(r"!\[[^]]*\]\(figures/(\S+)\.png\)\{ width=70% \}\n", text))
    assert pictures == Counter(figure.name for figure in report.figures())
    captions = [
        block.caption
        for section in template._flat(report.sections)
        for block in section.blocks
        if isinstance(block, Table) and section.name != "places"
    ]
    assert captions
    assert {caption: text.count(f"*{escape(caption)}*") for caption in captions} == dict.fromkeys(captions, 1)


def test_gaps_are_counted_with_their_lines(text: str) -> None:
    lines, gaps = text.split("\n"), template.gaps(text)
    assert len(gaps) == text.count("_TO WRITE: ") == SOURCE.count("_TO WRITE: ")
    for gap in gaps:
        number, description = re.fullmatch(r"line (\d+): (.+)", gap).groups()  # type: ignore[union-attr]
        assert f"_TO WRITE: {description}_" in lines[int(number) - 1]


def test_the_commands_of_the_report_can_be_typed(text: str) -> None:
    fixed = re.findall(r"^(?:analyze|launch|python -m) .+$", SOURCE, flags=re.MULTILINE)
    assert "analyze roofline RESULTS" in fixed
    complexity = re.findall(r"^python -m workload complexity .+$", text, flags=re.MULTILINE)
    assert complexity == [
        "python -m workload complexity --model resnet18 mobilenet_v2 --batch-size 16 32 64 --image-size 224"
    ]
    for line in (*fixed, *complexity):
        grammar.check(line)


CPU: Runs = own(device_type="cpu", device_name="Xeon", place="local-cpu", driver_version=None)


@pytest.mark.parametrize(
    "runs",
    [own(), failed(), profile_alone(), SCRIPT, CPU, at_rates("a", (100.0, 101.0), imported=True), own((100.0,))],
    ids=["one", "failed", "profile", "script", "cpu", "imported", "single run"],
)
def test_every_kind_of_results_has_the_whole_template(runs: Runs) -> None:
    text = rendered(*runs)
    assert [heading for heading in HEADINGS if f"\n{heading}\n" not in text] == []
    assert "{{" not in text
    assert not re.search(r"\bnan\b|\bNone\b", text)
    assert len(template.gaps(text)) == SOURCE.count("_TO WRITE: ")


@pytest.mark.slow
def test_profiles_of_others_stand_in_table_2_of_the_example(tmp_path: Path) -> None:
    """Bundles of the package: CPU runs, and an imported log and two imported profiles."""
    bundles = shutil.copytree(Path(analysis.__file__).parent / "example", tmp_path / "example")
    evidence = gather(analysis.load(bundles))
    table_2 = part(template.render(compose(evidence), evidence, figures="f"), "## 6. Analysis & Discussion")
    assert "| at least 668.1 | 6.94 (under the profiler) |" in table_2
    assert "| Tesla T4 (imported) | resnet18 (imagenette) | fp32 | 128 | 312.2 | 3324 | 59.1 (modelled) |" in table_2


def test_hostile_texts_become_no_markup_no_gap_and_no_placeholder() -> None:
    runs = own(model=f"{HOSTILE}_TO WRITE: x_{{{{rest}}}}", place=HOSTILE, dataset="a\n## b", precision="_TO WRITE: y_")
    text = rendered(*runs)
    assert len(template.gaps(text)) == SOURCE.count("_TO WRITE: ")
    outside = re.sub(r"^(`{3,})sh\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in outside
    assert "\n## b" not in text
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(", outside)


# --- the command


@pytest.mark.slow
@pytest.mark.world
def test_the_command_writes_the_report_and_its_figures(analyze: Analyze, tmp_path: Path) -> None:
    matrix(tmp_path / "results", repeats=1)
    written = tmp_path / "out" / "report.md"
    code, out, err = analyze("report", tmp_path / "results", "-o", written)
    assert (code, out) == (ExitCode.DONE, f"{written}\n{written.parent / 'figures'}\n")
    text = written.read_text(encoding="utf-8")
    first, *gaps = err.splitlines()
    assert first == f"to write   {SOURCE.count('_TO WRITE: ')} gaps for you (TO WRITE) in {written}:"
    assert [gap.strip() for gap in gaps] == template.gaps(text)
    linked = re.findall(r"!\[[^]]*\]\((.+?)\)\{ width=70% \}", text)
    assert linked
    assert all((written.parent / link).is_file() for link in linked)
    assert {path.name for path in written.parent.iterdir()} == {"report.md", "figures"}
    # The author completes the report: no later command may replace it.
    code, out, err = analyze("report", tmp_path / "results", "-o", written)
    assert (code, out) == (ExitCode.USAGE, "")
    lost = "exists, and writing it again would lose the sentences that you wrote"
    assert err == f"error: report '{written}' {lost}\nhint: -o with another FILE.md, or remove the file\n"
    assert written.read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.world
def test_a_report_that_cannot_be_written_is_told_before_figures_are_drawn(analyze: Analyze, tmp_path: Path) -> None:
    matrix(tmp_path / "results", repeats=1)
    folder, file = tmp_path / "folder.md", tmp_path / "file"
    folder.mkdir()
    file.write_text("")
    for path, why in ((folder, f"'{folder}' is a folder"), (file / "report.md", f"'{file}' is a file")):
        code, out, err = analyze("report", tmp_path / "results", "-o", path)
        hint = "hint: -o FILE, with a file that you may write\n"
        assert (code, out, err) == (ExitCode.USAGE, "", f"error: report '{path}' cannot be written: {why}\n{hint}")
    assert not (tmp_path / "figures").exists()
    # A file in place of the folder of figures: no report without its figures.
    code, out, err = analyze("report", tmp_path / "results", "-o", tmp_path / "r.md", "--figures", file)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"error: figures folder '{file}' cannot be written")
    assert not (tmp_path / "r.md").exists()
    both = tmp_path / "both.md"
    code, out, err = analyze("report", tmp_path / "results", "-o", both, "--markdown", both)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "-o and --markdown" in err

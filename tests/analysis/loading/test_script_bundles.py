"""Runs of somebody's own script beside each other and beside models of ours: real bundles, in units of their own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.loading import units
from analysis.report import evidence as reproduce
from tests.analysis.in_process import Analyze
from workload.contract import bundle

SCRIPTS = Path(__file__).parents[2] / "bundles" / "scripts"
GPT = sorted(SCRIPTS.glob("*gpt*"))
ACCUMULATION = next(SCRIPTS.glob("*accumulation*"))
MODEL = next(path for path in (Path(__file__).parents[3] / "analysis" / "example").rglob("run.json")).parent


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def put(results: Path, source: Path, name: str = "", **changed: object) -> Path:
    """A copy of a bundle; `changed`: what is different in its script."""
    folder = results / (name or source.name)
    shutil.copytree(source, folder)
    record = bundle.read(folder).record
    script = record.spec.script
    if changed and script:
        spec = replace(record.spec, script=replace(script, **changed))  # type: ignore[arg-type]
        record = replace(record, spec=spec)
    bundle.reseal(folder, replace(record, run_id=folder.name))
    return folder


def summary(results: Path, analyze: Analyze) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(analyze("summary", results, "--format", "json")[1])
    return rows


def test_runs_of_one_script_are_pooled(results: Path, analyze: Analyze) -> None:
    for folder in GPT:
        put(results, folder)
    [row] = summary(results, analyze)
    assert (row["script"], row["unit"], row["runs"]) == ("gpt.py", "tokens", 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"argv": ("gpt.py", "--lr", "2"), "command": "gpt.py --lr 2"},
        {"sha256": "0123456789abcdef"},
        {"packages_sha256": "0123456789abcdef"},
        {"unit": "samples"},
    ],
    ids=["arguments", "files", "packages", "unit"],
)
def test_scripts_that_differ_are_never_pooled(changed: dict[str, object], results: Path, analyze: Analyze) -> None:
    put(results, GPT[0])
    put(results, GPT[1], **changed)
    assert [row["runs"] for row in summary(results, analyze)] == [1, 1]


def test_headings_say_what_was_counted(results: Path, analyze: Analyze) -> None:
    for folder in GPT:
        put(results, folder)
    for words in (["summary"], ["variance", "--part", "between"]):
        text = analyze(*words, results)[1]
        assert "tokens/s" in text
        assert "images" not in text
        assert "units" not in text


def test_rows_say_it_where_they_differ(results: Path, analyze: Analyze) -> None:
    for folder in (GPT[0], ACCUMULATION, MODEL):
        put(results, folder)
    text = analyze("summary", results)[1]
    assert "units/s" in text
    assert "images/s" not in text
    assert "time and cost of 1 million\nimages or 1 billion tokens\n" in text
    assert [line.split()[2] for line in text.splitlines() if " - " in line] == ["tokens", "images", "images"]


def test_ours_alone_stay_as_they_were(results: Path, analyze: Analyze) -> None:
    put(results, MODEL)
    text = analyze("summary", results)[1]
    assert "images/s" in text
    assert "units" not in text


@pytest.mark.parametrize("command", ["variance", "compare", "audit", "roofline"])
def test_every_command_takes_them(command: str, results: Path, analyze: Analyze) -> None:
    for folder in (*GPT, ACCUMULATION, MODEL):
        put(results, folder)
    put(results, GPT[0], "other", argv=("gpt.py", "--lr", "2"), command="gpt.py --lr 2")
    code, out, _ = analyze(command, results)
    assert code in (0, 3)
    assert "images/s" not in out


@pytest.mark.slow
def test_a_report_of_scripts_alone(results: Path, analyze: Analyze) -> None:
    for folder in GPT:
        put(results, folder)
    put(results, GPT[0], "other", argv=("gpt.py", "--token", "[redacted]"), command="gpt.py --token '[redacted]'")
    page, markdown = results.parent / "report.html", results.parent / "report.md"
    assert analyze("report", results, "-o", page, "--markdown", markdown)[0] == 0
    text = markdown.read_text()
    assert " · units: tokens (gpt.py) · " in text
    assert "images/s" not in text
    assert "images/s" not in page.read_text().rpartition("vegaEmbed = vegaEmbed")[2]
    assert " tokens/s (" in text
    assert "training FLOP/token" in text
    assert "\nlaunch local --runtime process --cpu --warmup 2 --iterations 10 --repeats 2 -- gpt.py\n" in text
    assert "\nlaunch local --runtime process --cpu --warmup 2 --iterations 10 -- gpt.py --token '[redacted]'\n" in text


def test_a_profile_is_reproduced_too() -> None:
    record = bundle.read(GPT[0]).record
    spec = replace(record.spec, profile="torch", profile_steps=2, samples_per_step=96, samples=1_281_167)
    assert reproduce.command(replace(record, spec=spec)) == (
        "launch local --runtime process --cpu --warmup 2 --iterations 10 --samples-per-step 96 "
        "--samples 1281167 --profile torch --profile-steps 2 -- gpt.py"
    )


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("{unit}/s, median", "tokens", "tokens/s, median"),
        ("Throughput [{unit}/s]", "units", "Throughput [units/s]"),
        ("forward MAC/{one}; USD per million {unit}", "samples", "forward MAC/sample; USD per million samples"),
        ("train_images.py", "tokens", "train_images.py"),
    ],
)
def test_words_for_units(text: str, unit: str, expected: str) -> None:
    assert units.worded(text, unit) == expected

"""`analyze variance`, `compare` and `audit` from the command line's side: formats, exit codes, messages."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.api import Results
from analysis.audit import audit
from analysis.commands.audit import render
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.in_process import Analyze
from workload.contract.errors import ExitCode
from workload.contract.tables import TableFormat

PLACES = ("here", "there")


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch, analyze: Analyze) -> Analyze:
    """Run a command on results made by hand."""

    def call(*words: str, on: Results | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("analysis.load", lambda *_, **__: on)
        return analyze(*words)

    return call


def two_places(**facts: Any) -> Results:
    runs = [
        run(f"{place}{number}", place=place, steps=noisy(seed=number, step_s=0.1 + 0.001 * number), **facts)
        for place in PLACES
        for number in range(3)
    ]
    return results(*runs)


# --- variance


def test_variance_prints_all_tables(analyze: Analyze) -> None:
    code, out, _ = analyze("variance", "results", on=two_places(data_wait_fraction=0.3))

    assert code == ExitCode.DONE
    titles = [part.splitlines()[0] for part in out.split("\n\n")]
    assert titles == [
        "between runs, by configuration and place",
        "within runs",
        "variation between runs on a machine, and between machines, by place",
        "causes",
    ]
    assert max(map(len, out.splitlines())) <= 100


def test_variance_without_causes_says_so(analyze: Analyze) -> None:
    _, out, _ = analyze("variance", "results", on=two_places())

    assert out.endswith("causes\nno cause found in steps and telemetry\n")


@pytest.mark.parametrize(("part", "length"), [("between", 2), ("within", 6), ("causes", 6)])
def test_variance_as_data(analyze: Analyze, part: str, length: int) -> None:
    made = two_places(data_wait_fraction=0.3)

    _, whole, _ = analyze("variance", "results", "--format", "json", on=made)
    _, one, _ = analyze("variance", "results", "--part", part, "--format", "json", on=made)
    _, lines, _ = analyze("variance", "results", "--part", part, "--format", "csv", on=made)

    assert len(json.loads(one)) == length
    assert json.loads(whole)[part] == json.loads(one)
    assert len(list(csv.DictReader(io.StringIO(lines)))) == length


def test_csv_holds_what_is_between_runs(analyze: Analyze) -> None:
    _, out, _ = analyze("variance", "results", "--format", "csv", on=two_places())

    assert out.startswith("place,device_name,model,batch_size,precision,images_per_s,")
    assert {"compile", "workers", "runtime", "commit"} <= set(out.splitlines()[0].split(","))


# --- compare


def test_compare(analyze: Analyze) -> None:
    code, out, _ = analyze("compare", "results", "--format", "json", on=two_places())

    (row,) = json.loads(out)
    assert code == ExitCode.DONE
    assert (row["left"], row["right"]) == ("here (NVIDIA L4)", "there (NVIDIA L4)")
    assert row["verdict"].startswith("no difference found: ")


def test_what_was_compared_and_what_was_kept_apart_is_told(analyze: Analyze) -> None:
    odd = run("odd", place="here", driver_version="570.1")
    other = run("other", model="vgg16", place="here")
    made = results(odd, run("a", place="here"), run("b", place="there"), other)

    code, _, err = analyze("compare", "results", on=made)

    assert code == ExitCode.DONE
    assert err == (
        "note       compared by place, in which these runs differ; also possible: --by driver_version, --by "
        "model\nnote       not pooled: runs that differ in driver; to pool them: analyze compare results "
        "--by place --allow-mixed driver_version\nnote       not compared: 1 run without a matching run on "
        "the other side: odd\nnote       not compared: 1 run that no other differs from in place alone: "
        "other\n"
    )
    code, _, err = analyze("compare", "results", "--by", "place", "--allow-mixed", "driver_version", on=made)
    assert (code, "kept apart" in err) == (ExitCode.DONE, False)


def test_unlike_runs_are_exit_code_9(analyze: Analyze) -> None:
    old, new = {"driver_version": "570.1"}, {"torch": "2.16.0"}
    here = [run("a", place="here"), run("b", place="here", **old, **new)]
    made = results(*here, run("c", place="there", **old), run("d", place="there", **new))

    code, out, err = analyze("compare", "results", "--by", "place", on=made)

    assert (code, out) == (9, "")
    assert err == (
        "error: cannot pool: driver is '580.95.05' in run a, '570.1' in run b\n"
        "hint: --by place --allow-mixed driver_version --allow-mixed torch\n"
    )


def test_nothing_to_compare_is_exit_code_3(analyze: Analyze) -> None:
    code, _, err = analyze("compare", "results", "--by", "precision", on=two_places())

    assert code == ExitCode.NOTHING_TO_DO
    assert err.startswith("error: nothing to compare: precision is fp32 in all of 6 measured runs")


# --- audit


def test_an_audit_that_finds_nothing(analyze: Analyze) -> None:
    code, out, _ = analyze("audit", "results", "--strict", on=two_places())

    assert code == ExitCode.DONE
    assert out.startswith("nothing found: 6 runs, ")


@pytest.mark.parametrize(
    ("facts", "options", "code"),
    [
        pytest.param({"commit_dirty": True}, [], 0, id="findings are no failure"),
        pytest.param({"commit_dirty": True}, ["--strict"], 10, id="unless they are to be"),
        pytest.param({"imported": True, "dataset": None}, ["--strict"], 0, id="notes never are"),
    ],
)
def test_exit_codes_of_an_audit(analyze: Analyze, facts: dict[str, Any], options: list[str], code: int) -> None:
    found, out, _ = analyze("audit", "results", *options, on=two_places(**facts))

    assert found == code
    assert not out.startswith("nothing found")


def test_findings_of_one_rule_stand_together(analyze: Analyze) -> None:
    # Between the steps passes as much time again as in them.
    steps = noisy()
    made = run("a", steps=steps, ended_at_s=5.0 + 2 * np.cumsum(steps), measured_s=2 * sum(steps), repeats=1)
    _, out, _ = analyze("audit", "results", on=results(made))

    assert out.splitlines()[:2] == [
        "warning: wall time not explained (1 run)",
        "  found      steps and waits add up to 50 % of the wall time: 50 % are outside of the timed parts  [a]",
    ]
    assert out.splitlines()[2].startswith(
        "  expected   steps and data waits add up to the wall time within 2 %, because "
    )
    assert out.splitlines()[3].startswith("  why        ")
    assert out.splitlines()[4].startswith("  cure       ")
    assert out.splitlines()[-1].startswith("1 warning, 1 note: 1 run, ")


def test_totals_count_what_an_audit_prints(analyze: Analyze) -> None:
    """Five runs that break one rule are one note, with three of their findings."""
    made = [run(f"a{number}", steps=noisy(seed=number, n=20, share=0.03)) for number in range(5)]
    _, out, _ = analyze("audit", "results", on=results(*made))

    assert out.startswith("note: steadiness not certain (5 runs)\n")
    assert out.count("  found      20 steps are too few to notice if ") == 3
    assert "\n             and 2 more runs: --format csv lists all\n" in out
    assert "  cure       more steps (--iterations 100), or a machine with less other work" in out
    assert out.splitlines()[-1].startswith("1 note: 5 runs, ")


@pytest.mark.parametrize("width", [60, 120])
def test_an_audit_fits_the_terminal(width: int) -> None:
    found = audit(results(run("a", explained_fraction=0.5, repeats=1)))
    lines = render(found, TableFormat.TABLE, looked_at="1 run, 43 rules", width=width).splitlines()

    assert found
    assert max(map(len, lines)) <= width
    assert "  expected   steps and data waits add up" in "\n".join(lines)


def test_an_audit_as_data(analyze: Analyze) -> None:
    made = two_places(commit_dirty=True)

    _, text, _ = analyze("audit", "results", "--format", "json", on=made)
    _, lines, _ = analyze("audit", "results", "--format", "csv", on=made)

    findings, rows = json.loads(text), list(csv.DictReader(io.StringIO(lines)))
    assert len(findings) == len(rows) == 1
    assert findings[0]["rule"] == rows[0]["rule"] == "uncommitted changes"
    assert (
        findings[0]["subject"]
        == rows[0]["subject"].split()
        == [f"{place}{number}" for place in PLACES for number in range(3)]
    )
    assert set(findings[0]) == {"rule", "severity", "subject", "figure", "threshold", "why", "cure"}


def test_names_from_files_cannot_move_the_cursor(analyze: Analyze) -> None:
    _, out, _ = analyze("audit", "results", on=results(run("a", imported=True, imported_file="vgg16\x1b[2J_x.csv")))

    assert "vgg16\\x1b[2J_x.csv" in out
    assert "\x1b" not in out


def test_published_figures_alone(analyze: Analyze, tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text("name,device_name,model,peak_flop_per_s\nA,NVIDIA L4,resnet50,242e12\n", encoding="utf-8")

    code, out, _ = analyze("audit", "--claims", str(path), "--strict")

    assert code == 10
    assert out.startswith("error: wrong peak (1 published row)\n  found      242 TFLOP/s; L4 has 30.3  [A]\n")
    assert out.endswith("1 error: 1 published row, 7 rules\n")


def test_nothing_to_audit(analyze: Analyze) -> None:
    code, _, err = analyze("audit")

    assert code == ExitCode.USAGE
    assert err == "error: nothing to audit was named\nhint: analyze audit RESULTS, or --claims FILE.csv\n"

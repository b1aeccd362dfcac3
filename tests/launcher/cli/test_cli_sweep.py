"""`launch sweep` as it is typed, and `--format csv` beside `json`: the same values as rows of name and value."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import typer.main

from launcher.cli.app import app
from launcher.cli.sweep import MATRICES, example_names
from launcher.sweep.places import Sweep, Until
from launcher.sweep.work import SweepOutcome
from tests.launcher.told import Golden, printed

SMALL = '[matrix]\nmodel = ["resnet18"]\nbatch_size = [8, 16]\n[[on]]\nbackend = "local"\nruntime = "process"\n'
Launch = Callable[..., int]
OTHER = '[[on]]\nname = "box"\nbackend = "ssh"\nhost = "me@box"\n'


@pytest.fixture
def sweep(launch: Launch) -> Launch:
    return partial(launch, "sweep")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night.toml").write_text(SMALL + OTHER)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_dry_run_prints_the_plan(sweep: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("night.toml", "--dry-run") == 0
    first = "sweep       night: 2 configurations, 3 blocks, 2 places: 12 runs, 0 done\n"
    assert capsys.readouterr().out.startswith(first)
    assert sweep("night.toml", "--dry-run", "--on", "box", "--format", "json", "-o", "elsewhere") == 0
    values = json.loads(capsys.readouterr().out)
    assert ([place["name"] for place in values["places"]], values["output"]) == (["box"], "elsewhere")


@pytest.mark.usefixtures("folder")
def test_a_sweep_is_driven_as_it_was_typed(
    sweep: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driven: list[tuple[Sweep, dict[str, object]]] = []

    def drive(plan: Sweep, **options: object) -> SweepOutcome:
        driven.append((plan, options))
        return SweepOutcome(name="night", places=(), output=Path("results"), exit_code=6, seconds=1.0)

    monkeypatch.setattr("launcher.sweep.drive.drive", drive)
    words = ("--on", "local", "--until", "2%", "--max-repeats", "9", "--max-cost", "3", "--max-time", "60s", "--fresh")
    assert sweep("night.toml", *words) == 6
    assert "blocks are added until every throughput is known within +-2 %" in capsys.readouterr().err
    [(plan, options)] = driven
    assert [place.place.name for place in plan.places] == ["local"]
    assert re.fullmatch(r"night-\d{8}-\d{6}", plan.name)
    assert options == {
        "output": Path("results"),
        "until": Until(share=0.02, most=9),
        "max_cost_usd": 3.0,
        "max_time_s": 60,
        "damaged": {},
    }


def test_a_warning_goes_to_stderr(folder: Path, sweep: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "night.toml").write_text(SMALL + "[[exclude]]\nbatch_size = 3\n")
    assert sweep("night.toml", "--dry-run") == 0
    assert capsys.readouterr().err == "warning: night.toml: an [[exclude]] matches nothing: batch_size = 3\n"
    hostile = (
        SMALL.replace("[matrix]", '[matrix]\ndataset = ["synthetic"]') + '[[exclude]]\ndataset = "\\u001b[31mred"\n'
    )
    (folder / "night.toml").write_text(hostile)
    assert sweep("night.toml", "--dry-run") == 0
    shown = 'warning: night.toml: an [[exclude]] matches nothing: dataset = "\\x1b[31mred"\n'
    assert capsys.readouterr().err.replace("\\u001b", "\\x1b") == shown


@pytest.mark.usefixtures("folder")
def test_what_is_asked_for_wrongly(golden: Golden, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("", "nigth.toml", "--example none", "night.toml --on bx --dry-run")
    wrong += ("night.toml --max-time 1x", "night.toml --max-cost 0")
    golden("refused.txt", printed(launch, capsys, (f"sweep {words}" for words in wrong)))


@pytest.mark.parametrize("name", example_names())
@pytest.mark.world
def test_every_example_plans_without_a_network(
    name: str, tmp_path: Path, sweep: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`world` for git, which says what commit this is."""
    assert sweep("--example", name) == 0
    file = tmp_path / f"{name}.toml"
    file.write_text(capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOFLAUNCH_PROJECT", "my-project")
    assert sweep(file.name, "--dry-run", "--format", "json") == 0
    captured = capsys.readouterr()
    values = json.loads(captured.out)
    assert (values["name"], captured.err) == (name, "")
    assert RUNS[name] == {place["name"]: place["runs"] for place in values["places"]}
    for place in values["places"]:
        assert place["expected_usd"] is not None or place["backend"] == "local", place["name"]


RUNS = {
    "first": {"local-cpu": 12},
    "imagenette": {"laptop": 27, "cpu": 3, "t4": 27},
    "ncu": {"n1s8-t4-1": 9, "g2-standard-12": 9, "n1s8-v100-1": 9},
    "cifar10": {"n1s8-t4-1": 18, "g2-standard-12": 18},
    "template": {"mac-cpu": 27, "mac-mps": 18, "workstation": 54, "cloud": 54},
}


@pytest.mark.parametrize("name", ["cifar10", "ncu"])
@pytest.mark.world
def test_commented_place_of_an_example_can_be_used(
    name: str, tmp_path: Path, sweep: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`world` for git, which says what commit this is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOFLAUNCH_PROJECT", "my-project")
    head, heading, place = (MATRICES / f"{name}.toml").read_text(encoding="utf-8").partition("# [[on]]\n")
    (tmp_path / "mine.toml").write_text(head + re.sub("<[^>]*>", "mine", (heading + place).replace("# ", "")))
    assert sweep("mine.toml", "--on", "greene", "--dry-run") == 0
    assert "greene" in capsys.readouterr().out


# A value that the plan of each line has, by its path in CSV.
PLANS = {
    "local --cpu --runtime process --batch-size 8 --dry-run": ("spec.batch_size", "8"),
    "duel --cpu --dry-run -- --precision fp32 --- --precision bf16": ("B.spec.precision", "bf16"),
    "sweep night.toml --dry-run": ("places.0.asked.runtime", "process"),
    "ssh --host me@box --dry-run": ("host", "me@box"),
}


@pytest.mark.parametrize("line", PLANS)
def test_a_plan_is_rows_of_name_and_value(
    line: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("night.toml").write_text(SMALL)
    formatted = {}
    for form in ("json", "csv"):
        assert launch(*shlex.split(line.replace("--dry-run", f"--dry-run --format {form}"))) == 0
        formatted[form] = capsys.readouterr().out
    heading, *rows = csv.reader(io.StringIO(formatted["csv"]))
    assert heading == ["name", "value"]
    values = json.loads(formatted["json"])
    assert {name.partition(".")[0] for name, _ in rows} == {name for name, value in values.items() if value != {}}
    path, expected = PLANS[line]
    found = dict(rows)
    assert len(found) == len(rows)
    assert found[path] == expected


def test_every_command_with_a_format_has_all_three() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group
    offered = {
        name: parameter.metavar
        for name, command in commands.items()
        for parameter in command.params
        if parameter.name == "output_format"
    }
    assert offered == dict.fromkeys(commands, "table|json|csv")

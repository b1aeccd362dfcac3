"""`--format csv` beside `json`: the same values, as a table or as rows of name and value."""

import csv
import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from launcher.cli.app import app

Launch = Callable[..., int]
MATRIX = '[matrix]\nmodel = ["resnet18"]\nbatch_size = [8, 16]\n[[on]]\nbackend = "local"\nruntime = "process"\n'
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
    Path("night.toml").write_text(MATRIX)
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

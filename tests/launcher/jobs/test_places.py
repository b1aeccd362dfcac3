"""Which place a command looks at: by the options that are typed, by rooflaunch.toml, else Google Cloud."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from launcher import backends
from launcher.backends.gcp.options import Where as Project
from launcher.cli import launches
from launcher.jobs import commands, places
from launcher.jobs.places import Place
from launcher.jobs.session import Session
from launcher.protocol.backend import Condition, Listing, Machine
from launcher.values import Command, choice
from tests.launcher.own_machine import NAME
from tests.launcher.told import Golden, told
from workload.contract.tables import TableFormat
from workload.storage.address import open_store


@dataclass(frozen=True, kw_only=True)
class Box:
    """A machine that one can log in to."""

    host: str = choice("which machine", metavar="USER@HOST")
    port: int | None = choice("where it listens", default=None)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Shares an option with another backend."""

    project: str | None = choice("which project", default=None)
    queue: str | None = choice("which queue", default=None)


@dataclass(frozen=True, kw_only=True)
class BoxOptions:
    """One option of each kind."""

    cores: int = choice("how many", metavar="N", min=1)
    tags: tuple[str, ...] = choice("words", default=(), flag="--tag")
    fast: bool = choice("in a hurry", default=False)
    seen: bool = choice("look", default=True)
    limit_s: int = choice(
        "how long", default=60, flag="--limit", parse=lambda text: int(text[:-1]), typed_default="60s"
    )


@pytest.fixture(autouse=True)
def three_backends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(help="Train on a box.", examples="Examples", noun="process", sent_to="the box")
    for name, where in (("box", Box), ("queue", Cluster)):
        module: Any = SimpleNamespace(Where=where, Options=BoxOptions, COMMAND=command)
        monkeypatch.setitem(sys.modules, f"three.{name}.options", module)
    named = {"gcp": backends.BACKENDS["gcp"], "box": "three.box", "queue": "three.queue"}
    monkeypatch.setattr(launches, "BACKENDS", named)
    monkeypatch.setattr(places, "BACKENDS", named)


# Options that are typed, the file rooflaunch.toml, and the place that they choose.
CHOSEN: dict[str, tuple[dict[str, Any], str, Place]] = {
    "nothing": ({}, "", Place(backend="gcp", where=Project())),
    "gcp's": ({"project": "p"}, "", Place(backend="gcp", where=Project(project="p"))),
    "another's": ({"queue": "q"}, "", Place(backend="queue", where=Cluster(queue="q"))),
    "shared": ({"project": "p", "queue": "q"}, "", Place(backend="queue", where=Cluster(project="p", queue="q"))),
    "required": ({"host": "h"}, "", Place(backend="box", where=Box(host="h"))),
    "required in a table": ({"port": 7}, '[box]\nhost = "h"', Place(backend="box", where=Box(host="h", port=7))),
    "a table": ({}, '[box]\nhost = "h"', Place(backend="box", where=Box(host="h"))),
    "two tables": ({}, '[gcp]\n[box]\nhost = "h"', Place(backend="gcp", where=Project())),
    "no table": ({}, "nonsense", Place(backend="gcp", where=Project())),
    "named": ({"backend": "queue", "project": "p"}, "", Place(backend="queue", where=Cluster(project="p"))),
    "named, with another's table": ({"backend": "queue"}, "[gcp]", Place(backend="queue", where=Cluster())),
    "shared, one with a table": ({"project": "p"}, "[queue]", Place(backend="queue", where=Cluster(project="p"))),
    "not of the one with a table": ({"bucket": "b"}, "[queue]", Place(backend="gcp", where=Project(bucket="b"))),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_options_and_the_file_choose_the_place(case: str) -> None:
    typed, config, place = CHOSEN[case]
    Path("rooflaunch.toml").write_text(config)
    names = ("project", "bucket", "host", "port", "queue")
    assert places.place_of({**dict.fromkeys(names), **typed}) == place


def test_options_that_mean_no_place(golden: Golden) -> None:
    cases: dict[str, dict[str, Any]] = {
        "two places": {"bucket": "b", "host": "h"},
        "no host": {"port": 7},
        "no backend": {"backend": "cloud9"},
        "an option of another": {"backend": "gcp", "host": "h"},
    }
    golden("no_place.txt", told({name: partial(places.place_of, typed) for name, typed in cases.items()}))


def run(*words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any], str]:
    asked: list[Any] = []

    def launch(place: Place, options: Any, given: dict[str, object], **own: Any) -> int:
        asked.append((place, options, given, own["detach"]))
        return 0

    monkeypatch.setattr("launcher.jobs.commands.launch", launch)
    door = typer.Typer()
    door.callback()(lambda: None)
    launches.register(door)
    done = CliRunner().invoke(door, list(words))
    return done.exit_code, asked, done.output


def test_the_options_of_a_backend_are_the_fields_of_its_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    code, asked, _ = run("box", "--host", "h", "--cores", "2", "--batch-size", "4", monkeypatch=monkeypatch)
    plain = BoxOptions(cores=2)
    assert (code, asked) == (0, [(Place(backend="box", where=Box(host="h")), plain, {"batch_size": "4"}, False)])
    words = ("--tag", "a", "--tag", "b", "--fast", "--no-seen", "--limit", "90s", "--detach", "--port", "22")
    code, asked, _ = run("box", "--host", "h", "--cores", "2", *words, monkeypatch=monkeypatch)
    changed = BoxOptions(cores=2, tags=("a", "b"), fast=True, seen=False, limit_s=90)
    assert (code, asked) == (0, [(Place(backend="box", where=Box(host="h", port=22)), changed, {}, True)])


@pytest.mark.parametrize(
    ("config", "place", "words"),
    [
        ("", Place(backend="gcp", where=Project(project="p")), ""),
        ("", Place(backend="box", where=Box(host="h")), "--host h"),
        ("", Place(backend="queue", where=Cluster(project="p")), "--backend queue --project p"),
        ("", Place(backend="queue", where=Cluster(queue="q")), "--queue q"),
        ("[queue]", Place(backend="gcp", where=Project(project="p")), "--backend gcp --project p"),
        ("[queue]", Place(backend="gcp", where=Project(bucket="b")), "--bucket b"),
        ("[queue]", Place(backend="queue", where=Cluster()), ""),
        ("[queue]", Place(backend="queue", where=Cluster(project="p")), "--project p"),
    ],
)
def test_words_of_a_place_lead_to_it_again(config: str, place: Place, words: str) -> None:
    Path("rooflaunch.toml").write_text(config)
    assert place.words == words
    assert place.command("logs RUN -f") == f"launch logs RUN -f {words}".rstrip()
    if config:
        typed = dict(zip(*(iter(part.removeprefix("--") for part in words.split()),) * 2, strict=True))
        assert places.place_of(typed) == place


def test_a_hint_names_how_other_places_are_looked_at() -> None:
    assert places.other_places("gcp") == "--backend box --host USER@HOST or --backend queue"
    assert places.other_places("queue") == "--backend gcp or --backend box --host USER@HOST"


def test_status_names_the_place_in_the_command_that_deletes_a_stopped_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vm = Machine(name=NAME, zone="z", condition=Condition.STOPPED, status="stopped")
    machines: Any = SimpleNamespace(noun="VM", place="q", now_s=lambda: 0.0, look=lambda *_: Listing(there=(vm,)))
    session = Session(machines=machines, store=open_store(str(tmp_path)))
    monkeypatch.setattr(commands, "_session", lambda _: session)
    place = Place(backend="queue", where=Cluster())
    commands.show_status(place, name=None, every=False, output_format=TableFormat.TABLE)
    shown = capsys.readouterr()
    assert shown.err.endswith("hint: launch reap --backend queue\n")
    assert "the disk still costs money: launch reap\n" in shown.out

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.images import build, contents
from launcher.images.build import Built
from launcher.images.contents import Recipe
from tests.launcher.told import Golden, printed, told
from workload.contract.errors import ToolError, UsageError

FLAVOUR = replace(contents.load_flavours()["cpu"], base="debian:12-slim", digest="")
RECIPE = Recipe(
    flavour=FLAVOUR,
    base="debian:12-slim",
    base_digest="sha256:ba",
    index="pip",
    files={"docker/Dockerfile": b"FROM x\n"},
)
GOOD = [
    {"stream": "Step 1/2 : FROM x\n"},
    {"stream": " ---> 0123\n"},
    {"stream": "Step 2/2 : RUN pip install torch\n"},
    {"stream": "Collecting torch\nInstalling"},
    {"stream": "\n"},
    {"aux": {"ID": "sha256:new"}},
    {"stream": "Successfully built 0123\n"},
]

Launch = Callable[..., int]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the build of RECIPE is logged; the code's commit is known without asking git."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(contents, "current_commit", lambda: "c0ffee")
    return tmp_path / "rooflaunch" / f"build-{RECIPE.tag.replace(':', '-')}.log"


def test_build_logs_everything_and_shows_its_steps(
    golden: Golden, docker: FakeDocker, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal and on one, whose line is cleared before each step and overwritten by the next line."""
    lines = ("  a line that is too long\n", "short\n")
    long = [{"stream": text} for text in (f"Step 1/1 : RUN {'x' * 100}\n", *lines)]
    pip = [{"stream": "Step 3/4 : ARG A\n"}, {"stream": "Step 4/4 : RUN pip install torch\n"}, *GOOD[3:5]]
    texts = []
    for messages, columns, stream in (
        *((GOOD, "80", io.StringIO()), (long, "200", io.StringIO())),
        *((long, "20", Terminal()), (pip, "60", Terminal())),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", columns)
        docker.build_messages = [*messages, GOOD[5]]
        built = build.build(docker.engine(), RECIPE, cached=False)
        assert (built.image_id, built.tag, built.cached) == ("sha256:new", RECIPE.tag, False)
        assert (built.base, built.base_digest, built.size_bytes) == ("debian:12-slim", "sha256:ba", 193_000_000)
        shown = ascii(stream.getvalue().partition("\n")[2]).replace("\\n", "\n")
        texts.append(f"{columns} columns\n{shown}\nlog:\n{log.read_text()}")
    golden("progress.txt", "\n".join(texts))
    assert [each["nocache"] for each in docker.builds] == [True] * 4


def test_build_is_asked_for_with_everything_of_the_recipe(docker: FakeDocker, log: Path) -> None:
    docker.build_messages = [*GOOD]
    build.build(docker.engine(), RECIPE, network="host")
    of_recipe = {"context": RECIPE.context(), "dockerfile": "docker/Dockerfile", "tag": RECIPE.tag, "nocache": False}
    labels = {"rooflaunch.inputs": RECIPE.inputs_hash}
    assert docker.builds == [of_recipe | {"network": "host", "args": RECIPE.build_args(), "labels": labels}]
    assert docker.names() == {RECIPE.tag: "sha256:new", "rooflaunch:cpu": "sha256:new"}
    assert log.is_file()


def test_nothing_is_built_twice(docker: FakeDocker, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docker.hold("sha256:old", RECIPE.tag, labels={"org.opencontainers.image.revision": "c0ffee"})
    docker.hold("sha256:other", "rooflaunch:cpu")
    built = build.build(docker.engine(), RECIPE)
    assert docker.builds == []
    assert not log.exists()
    assert capsys.readouterr().err == ""
    assert (built.image_id, built.cached, built.commit) == ("sha256:old", True, "c0ffee")
    assert built.text().startswith(f"image    {RECIPE.tag} (built before; nothing has changed)\n")
    assert docker.names()["rooflaunch:cpu"] == "sha256:old", "the plain name follows the code"


FIRST = {"stream": "Step 1/1 : FROM x\n"}
NO_HOST = 'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host'
RETURNED = {"error": "The command '/bin/sh -c false' returned a non-zero code: 1"}
# What the engine says, and the platform that is built for.
BROKEN: dict[str, tuple[list[Any], str | None]] = {
    "no image": ([FIRST], None),
    "a step fails with many lines": (
        [*GOOD[:3], *({"stream": f"line {number}\n"} for number in range(1, 18)), {"stream": "\n"}, RETURNED],
        None,
    ),
    "a step fails without a line": ([*GOOD[:3], {"error": "boom\n"}], None),
    "nothing begins": ([{"error": "no such image"}], None),
    "the engine goes away": ([requests.ConnectionError("Connection refused")], None),
    "the registry is out of reach": ([FIRST, {"stream": "and what it said\n"}, {"error": NO_HOST}], None),
    "no emulation": ([FIRST, {"stream": "exec /bin/sh: exec format error\n"}, RETURNED], "linux/amd64"),
}


def test_build_without_an_image(golden: Golden, docker: FakeDocker, log: Path) -> None:
    def built(messages: list[Any], platform: str | None) -> None:
        docker.build_messages = messages
        build.build(docker.engine(), replace(RECIPE, platform=platform))

    text = told({name: partial(built, *case) for name, case in BROKEN.items()})
    golden("broken_builds.txt", re.sub(rf"{log.parent}/\S+\.log", "LOG", text))
    assert docker.names() == {}
    assert log.read_text().splitlines()[-1] == NO_HOST, "of the last build of this recipe"


def test_image_that_is_gone_after_its_build(docker: FakeDocker, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker.build_messages = [*GOOD]
    monkeypatch.setattr(docker, "hold", lambda *_, **__: None)
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), RECIPE)
    assert str(caught.value) == "the engine lost image sha256:new right after the build"
    assert caught.value.hint == "launch doctor docker"
    assert log.is_file()


# Free bytes, and the flavour of an earlier image, most of whose layers are there.
SPACE: dict[str, tuple[int | None, str | None]] = {
    "too little": (13_949_999_999, None),
    "enough": (14_000_000_000, None),
    "unknown": (None, None),
    "too little for other code of the flavour": (1_949_999_999, RECIPE.flavour.name),
    "enough for other code of the flavour": (2_000_000_000, RECIPE.flavour.name),
    "too little for another flavour": (2_000_000_000, "another"),
}


@pytest.mark.usefixtures("log")
def test_space_is_asked_for_before_the_build(
    golden: Golden, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(free: int | None, earlier_flavour: str | None) -> str:
        def usage(path: str) -> SimpleNamespace:
            assert path == "/var/lib/docker"
            if free is None:
                raise FileNotFoundError
            return SimpleNamespace(free=free)

        monkeypatch.setattr("shutil.disk_usage", usage)
        docker.held.clear()
        docker.build_messages = [*GOOD]
        if earlier_flavour:
            docker.hold("sha256:old", "rooflaunch:old", labels={contents.FLAVOUR_LABEL: earlier_flavour})
        return build.build(docker.engine(DockerRootDir="/var/lib/docker"), RECIPE).image_id

    golden("space.txt", told({name: partial(built, *case) for name, case in SPACE.items()}))
    assert len(docker.builds) == 3


def test_log_that_cannot_be_written(docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        build.build(docker.engine(), RECIPE)
    path = tmp_path / "file" / "rooflaunch" / f"build-{RECIPE.tag.replace(':', '-')}.log"
    assert str(caught.value) == f"the build's log '{path}' cannot be written: Not a directory"
    assert caught.value.hint == "set XDG_CACHE_HOME to a folder you own"


def test_log_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert build.log_path("rooflaunch:cpu-01") == Path("/home/me/.cache/rooflaunch/build-rooflaunch-cpu-01.log")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_that_take_time_are_said_in_words() -> None:
    text = re.sub(r"\\\n\s*", "", (Path(__file__).parents[3] / contents.DOCKERFILE).read_text())
    steps = [line for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert len(steps) > 20
    for step in steps:
        known = [purpose for start, purpose in build.PURPOSES if re.match(start, step)]
        assert known or build.SILENT.match(step), step
    assert [build.SILENT.match(step) is None for step in ("RUN true", "FROM x")] == [True, True]


BUILT = Built(
    flavour="cpu",
    tag="rooflaunch:cpu-0123456789ab",
    image_id="sha256:new",
    digest="",
    base="debian:12-slim",
    base_digest="",
    size_bytes=1_234_000_000,
    commit="",
    seconds=61.4,
    cached=False,
)


def test_text_of_what_was_built(golden: Golden) -> None:
    pushed = replace(BUILT, digest="sha256:cd", base_digest="sha256:ba", commit="c0ffee")
    golden("built.txt", f"{BUILT.text()}\n\n{pushed.text()}\n")


def test_push_names_the_image_and_returns_the_digest(docker: FakeDocker) -> None:
    docker.hold("sha256:new", BUILT.tag)
    docker.push_messages = [
        {"status": "Pushing", "id": "0123"},
        {"progressDetail": {}, "aux": {"Tag": "cpu-0123456789ab", "Digest": "sha256:cd", "Size": 3}},
        {"status": "done"},
    ]
    pushed = build.push(docker.engine(), BUILT, "host/project/trainer")
    assert pushed == replace(BUILT, tag="host/project/trainer:cpu-0123456789ab", digest="sha256:cd")
    assert docker.pushed == ["host/project/trainer:cpu-0123456789ab"]


def test_push_that_fails(golden: Golden, docker: FakeDocker) -> None:
    def push(*messages: dict[str, Any], architecture: str = "amd64") -> None:
        docker.push_messages = messages
        build.push(docker.engine(), replace(BUILT, architecture=architecture), "host/trainer")

    docker.hold("sha256:new", BUILT.tag)
    cases = {
        "an image that no VM runs": partial(push, architecture="arm64"),
        "denied": partial(push, {"status": "Preparing"}, {"error": "denied: no"}),
        "no digest": partial(push, {"status": "done"}),
        "no word": push,
    }
    golden("broken_pushes.txt", told(cases))
    assert len(docker.pushed) == 3


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of images.toml in which no base has a digest."""
    path = tmp_path / "images.toml"
    path.write_text(contents.table_path().read_text())
    for name in contents.load_flavours(path):
        contents.write_digest(path, name, "")
    monkeypatch.setattr(contents, "table_path", lambda: path)
    return path


def test_pin_writes_what_the_registry_says(docker: FakeDocker, table: Path) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    docker.registry = {FLAVOUR.base: digest}
    assert build.pin(docker.engine(), FLAVOUR) == digest
    assert {name: row.digest for name, row in contents.load_flavours(table).items()} == {
        "cuda": "",
        "volta": "",
        "cpu": digest,
    }


@pytest.mark.parametrize("digest", ["", "md5:0123", "sha256:" + "0" * 63, "sha256:" + "0" * 65, "sha256:" + "G" * 64])
def test_pin_refuses_what_is_no_digest(digest: str, docker: FakeDocker, table: Path) -> None:
    before = table.read_text()
    docker.registry = {FLAVOUR.base: digest}
    with pytest.raises(ToolError) as caught:
        build.pin(docker.engine(), FLAVOUR)
    assert str(caught.value) == f"the registry's digest of 'debian:12-slim' is no sha256: '{digest}'"
    assert table.read_text() == before


@pytest.mark.parametrize("repository", ["host/trainer", "host:5000/trainer", "us-central1-docker.pkg.dev/p/r/trainer"])
def test_repository_that_can_be_pushed_to(repository: str) -> None:
    assert build.require_repository(repository) == repository


@pytest.fixture
def command(
    docker: FakeDocker,
    log: Path,  # noqa: ARG001 - for what it lays out
    table: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> FakeDocker:
    """`launch build` with this engine."""
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    docker.build_messages = [*GOOD]
    return docker


def test_command_builds_the_flavour(command: FakeDocker, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    command.hold("sha256:base", "mine:1")
    assert launch("build", "--base", "mine:1", "--wheel-index", "pip", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    given = {"base": "mine:1", "base_id": "sha256:base", "index": "pip", "commit": contents.current_commit()}
    recipe = contents.make_recipe(contents.load_flavours()["cpu"], **given)
    assert (told["tag"], told["image_id"], told["base"]) == (recipe.tag, "sha256:new", "mine:1")
    assert told.keys() == vars(BUILT).keys()
    assert command.builds[0]["args"]["TORCH_INDEX"] == ""


def test_command_builds_again_only_where_asked(command: FakeDocker, launch: Launch) -> None:
    assert launch("build", "--rebuild") == launch("build") == launch("build", "--rebuild") == 0
    assert [each["nocache"] for each in command.builds] == [True, True]


def test_command_pins_then_builds_on_the_digest(
    command: FakeDocker, table: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, digest = contents.load_flavours(table)["cuda"].base, "sha256:" + "ab" * 32
    command.registry = {base: digest}
    assert launch("build", "--flavour", "cuda", "--pin") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{base} is {digest}\n")
    assert f"base     {base}, {digest}\n" in captured.out
    assert command.builds[0]["args"]["BASE_IMAGE"] == f"{base}@{digest}"


def test_command_pushes(command: FakeDocker, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    command.push_messages = [{"aux": {"Digest": "sha256:cd"}}]
    assert launch("build", "--push", "--repository", "host/trainer") == 0
    assert "digest   sha256:cd\n" in capsys.readouterr().out
    assert command.pushed == [command.builds[0]["tag"].replace("rooflaunch", "host/trainer")]


@pytest.mark.parametrize(
    ("machine", "words", "platforms"),
    [
        ("arm64", ["--push", "--repository", "host/trainer"], ["linux/amd64"]),
        ("arm64", [], [None]),
        ("amd64", ["--push", "--repository", "host/trainer"], [None]),
    ],
    ids=["Apple Silicon for a VM", "Apple Silicon for itself", "x86-64"],
)
def test_an_image_for_a_vm_is_built_for_its_machine(
    machine: str,
    words: list[str],
    platforms: list[str | None],
    command: FakeDocker,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command.architecture = machine
    command.push_messages = [{"aux": {"Digest": "sha256:cd"}}]
    monkeypatch.setattr(docker_engine, "connect", command.engine)
    assert launch("build") == 0, "for this machine first: it is another image"
    command.builds.clear()
    command.build_messages = [{"aux": {"ID": "sha256:vm"}}]
    assert launch("build", "--rebuild", *words) == 0
    assert [each.get("platform") for each in command.builds] == platforms
    ours = "sha256:new" if platforms[0] else "sha256:vm"
    assert command.names()["rooflaunch:cpu"] == ours, "the plain name is for this machine"


def test_command_refuses_before_it_builds(
    golden: Golden, command: FakeDocker, table: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--flavour tpu", "--repository a/b", "--pin", "--sif it.img", "--sif no/it.sif", "--sif it.sif"]
    wrong += ["--push", *(f"--push --repository {name}" for name in ("trainer", "host/trainer:tag", "host:5000/a:tag"))]
    text = printed(launch, capsys, (f"build {words}" for words in wrong))
    golden("refused.txt", text.replace(contents.load_flavours(table)["cpu"].base, "BASE"))
    assert command.builds == []


@pytest.mark.world
@pytest.mark.parametrize("code", [0, 1])
def test_the_command_line(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Apptainer itself is in no package that this project uses: this is what it would be asked."""
    tool = tmp_path / "apptainer"
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexit {code}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = tmp_path / "it.sif"
    assert build.require_apptainer(path) == str(tool)
    if code:
        with pytest.raises(ToolError, match="apptainer ended with exit code 1"):
            build.write_sif(str(tool), "rooflaunch:cpu-1", path)
    else:
        build.write_sif(str(tool), "rooflaunch:cpu-1", path)
    assert (tmp_path / "asked").read_text() == f"build --force {path} docker-daemon:rooflaunch:cpu-1\n"
    assert capfd.readouterr().err.startswith(f"{tool} build --force {path} docker-daemon:rooflaunch:cpu-1\n")

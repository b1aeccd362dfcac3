import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.__main__ import main
from launcher.images import build, contents
from launcher.images.build import Built
from launcher.images.contents import Recipe
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError

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


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the build of RECIPE is logged; the code's commit is known without asking git."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(contents, "current_commit", lambda: "c0ffee")
    return tmp_path / "rooflaunch" / f"build-{RECIPE.tag.replace(':', '-')}.log"


def test_build_logs_everything_and_shows_its_steps(
    docker: FakeDocker, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docker.build_messages = [*GOOD]
    built = build.build(docker.engine(), RECIPE)
    assert (built.image_id, built.tag, built.cached) == ("sha256:new", RECIPE.tag, False)
    assert (built.base, built.base_digest, built.size_bytes) == ("debian:12-slim", "sha256:ba", 193_000_000)
    assert capsys.readouterr().err.splitlines() == [
        f"building {RECIPE.tag}; log: {log}",
        "step 1 of 2: the base image",
        "step 2 of 2: PyTorch",
    ]
    assert log.read_text().splitlines() == [
        "Step 1/2 : FROM x",
        " ---> 0123",
        "Step 2/2 : RUN pip install torch",
        "Collecting torch",
        "Installing",
        "",
        "Successfully built 0123",
    ]


def test_build_is_asked_for_with_everything_of_the_recipe(docker: FakeDocker, log: Path) -> None:
    docker.build_messages = [*GOOD]
    build.build(docker.engine(), RECIPE, network="host")
    assert docker.builds == [
        {
            "context": RECIPE.context(),
            "dockerfile": "docker/Dockerfile",
            "tag": RECIPE.tag,
            "nocache": False,
            "network": "host",
            "args": RECIPE.build_args(),
            "labels": {"rooflaunch.inputs": RECIPE.inputs_hash},
        }
    ]
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


def test_rebuild_is_built_again(docker: FakeDocker, log: Path) -> None:
    docker.hold("sha256:old", RECIPE.tag)
    docker.build_messages = [*GOOD]
    assert build.build(docker.engine(), RECIPE, cached=False).image_id == "sha256:new"
    assert docker.builds[0]["nocache"] is True
    assert docker.names()[RECIPE.tag] == "sha256:new"
    assert log.is_file()


def test_failing_step_is_named_with_its_last_lines(docker: FakeDocker, log: Path) -> None:
    docker.build_messages = [
        {"stream": "Step 1/2 : FROM x\n"},
        {"stream": "of step 1\n"},
        {"stream": "Step 2/2 : RUN false\n"},
        *({"stream": f"line {number}\n"} for number in range(1, 18)),
        {"stream": "\n"},
        {"error": "The command '/bin/sh -c false' returned a non-zero code: 1"},
    ]
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), RECIPE)
    assert str(caught.value).splitlines() == [
        "the build failed at step 2 of 2: RUN false",
        "  The command '/bin/sh -c false' returned a non-zero code: 1",
        *(f"  line {number}" for number in range(3, 18)),
    ]
    assert caught.value.hint == f"the whole log: {log}"
    written = log.read_text().splitlines()
    assert written[1] == "of step 1"
    assert written[-1] == "The command '/bin/sh -c false' returned a non-zero code: 1"
    assert docker.names() == {}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"stream": "Step 1/1 : FROM x\n"}], "the build ended without an image"),
        ([*GOOD[:3], {"error": "boom\n"}], "the build failed at step 2 of 2: RUN pip install torch\n  boom"),
        ([{"error": "no such image"}], "the build failed at the start\n  no such image"),
        ([requests.ConnectionError("Connection refused")], "the build was interrupted: Connection refused"),
    ],
)
def test_build_without_an_image(messages: list[Any], message: str, docker: FakeDocker, log: Path) -> None:
    docker.build_messages = messages
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), RECIPE)
    assert (str(caught.value), caught.value.hint) == (message, f"the whole log: {log}")


def test_image_that_is_gone_after_its_build(docker: FakeDocker, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker.build_messages = [*GOOD]
    monkeypatch.setattr(docker, "hold", lambda *_, **__: None)
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), RECIPE)
    assert str(caught.value) == "the engine lost image sha256:new right after the build"
    assert caught.value.hint == "launch doctor docker"
    assert log.is_file()


@pytest.mark.parametrize(
    ("free", "earlier_flavour", "refused"),
    [
        (13_949_999_999, None, "13.9 GB are free in /var/lib/docker; a build needs 14 GB"),
        (14_000_000_000, None, None),
        (None, None, None),
        (1_949_999_999, RECIPE.flavour.name, "1.9 GB are free in /var/lib/docker; a build needs 2 GB"),
        (2_000_000_000, RECIPE.flavour.name, None),
        (2_000_000_000, "another", "2.0 GB are free in /var/lib/docker; a build needs 14 GB"),
    ],
)
def test_space_is_asked_for_before_the_build(
    free: int | None,
    earlier_flavour: str | None,
    refused: str | None,
    docker: FakeDocker,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def usage(path: str) -> SimpleNamespace:
        assert path == "/var/lib/docker"
        if free is None:
            raise FileNotFoundError
        return SimpleNamespace(free=free)

    monkeypatch.setattr("shutil.disk_usage", usage)
    docker.build_messages = [*GOOD]
    if earlier_flavour:
        docker.hold("sha256:old", "rooflaunch:old", labels={contents.FLAVOUR_LABEL: earlier_flavour})
    engine = docker.engine(DockerRootDir="/var/lib/docker")
    if refused is None:
        assert build.build(engine, RECIPE).image_id == "sha256:new"
        return
    with pytest.raises(ToolError) as caught:
        build.build(engine, RECIPE)
    assert str(caught.value) == refused
    assert caught.value.hint == "docker image prune, or docker system prune"
    assert docker.builds == []
    assert not log.exists()


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


@pytest.mark.parametrize(
    ("length", "shown"), [(100, "x" * 100), (101, "x" * 99 + "…")], ids=["as long as it may be", "too long"]
)
def test_long_commands_are_shortened(
    length: int, shown: str, docker: FakeDocker, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docker.build_messages = [{"stream": f"Step 1/1 : {'x' * length}\n"}, *GOOD[5:]]
    build.build(docker.engine(), RECIPE)
    assert capsys.readouterr().err.splitlines()[1] == f"step 1 of 1: {shown}"
    assert "x" * length in log.read_text(), "the log has it whole"


def test_terminal_shows_the_newest_line_in_its_width(
    docker: FakeDocker, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    docker.build_messages = [
        {"stream": "Step 1/1 : RUN a long command\n"},
        {"stream": "  a line that is too long\n"},
        {"stream": "short\n"},
        *GOOD[5:6],
    ]
    build.build(docker.engine(), RECIPE)
    assert log.is_file()
    # Cleared before each step and at the end; an output line takes 4 + 15 columns of 20, and overwrites the last one.
    assert terminal.getvalue().partition("\n")[2] == (
        "\r\x1b[Kstep 1 of 1: RUN a \n\r    a line that is \r    short          \r\x1b[K"
    )


def test_a_wide_terminal_has_a_bar(docker: FakeDocker, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    docker.build_messages = [
        {"stream": "Step 3/4 : ARG TORCH_VERSION\n"},
        {"stream": "Step 4/4 : RUN pip install --no-cache-dir torch\n"},
        {"stream": "Collecting torch\n"},
        *GOOD[5:6],
    ]
    build.build(docker.engine(), RECIPE)
    assert log.is_file()
    bar = "[###############.....] "
    shown = terminal.getvalue().partition("\n")[2]
    assert shown == f"\r\x1b[Kstep 4 of 4: PyTorch\n\r    {bar}{'Collecting torch':<32}\r\x1b[K"


def test_steps_that_take_time_are_said_in_words() -> None:
    text = re.sub(r"\\\n\s*", "", (Path(__file__).parents[3] / contents.DOCKERFILE).read_text())
    steps = [line for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert len(steps) > 20
    for step in steps:
        known = [purpose for start, purpose in build.PURPOSES if re.match(start, step)]
        assert known or build.SILENT.match(step), step
    assert [build.SILENT.match(step) is None for step in ("RUN true", "FROM x")] == [True, True]


def test_a_registry_out_of_reach_is_no_dead_end(docker: FakeDocker, log: Path) -> None:
    refused = 'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host'
    around = "launch build --base IMAGE uses a base image that the engine has or can pull"
    docker.build_messages = [{"stream": "Step 1/1 : FROM x\n"}, {"stream": "and what it said\n"}, {"error": refused}]
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), RECIPE)
    assert caught.value.report().splitlines() == [
        "error: the build failed at step 1 of 1: FROM x",
        f"  {refused}",
        "  and what it said",
        f"hint: {around}; the whole log: {log}",
    ]


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


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "image    rooflaunch:cpu-0123456789ab",
                "id       sha256:new",
                "digest   none until it is pushed",
                (
                    "base     debian:12-slim, no digest: the image that the tag names on the day of the build "
                    "(launch build --pin)"
                ),
                "size     1.23 GB",
                "commit   unknown",
                "took     61 s",
                "next     launch local --runtime docker --image rooflaunch:cpu-0123456789ab",
            ],
        ),
        (
            {"digest": "sha256:cd", "base_digest": "sha256:ba", "commit": "c0ffee"},
            ["digest   sha256:cd", "base     debian:12-slim, sha256:ba", "commit   c0ffee"],
        ),
    ],
)
def test_text_of_what_was_built(changes: dict[str, str], lines: list[str]) -> None:
    shown = replace(BUILT, **changes).text().splitlines()  # type: ignore[arg-type]
    assert [line for line in shown if line in lines] == lines
    assert len(shown) == 8


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


def test_an_image_that_no_vm_runs_is_not_pushed(docker: FakeDocker) -> None:
    docker.hold("sha256:new", BUILT.tag)
    with pytest.raises(ToolError) as caught:
        build.push(docker.engine(), replace(BUILT, architecture="arm64"), "host/trainer")
    assert caught.value.report() == (
        f"error: '{BUILT.tag}' is an image for arm64; the VMs are amd64\nhint: launch build --push "
        "--repository HOST/NAME builds it for linux/amd64; to add emulation to an engine: docker run "
        "--privileged --rm tonistiigi/binfmt --install amd64, or the settings of Docker Desktop"
    )
    assert docker.pushed == []


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [{"status": "Preparing"}, {"error": "denied: no"}],
            "'host/trainer:cpu-0123456789ab' was not pushed: denied: no",
        ),
        ([{"status": "done"}], "the registry gave no digest for 'host/trainer:cpu-0123456789ab'"),
        ([], "the registry gave no digest for 'host/trainer:cpu-0123456789ab'"),
    ],
)
def test_push_that_fails(messages: list[dict[str, Any]], message: str, docker: FakeDocker) -> None:
    docker.hold("sha256:new", BUILT.tag)
    docker.push_messages = messages
    with pytest.raises(ToolError) as caught:
        build.push(docker.engine(), BUILT, "host/trainer")
    assert (str(caught.value), caught.value.hint) == (message, "docker login, then launch build --push again")


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


@pytest.mark.parametrize("repository", [None, "", "trainer", "host/trainer:tag", "host:5000/trainer:tag"])
def test_repository_that_cannot(repository: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        build.require_repository(repository)
    assert str(caught.value) == f"--push needs a repository without a tag; got '{repository or ''}'"
    assert caught.value.hint == "--repository us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer"


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


def launch(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["launch", "build", *words])
    return main()


def test_command_builds_the_flavour(
    command: FakeDocker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.hold("sha256:base", "mine:1")
    assert launch(monkeypatch, "--base", "mine:1", "--wheel-index", "pip", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    recipe = contents.make_recipe(
        contents.load_flavours()["cpu"],
        base="mine:1",
        base_id="sha256:base",
        index="pip",
        commit=contents.current_commit(),
    )
    assert (told["tag"], told["image_id"], told["base"]) == (recipe.tag, "sha256:new", "mine:1")
    assert told.keys() == vars(BUILT).keys()
    assert command.builds[0]["args"]["TORCH_INDEX"] == ""


@pytest.mark.parametrize(("words", "nocache"), [([], [True]), (["--rebuild"], [True, True])])
def test_command_builds_again_where_asked(
    words: list[str], nocache: list[bool], command: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(monkeypatch, "--rebuild") == 0
    assert launch(monkeypatch, *words) == 0
    assert [each["nocache"] for each in command.builds] == nocache


def test_command_pins_then_builds_on_the_digest(
    command: FakeDocker, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, digest = contents.load_flavours(table)["cuda"].base, "sha256:" + "ab" * 32
    command.registry = {base: digest}
    assert launch(monkeypatch, "--flavour", "cuda", "--pin") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{base} is {digest}\n")
    assert f"base     {base}, {digest}\n" in captured.out
    assert command.builds[0]["args"]["BASE_IMAGE"] == f"{base}@{digest}"


def test_command_pushes(
    command: FakeDocker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.push_messages = [{"aux": {"Digest": "sha256:cd"}}]
    assert launch(monkeypatch, "--push", "--repository", "host/trainer") == 0
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
    machine: str, words: list[str], platforms: list[str | None], command: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.architecture = machine
    command.push_messages = [{"aux": {"Digest": "sha256:cd"}}]
    monkeypatch.setattr(docker_engine, "connect", command.engine)
    assert launch(monkeypatch) == 0, "for this machine first: it is another image"
    command.builds.clear()
    command.build_messages = [{"aux": {"ID": "sha256:vm"}}]
    assert launch(monkeypatch, "--rebuild", *words) == 0
    assert [each.get("platform") for each in command.builds] == platforms
    ours = "sha256:new" if platforms[0] else "sha256:vm"
    assert command.names()["rooflaunch:cpu"] == ours, "the plain name is for this machine"


@pytest.mark.usefixtures("log")
def test_an_engine_without_emulation_says_how_to_get_it(docker: FakeDocker) -> None:
    failed = {"error": "The command '/bin/sh -c apt-get update' returned a non-zero code: 1"}
    docker.build_messages = [GOOD[0], {"stream": "exec /bin/sh: exec format error\n"}, failed]
    with pytest.raises(ToolError) as caught:
        build.build(docker.engine(), replace(RECIPE, platform="linux/amd64"))
    assert caught.value.hint.startswith(f"{build.EMULATION}; the whole log: ")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--flavour", "tpu"], ExitCode.USAGE, "flavour must be one of cuda, volta, cpu; got 'tpu'"),
        (["--push"], ExitCode.USAGE, "--push needs a repository without a tag; got ''"),
        (["--repository", "a/b"], ExitCode.USAGE, "--repository is only for --push; got a/b"),
        (["--pin"], ExitCode.TOOL, "cannot look up '{base}': dial tcp: no route to host"),
    ],
)
def test_command_refuses_before_it_builds(
    words: list[str],
    code: ExitCode,
    message: str,
    command: FakeDocker,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert launch(monkeypatch, *words) == code
    base = contents.load_flavours(table)["cpu"].base
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message.format(base=base)}"
    assert command.builds == []


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("it.img", "--sif makes a file whose name ends in .sif; got 'it.img'", "--sif rooflaunch.sif"),
        ("no/it.sif", "--sif: there is no folder 'no'", "make the folder, or name another one"),
        (
            "it.sif",
            "apptainer, which makes a .sif file of the image, is not installed",
            "install Apptainer here; or push the image (--push), so that the cluster's Apptainer can pull it",
        ),
    ],
)
def test_what_is_missing_is_told_before_the_build(
    name: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(RooflaunchError) as raised:
        build.require_apptainer(Path(name))
    assert (str(raised.value), raised.value.hint) == (message, hint)


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

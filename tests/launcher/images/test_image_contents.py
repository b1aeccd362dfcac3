import hashlib
import io
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.images import contents as images
from launcher.images.contents import Flavour, Recipe
from tests.launcher.script import tiny
from tests.launcher.told import Golden
from workload import __version__
from workload.contract.errors import ToolError

ROOT = Path(__file__).parents[3]
FLAVOURS = images.load_flavours()
FLAVOUR = Flavour(
    name="tiny",
    summary="for tests",
    base="debian:12-slim",
    digest="",
    torch="2.15.0",
    torchvision="0.29.2",
    index="https://example.invalid/cu132",
    capabilities=("7.5", "8.9"),
    ncu="2026.3.1.2",
    ncu_url="https://example.invalid/ncu-2026.3.1.2.tar.xz",
    ncu_sha256="0" * 64,
)
RECIPE = Recipe(
    flavour=FLAVOUR,
    base="debian:12-slim",
    base_digest="",
    index="https://example.invalid/cu132",
    files={"docker/Dockerfile": b"FROM x\n", "workload/cli.py": b"pass\n"},
)


def pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    return {found.lower().replace("_", "-"): version for found, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=FLAVOURS)
def test_row_says_exactly_what_goes_in(flavour: Flavour) -> None:
    assert re.fullmatch(r".+:.*\d.*", flavour.base), "a tag that moves, such as latest, is no base"
    assert flavour.digest == "" or re.fullmatch(r"sha256:[0-9a-f]{64}", flavour.digest)
    assert re.fullmatch(r"\d+\.\d+\.\d+ \d+\.\d+\.\d+", f"{flavour.torch} {flavour.torchvision}")
    assert re.fullmatch(r"https://download\.pytorch\.org/whl/(cpu|cu\d{3})", flavour.index)
    assert all(re.fullmatch(r"\d{1,2}\.\d", each) for each in flavour.capabilities)
    of_gpu = (flavour.driver, flavour.ncu, flavour.ncu_url, flavour.ncu_sha256)
    if flavour.name == "cpu":
        assert (flavour.capabilities, flavour.driver_below, *of_gpu) == ((), *[None] * 5)
        return
    assert re.fullmatch(r"\d{3}\.\d+\.\d+", str(flavour.driver))
    assert re.fullmatch(rf"https://.*{flavour.ncu}.*", str(flavour.ncu_url))
    assert re.fullmatch(r"[0-9a-f]{64}", str(flavour.ncu_sha256))


def test_flavours_divide_the_gpus_among_them() -> None:
    assert list(FLAVOURS) == ["cuda", "volta", "cpu"]
    assert not set(FLAVOURS["cuda"].capabilities) & set(FLAVOURS["volta"].capabilities)
    assert {"6.0", "7.0"} <= set(FLAVOURS["volta"].capabilities)
    # T4, A100, RTX 30, L4, H100.
    assert {"7.5", "8.0", "8.6", "8.9", "9.0"} <= set(FLAVOURS["cuda"].capabilities)


@pytest.mark.parametrize("name", ["cuda", "cpu"])
def test_images_hold_the_versions_that_are_tested_here(name: str) -> None:
    tested = pins("constraints.txt")
    assert (FLAVOURS[name].torch, FLAVOURS[name].torchvision) == (tested["torch"], tested["torchvision"])


def test_every_package_of_the_image_is_the_version_that_is_tested_here() -> None:
    wanted = pins("docker/requirements.txt")
    assert {"numpy", "psutil", "nvidia-ml-py", "fvcore", "google-cloud-storage", "boto3"} <= wanted.keys()
    assert wanted.items() <= pins("constraints.txt").items()


def test_installation_without_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "__file__", str(tmp_path / "launcher" / "images" / "contents.py"))
    with pytest.raises(ToolError) as caught:
        images.table_path()
    assert str(caught.value) == "this installation lacks docker/images.toml, which defines how images are built"
    assert caught.value.hint == "install rooflaunch again"
    wheel = tmp_path / "launcher" / "image" / "docker" / "images.toml"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("")
    assert images.table_path() == wheel


def test_tag_is_made_of_the_content() -> None:
    assert re.fullmatch(r"rooflaunch:tiny-[0-9a-f]{12}", RECIPE.tag)
    assert replace(RECIPE, files=dict(reversed(RECIPE.files.items()))).tag == RECIPE.tag


CHANGES: dict[str, list[dict[str, Any]]] = {
    "other inputs": [
        {"files": {**RECIPE.files, "workload/cli.py": b"pass \n"}},
        {"files": {**RECIPE.files, "workload/new.py": b""}},
        {"files": {"docker/Dockerfile": b"FROM x\n", "workload/main.py": b"pass\n"}},
        *({"flavour": replace(FLAVOUR, **{name: "1" * 64})} for name in ("torch", "torchvision", "ncu_sha256")),
    ],
    "the same inputs": [
        {"flavour": replace(FLAVOUR, ncu_url="https://mirror.invalid/ncu.tar.xz")},
        *({name: "sha256:ab"} for name in ("base", "base_digest", "base_id", "index")),
    ],
}


@pytest.mark.parametrize("inputs", CHANGES)
def test_every_change_is_another_tag_but_the_same_code_keeps_its_inputs(inputs: str) -> None:
    for change in CHANGES[inputs]:
        changed = replace(RECIPE, **change)
        assert changed.tag != RECIPE.tag, change
        assert (changed.inputs_hash == RECIPE.inputs_hash) is (inputs == "the same inputs"), change


def test_another_row_of_facts_keeps_the_tag() -> None:
    assert images.agent_code().keys() >= images.DATA_ROWS
    with_rows = replace(RECIPE, files={**RECIPE.files, **dict.fromkeys(images.DATA_ROWS, b"x = 1")})
    assert (with_rows.tag, with_rows.inputs_hash) == (RECIPE.tag, RECIPE.inputs_hash)


@pytest.mark.parametrize(
    "change", [{"summary": "in other words"}, {"driver": "999.1"}, {"digest": "sha256:ab"}, {"ncu": "2026.3"}]
)
def test_what_the_build_does_not_use_keeps_the_tag(change: dict[str, str]) -> None:
    assert replace(RECIPE, flavour=replace(FLAVOUR, **change)).tag == RECIPE.tag


def test_context_is_the_same_bytes_for_the_same_files() -> None:
    packed = RECIPE.context()
    assert packed == replace(RECIPE, files=dict(reversed(RECIPE.files.items()))).context()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        entries = archive.getmembers()
        contents = {entry.name: file.read() for entry in entries if (file := archive.extractfile(entry))}
    assert contents == RECIPE.files
    assert {(entry.mode, entry.mtime, entry.uid, entry.gid, entry.uname) for entry in entries} == {(0o644, 0, 0, 0, "")}


def test_build_arguments(golden: Golden) -> None:
    plain = replace(FLAVOUR, ncu_url=None, ncu_sha256=None, capabilities=())
    pinned = replace(RECIPE, flavour=plain, base_digest="sha256:ab", index="pip")
    arguments = [recipe.build_args() for recipe in (replace(RECIPE, commit="c0ffee"), pinned)]
    golden("build_args.json", json.dumps(arguments, indent=1).replace(__version__, "VERSION") + "\n")


def test_build_arguments_are_those_of_the_dockerfile() -> None:
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / images.DOCKERFILE).read_text(), re.MULTILINE))
    assert set(RECIPE.build_args()) == declared


def test_recipe_of_this_installation() -> None:
    recipe = images.make_recipe(FLAVOURS["cpu"])
    assert recipe.files["docker/Dockerfile"] == (ROOT / "docker/Dockerfile").read_bytes()
    packages = ("rooflaunch", "workload")
    own = {name for name in recipe.files if not name.startswith(tuple(f"{package}/" for package in packages))}
    assert own == {"docker/Dockerfile", "docker/requirements.txt", *images.AGENT_FILES}
    code = [path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.*")]
    code = [name for name in code if not name.startswith("workload/stats/")]
    assert recipe.files.keys() - own == {name for name in code if name.endswith((".py", ".toml"))}
    row = FLAVOURS["cpu"]
    assert (recipe.base, recipe.base_digest, recipe.index) == (row.base, row.digest, row.index)


def test_another_base_has_no_digest_of_the_row() -> None:
    pinned = replace(FLAVOUR, digest="sha256:ab")
    assert images.make_recipe(pinned).base_digest == "sha256:ab"
    local = images.make_recipe(pinned, base="local:1", base_id="sha256:cd", index="pip")
    assert (local.base, local.base_digest, local.base_id, local.index) == ("local:1", "", "sha256:cd", "pip")


@pytest.mark.parametrize("name", FLAVOURS)
def test_digest_is_written_into_its_row_alone(name: str, tmp_path: Path) -> None:
    table = tmp_path / "images.toml"
    before = images.table_path().read_text()
    table.write_text(before)
    digest = f"sha256:{hashlib.sha256(b'x').hexdigest()}"
    images.write_digest(table, name, digest)
    written = table.read_text()
    differing = [pair for pair in zip(before.splitlines(), written.splitlines(), strict=True) if pair[0] != pair[1]]
    assert differing == [(f'digest = "{FLAVOURS[name].digest}"', f'digest = "{digest}"')]
    assert images.load_flavours(table) == {**FLAVOURS, name: replace(FLAVOURS[name], digest=digest)}
    images.write_digest(table, name, digest)
    assert table.read_text() == written


def test_the_dockerfile_copies_the_agents_files_and_no_other_of_the_launcher() -> None:
    text = (ROOT / images.DOCKERFILE).read_text().replace("\\\n", " ")
    copied = set[str]()
    for line in re.findall(r"^COPY (launcher.*)$", text, re.MULTILINE):
        *sources, target = line.split()
        copied |= set(sources)
        for source in sources:
            assert f"{target}{Path(source).name}" == f"/opt/rooflaunch/{source}", "where it is imported from"
    assert copied == set(images.AGENT_FILES)
    assert {"!docker", "!workload", "!launcher"} <= set((ROOT / ".dockerignore").read_text().splitlines())


def test_another_backend_changes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("launcher", "docker"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(images, "__file__", str(tmp_path / "launcher/images/contents.py"))
    monkeypatch.setattr(images, "agent_code", images.agent_code.__wrapped__)
    before = {name: images.make_recipe(row).tag for name, row in FLAVOURS.items()}
    for path in (tmp_path / "launcher/backends").rglob("*.py"):
        path.write_text("changed = True\n")
    new = tmp_path / "launcher/backends/tower"
    new.mkdir()
    for name in ("__init__", "app", "guest", "machines"):
        (new / f"{name}.py").write_text("from launcher.protocol import records\n")
    assert {name: images.make_recipe(row).tag for name, row in FLAVOURS.items()} == before
    (tmp_path / "launcher/agent/agent.py").write_text("changed = True\n")
    assert images.make_recipe(FLAVOURS["cpu"]).tag != before["cpu"]


@pytest.mark.world
def test_commit_is_the_last_one_that_touched_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with what goes into an image, and a file that does not."""

    def write(*names: str, text: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)

    def commit() -> str:
        tiny.git(tmp_path, "add", "--all")
        tiny.git(tmp_path, "-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "-qm", "m")
        return tiny.git(tmp_path, "rev-parse", "HEAD")

    monkeypatch.setattr(images, "_root", lambda: tmp_path)
    assert images.current_commit() == "", "no checkout"
    tiny.git(tmp_path, "init", "--quiet")
    write("docker/Dockerfile", "docker/requirements.txt", "workload/cli.py", "README.md", text="first\n")
    assert images.current_commit() == "", "nothing is committed yet"
    first = commit()
    write("README.md", text="second\n")
    assert images.current_commit() == first
    commit()
    assert images.current_commit() == first
    write("workload/cli.py", text="second\n")
    assert images.current_commit() == f"{first}-dirty"
    second = commit()
    assert images.current_commit() == second
    write("workload/untracked.py", text="")
    assert images.current_commit() == f"{second}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.current_commit() == "", "no git"

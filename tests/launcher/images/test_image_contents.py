import hashlib
import io
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.images import contents as images
from launcher.images.contents import Flavour, Recipe
from workload import __version__
from workload.contract.errors import ToolError, UsageError

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


def test_the_flavours_are_the_three_of_the_design() -> None:
    assert list(FLAVOURS) == ["cuda", "volta", "cpu"]


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=FLAVOURS)
def test_row_says_exactly_what_goes_in(flavour: Flavour) -> None:
    repository, _, tag = flavour.base.partition(":")
    assert repository
    assert re.search(r"\d", tag), "a tag that moves, such as latest, is no base"
    assert flavour.digest == "" or re.fullmatch(r"sha256:[0-9a-f]{64}", flavour.digest)
    assert re.fullmatch(r"\d+\.\d+\.\d+", flavour.torch)
    assert re.fullmatch(r"\d+\.\d+\.\d+", flavour.torchvision)
    assert re.fullmatch(r"https://download\.pytorch\.org/whl/(cpu|cu\d{3})", flavour.index)
    assert all(re.fullmatch(r"\d{1,2}\.\d", each) for each in flavour.capabilities)
    assert len(set(flavour.capabilities)) == len(flavour.capabilities)


@pytest.mark.parametrize("name", ["cuda", "volta"])
def test_row_with_a_gpu_has_a_driver_and_a_checked_ncu(name: str) -> None:
    flavour = FLAVOURS[name]
    assert flavour.capabilities
    assert flavour.driver is not None
    assert re.fullmatch(r"\d{3}\.\d+\.\d+", flavour.driver)
    assert flavour.ncu is not None
    assert flavour.ncu_url is not None
    assert flavour.ncu_url.startswith("https://")
    assert flavour.ncu in flavour.ncu_url
    assert flavour.ncu_sha256 is not None
    assert re.fullmatch(r"[0-9a-f]{64}", flavour.ncu_sha256)


def test_row_without_a_gpu_has_neither() -> None:
    cpu = FLAVOURS["cpu"]
    assert (cpu.capabilities, cpu.driver, cpu.driver_below, cpu.ncu, cpu.ncu_url, cpu.ncu_sha256) == ((), *[None] * 5)


def test_flavours_divide_the_gpus_among_them() -> None:
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


@pytest.mark.parametrize(("digest", "base"), [("", "debian:12-slim"), ("sha256:ab", "debian:12-slim@sha256:ab")])
def test_pinned_base(digest: str, base: str) -> None:
    assert replace(FLAVOUR, digest=digest).pinned_base == base


def test_unknown_flavour() -> None:
    assert images.require_flavour("cpu") is not None
    with pytest.raises(UsageError) as caught:
        images.require_flavour("tpu")
    assert str(caught.value) == "flavour must be one of cuda, volta, cpu; got 'tpu'"
    assert caught.value.hint == "--flavour cpu"


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


@pytest.mark.parametrize(
    ("change", "same_inputs"),
    [
        ({"files": {**RECIPE.files, "workload/cli.py": b"pass \n"}}, False),
        ({"files": {**RECIPE.files, "workload/new.py": b""}}, False),
        ({"files": {"docker/Dockerfile": b"FROM x\n", "workload/main.py": b"pass\n"}}, False),
        ({"flavour": replace(FLAVOUR, torch="2.14.0")}, False),
        ({"flavour": replace(FLAVOUR, torchvision="0.29.0")}, False),
        ({"flavour": replace(FLAVOUR, ncu_sha256="1" * 64)}, False),
        ({"flavour": replace(FLAVOUR, ncu_url="https://mirror.invalid/ncu.tar.xz")}, True),
        ({"base": "ubuntu:24.04"}, True),
        ({"base_digest": "sha256:ab"}, True),
        ({"base_id": "sha256:cd"}, True),
        ({"index": "pip"}, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_change_is_another_tag_but_the_same_code_keeps_its_inputs(
    change: dict[str, Any], *, same_inputs: bool
) -> None:
    changed = replace(RECIPE, **change)
    assert changed.tag != RECIPE.tag
    assert (changed.inputs_hash == RECIPE.inputs_hash) is same_inputs


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
        contents = {}
        for entry in entries:
            content = archive.extractfile(entry)
            assert content is not None
            contents[entry.name] = content.read()
    assert contents == RECIPE.files
    assert {(entry.mode, entry.mtime, entry.uid, entry.gid, entry.uname) for entry in entries} == {(0o644, 0, 0, 0, "")}


def test_build_arguments() -> None:
    assert replace(RECIPE, commit="c0ffee").build_args() == {
        "BASE_IMAGE": "debian:12-slim",
        "BASE_DIGEST": "",
        "TORCH_VERSION": "2.15.0",
        "TORCHVISION_VERSION": "0.29.2",
        "TORCH_INDEX": "https://example.invalid/cu132",
        "CAPABILITIES": "7.5 8.9",
        "NCU_URL": "https://example.invalid/ncu-2026.3.1.2.tar.xz",
        "NCU_SHA256": "0" * 64,
        "FLAVOUR": "tiny",
        "VERSION": __version__,
        "COMMIT": "c0ffee",
    }
    plain = replace(FLAVOUR, ncu_url=None, ncu_sha256=None, capabilities=())
    given = replace(RECIPE, flavour=plain, base_digest="sha256:ab", index="pip").build_args()
    changed = {"BASE_IMAGE": "debian:12-slim@sha256:ab", "BASE_DIGEST": "sha256:ab", "TORCH_INDEX": ""}
    assert given.items() >= (changed | {"CAPABILITIES": "", "NCU_URL": "", "NCU_SHA256": "", "COMMIT": ""}).items()


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
    assert (recipe.base, recipe.base_digest, recipe.index) == (
        FLAVOURS["cpu"].base,
        FLAVOURS["cpu"].digest,
        FLAVOURS["cpu"].index,
    )


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


class Checkout:
    """A repository with what goes into an image, and a file that does not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        for name in ("docker/Dockerfile", "docker/requirements.txt", "workload/cli.py", "README.md"):
            self.write(name, "first\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "--quiet", "--message", "m")
        return self.git("rev-parse", "HEAD")

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setattr(images, "_root", lambda: tmp_path)
    return Checkout(tmp_path)


@pytest.mark.world
def test_commit_is_the_last_one_that_touched_the_image(checkout: Checkout) -> None:
    assert images.current_commit() == "", "nothing is committed yet"
    first = checkout.commit()
    assert images.current_commit() == first
    checkout.write("README.md", "second\n")
    assert images.current_commit() == first
    checkout.commit()
    assert images.current_commit() == first
    checkout.write("workload/cli.py", "second\n")
    assert images.current_commit() == f"{first}-dirty"
    second = checkout.commit()
    assert images.current_commit() == second
    checkout.write("workload/untracked.py", "")
    assert images.current_commit() == f"{second}-dirty"


def test_commit_off_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_root", lambda: tmp_path)
    assert images.current_commit() == ""


@pytest.mark.world
def test_commit_without_git(checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout.commit()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.current_commit() == ""

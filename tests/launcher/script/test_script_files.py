"""What of a folder travels with a script, and what does not."""

import io
import json
import re
import stat
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launcher.jobs import commands, watch
from launcher.jobs.commands import Script
from launcher.protocol.records import request_object, variables_object
from launcher.script import files as script_files
from launcher.script.files import archive_object, pack, place_of_data, relative_words
from launcher.script.options import ThereOptions, variables_of
from tests.launcher.own_machine import NAME, own_machine_request
from tests.launcher.script import tiny
from tests.launcher.told import Golden, told
from workload.contract.spec import RunSpec
from workload.storage.folder import Folder

pytestmark = pytest.mark.world
SCRIPT = ("train.py",)
REQUEST = own_machine_request(spec=RunSpec(script=SCRIPT).to_json())
TRACKED = tuple(sorted(tiny.FILES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.project(tmp_path / "project")


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        return archive.getnames()


CHOSEN = {
    "all that git tracks": ((), TRACKED),
    "a glob, in every folder": (("*.py",), ("package/__init__.py", "package/model.py", "package/train.py", "train.py")),
    "untracked files that are named": (("*.py", "*.md"), (*sorted({*TRACKED[1:], "notes.md"}),)),
    "never what git ignores": (("*",), (*sorted({*TRACKED, "notes.md"}),)),
    "not even by its name": (("train.py", "secrets.env", "*.pt"), ("train.py",)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_which_files_travel(name: str, folder: Path) -> None:
    include, files = CHOSEN[name]
    packed = pack(SCRIPT, folder, include=include)
    assert packed.files == files
    assert names(packed.content) == list(files)


def test_a_tracked_file_that_is_ignored_or_deleted(folder: Path) -> None:
    (folder / "package/train.py").unlink()
    tiny.git(folder, "add", "--force", "weights.pt")
    assert pack(SCRIPT, folder).files == (
        ".gitignore",
        "package/__init__.py",
        "package/model.py",
        "train.py",
        "weights.pt",
    )
    # Whoever forces git to track a file means it.
    assert "weights.pt" in pack(SCRIPT, folder, include=("*",)).files


def test_only_what_is_below_the_folder(folder: Path) -> None:
    packed = pack(SCRIPT, folder / "package")
    assert packed.files == ("__init__.py", "model.py", "train.py")


def test_the_same_files_are_the_same_archive(folder: Path, tmp_path: Path) -> None:
    again = tiny.project(tmp_path / "elsewhere")
    one, other = pack(SCRIPT, folder), pack(SCRIPT, again)
    assert one.content == other.content
    assert one.facts() == {
        "sha256": one.sha256,
        "files": 5,
        "bytes": len(one.content),
        "commit": tiny.git(folder, "rev-parse", "HEAD"),
        "data": "",
        "env": [],
        "requirements": "",
    }
    (folder / "train.py").write_text("other\n")
    changed = pack(SCRIPT, folder)
    assert changed.sha256 != one.sha256
    assert changed.commit == f"{one.commit}-dirty"


def test_an_archive_is_sent_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    store, packed = Folder(tmp_path / "store"), pack(SCRIPT, folder)
    packed.send(store, NAME)
    assert store.read(archive_object(packed.sha256), most_bytes=10**6) == packed.content
    monkeypatch.setattr(Folder, "write", lambda *_, **__: pytest.fail("it is there already"))
    packed.send(store, NAME)


def test_included_files_travel_from_a_folder_without_a_repository(tmp_path: Path) -> None:
    for name in ("train.py", ".venv/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    packed = pack(SCRIPT, tmp_path, include=("*.py",))
    assert (packed.files, packed.commit) == (("train.py",), "")


def test_what_cannot_travel(golden: Golden, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(*words: str, folder: Path = folder, include: tuple[str, ...] = (), limit: int = 10**6) -> None:
        monkeypatch.setattr(script_files, "MAX_ARCHIVE_BYTES", limit)
        pack(words, folder, include=include)

    (folder / "new.py").write_text("")
    (folder / "runs").mkdir()
    (tmp_path / "train.py").write_text("")
    relative = partial(relative_words, example="launch ssh … -- train.py --lr 0.1")
    cases = {
        "untracked": partial(packed, "new.py"),
        "untracked module": partial(packed, "-m", "new"),
        "not included": partial(packed, *SCRIPT, include=("package/*",)),
        "too large": partial(packed, *SCRIPT, limit=100),
        "no repository": partial(packed, *SCRIPT, folder=tmp_path),
        "outside of the folder": partial(relative, ("../train.py", "--x"), folder / "runs"),
        "no such module": partial(relative, ("-m", "package.none"), folder),
    }
    text = told(cases)
    (folder / "link.py").symlink_to("/etc/hostname")
    tiny.git(folder, "add", "link.py")
    text += "\n" + told({"link": partial(packed, *SCRIPT)})
    golden("cannot_travel.txt", re.sub(r"\d+ B compressed", "N B compressed", text.replace(str(tmp_path), "FOLDER")))


def test_the_script_by_its_path_below_the_folder(folder: Path) -> None:
    for words, expected in (
        ((str(folder / "train.py"), "--x"), ("train.py", "--x")),
        (("./package/train.py",), ("package/train.py",)),
        (("-m", "package.train", "a"), ("-m", "package.train", "a")),
    ):
        assert relative_words(words, folder, example="") == expected


def test_variables_lie_in_the_store_until_they_are_taken_back(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = Folder(tmp_path / "store")
    packed = replace(pack(SCRIPT, folder), variables=variables_of(["HF_TOKEN"], {"HF_TOKEN": "hf_1", "OTHER": "2"}))
    packed.send(store, NAME)
    assert json.loads(store.read(variables_object(NAME)) or b"") == {"values": {"HF_TOKEN": "hf_1"}}
    assert stat.S_IMODE(Path(store.locate(variables_object(NAME))).stat().st_mode) == 0o600
    assert packed.facts()["env"] == ["HF_TOKEN"]
    assert "hf_1" not in repr(packed) + repr(packed.facts())
    watch.settle(store, NAME, "box", 4, "no machine", now_s=1e9)
    assert store.read(variables_object(NAME)) != b"{}", "of no launch that is known here"
    store.write(request_object(NAME), replace(REQUEST, script=packed.facts()).to_bytes())
    watch.settle(store, NAME, "box", 4, "no machine", now_s=1e9)
    assert store.read(variables_object(NAME)) == b"{}"
    pack(SCRIPT, folder).send(store, "rooflaunch-other-20261121-142530-3fa9c1")
    assert [name for listed in store.objects("launches/") if "variables" in (name := listed.name)] == [
        variables_object(NAME)
    ]


@pytest.mark.parametrize(("is_fresh", "env"), [(True, ("HF_TOKEN",)), (True, ()), (False, ("HF_TOKEN",))])
def test_plan_says_that_a_bucket_may_keep_values_of_variables(
    folder: Path, is_fresh: bool, env: tuple[str, ...]
) -> None:
    script = Script(words=SCRIPT, options=ThereOptions(env=env), is_fresh=is_fresh)
    _, packed = script.packed("gcp", folder, {"HF_TOKEN": "hf_1"})
    assert (commands.ENV_IN_BUCKET in packed.notes) is (is_fresh and bool(env))


DATA: dict[str, tuple[str | None, str, bool]] = {
    "a bucket": ("gs://bucket/photos", "train.py --root={data}/a", False),
    "a bucket, from a new machine": ("gs://bucket", "train.py {data}", True),
    "a bucket of S3": ("s3://bucket/photos", "train.py {data}", True),
    "a folder there": ("/data/photos", "train.py", False),
    "none": (None, "train.py", True),
    "none, but asked for": (None, "train.py {data}", True),
    "a bucket that is copied nobody knows where": ("gs://bucket/x", "train.py", True),
    "a folder of a new machine": ("/data", "train.py {data}", True),
    "a path of here": ("photos", "train.py", False),
    "no bucket's name": ("gs://B", "train.py {data}", True),
    "no bucket's name in S3": ("s3://a_b", "train.py {data}", True),
}


def test_where_data_lies_and_variables_that_do_not_travel(golden: Golden) -> None:
    set_here = {"PATH": "/bin", "ROOFLAUNCH_MODEL": "vgg11"}
    cases: dict[str, Callable[[], object]] = {
        f"data: {name}": partial(place_of_data, text, words.split(), is_fresh=is_fresh)
        for name, (text, words, is_fresh) in DATA.items()
    }
    cases |= {f"--env {name}": partial(variables_of, [name], set_here) for name in ("A=1", "HF_TOKEN", *set_here)}
    golden("given.txt", told(cases))

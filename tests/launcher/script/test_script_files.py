"""What of a folder travels with a script, and what does not."""

import io
import json
import stat
import tarfile
from dataclasses import replace
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
from workload.contract.errors import UsageError
from workload.contract.spec import RunSpec
from workload.storage.folder import Folder

pytestmark = pytest.mark.world
EXAMPLE = "launch ssh … -- train.py --lr 0.1"
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


def test_no_repository(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/other.py").write_text("")
    with pytest.raises(UsageError) as caught:
        pack(SCRIPT, tmp_path)
    assert str(caught.value) == f"{tmp_path} is in no git repository, so it is unknown which of its files to send"
    assert caught.value.hint == "--include '*.py'"
    packed = pack(SCRIPT, tmp_path, include=("*.py",))
    assert (packed.files, packed.commit) == (("train.py",), "")


def test_what_cannot_travel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "new.py").write_text("")
    refused = {
        ("new.py",): (
            "git does not track 'new.py', and only tracked files are sent",
            "git add new.py, or --include '*.py'",
        ),
        ("-m", "new"): (
            "git does not track 'new.py', and only tracked files are sent",
            "git add new.py, or --include '*.py'",
        ),
    }
    for words, told in refused.items():
        with pytest.raises(UsageError) as caught:
            pack(words, folder)
        assert (str(caught.value), caught.value.hint) == told
    with pytest.raises(UsageError, match=r"no --include names the script, 'train\.py'"):
        pack(SCRIPT, folder, include=("package/*",))
    tiny.git(folder, "add", "--force", "weights.pt")
    monkeypatch.setattr(script_files, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(UsageError) as caught:
        pack(SCRIPT, folder)
    assert str(caught.value).startswith("the folder is too large to be sent: ")
    assert f"compressed, at most 100 B; the largest files are train.py ({len(tiny.SCRIPT)} B), package/" in str(
        caught.value
    )
    assert caught.value.hint == "--include '*.py' sends fewer files; use --data for data"
    (folder / "link.py").symlink_to("/etc/hostname")
    tiny.git(folder, "add", "link.py")
    with pytest.raises(UsageError, match=r"'link\.py' is a link out of "):
        pack(SCRIPT, folder)


def test_the_script_by_its_path_below_the_folder(folder: Path) -> None:
    (folder / "runs").mkdir()
    assert relative_words((str(folder / "train.py"), "--x"), folder, example=EXAMPLE) == ("train.py", "--x")
    assert relative_words(("./package/train.py",), folder, example=EXAMPLE) == ("package/train.py",)
    assert relative_words(("-m", "package.train", "a"), folder, example=EXAMPLE) == ("-m", "package.train", "a")
    with pytest.raises(UsageError) as caught:
        relative_words(("../train.py", "--x"), folder / "runs", example=EXAMPLE)
    assert str(caught.value) == (
        f"'../train.py' is outside of this folder, {folder / 'runs'}, and only files in this folder are sent"
    )
    assert caught.value.hint == f"cd {folder}, then run the same with -- train.py"
    with pytest.raises(UsageError, match=r"no module 'package\.none' below "):
        relative_words(("-m", "package.none"), folder, example=EXAMPLE)


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


VARIABLES = {
    "with a value": ("A=1", "--env takes only the name of a variable that is set here; got 'A=1'", "--env HF_TOKEN"),
    "not set": ("HF_TOKEN", "--env HF_TOKEN: this variable is not set here", "export HF_TOKEN=VALUE"),
    "the machine's": ("PATH", "PATH is set by the machine itself; got --env PATH", "leave --env PATH out"),
    "ours": (
        "ROOFLAUNCH_MODEL",
        "ROOFLAUNCH_MODEL is set by the machine itself; got --env ROOFLAUNCH_MODEL",
        "leave --env ROOFLAUNCH_MODEL out",
    ),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_do_not_travel(name: str) -> None:
    typed, message, hint = VARIABLES[name]
    with pytest.raises(UsageError) as caught:
        variables_of([typed], {"PATH": "/bin", "ROOFLAUNCH_MODEL": "vgg11"})
    assert (str(caught.value), caught.value.hint) == (message, hint)


DATA = {
    "a bucket": ("gs://bucket/photos", ("train.py", "--root={data}/a"), False, "gs://bucket/photos"),
    "a bucket, from a new machine": ("gs://bucket", ("train.py", "{data}"), True, "gs://bucket"),
    "a bucket of S3": ("s3://bucket/photos", ("train.py", "{data}"), True, "s3://bucket/photos"),
    "a folder there": ("/data/photos", ("train.py",), False, "/data/photos"),
    "none": (None, ("train.py",), True, ""),
}
NO_DATA = {
    "none, but asked for": (
        (None, ("train.py", "{data}"), True),
        "{data} in the script's arguments stands for its data, but --data is missing",
    ),
    "a bucket that is copied nobody knows where": (
        ("gs://bucket/x", ("train.py",), True),
        (
            "the script's arguments do not contain {data}, and the folder to which 'gs://bucket/x' is copied is "
            "not known in advance"
        ),
    ),
    "a folder of a new machine": (
        ("/data", ("train.py", "{data}"), True),
        "a new machine has no folder '/data'",
    ),
    "a path of here": (
        ("photos", ("train.py",), False),
        "--data must be gs://BUCKET/PREFIX (or s3://) or a full path there; got 'photos'",
    ),
    "no bucket's name": (
        ("gs://B", ("train.py", "{data}"), True),
        "a bucket is written gs://BUCKET/PREFIX; got 'gs://B'",
    ),
    "no bucket's name in S3": (
        ("s3://a_b", ("train.py", "{data}"), True),
        "a bucket is written s3://BUCKET/PREFIX; got 's3://a_b'",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_where_data_lies(name: str) -> None:
    text, words, is_fresh, place = DATA[name]
    assert place_of_data(text, words, is_fresh=is_fresh) == place


@pytest.mark.parametrize("name", NO_DATA)
def test_where_no_data_lies(name: str) -> None:
    (text, words, is_fresh), message = NO_DATA[name]
    with pytest.raises(UsageError) as caught:
        place_of_data(text, words, is_fresh=is_fresh)
    assert str(caught.value) == message

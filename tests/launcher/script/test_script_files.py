"""A script's archive: what of a folder travels, and how it is unpacked where it runs."""

import gzip
import hashlib
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
from launcher.protocol.records import Request, request_object, variables_object
from launcher.script import files
from launcher.script import files as script_files
from launcher.script.files import archive_object, pack, place_of_data, relative_words
from launcher.script.options import ThereOptions, variables_of
from tests.launcher.own_machine import NAME, own_machine_request
from tests.launcher.script import tiny
from tests.launcher.told import Golden, told
from workload.contract.errors import BundleError
from workload.contract.script_words import line_of
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
    relative = partial(relative_words, line=line_of("launch", "ssh"))
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
        assert relative_words(words, folder, line_of("launch", "ssh")) == expected


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


WITH_SCRIPT = own_machine_request(spec=RunSpec(script=("train.py", "--lr", "1")).to_json())


def entry(name: str, content: bytes = b"x", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in changes.items():
        setattr(made, key, value)
    return made, content


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for item, content in entries:
            made.addfile(item, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    (tmp_path / "store").mkdir()
    return Folder(tmp_path / "store")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def sent(store: Folder, content: bytes, **changes: object) -> Request:
    digest = hashlib.sha256(content).hexdigest()
    store.write(files.archive_object(digest), content)
    script = {"sha256": digest, "files": 1, "bytes": len(content), "commit": "", **changes}
    return replace(WITH_SCRIPT, script=script)


def test_files_lie_where_they_lay_and_a_second_start_finds_them(store: Folder, home: Path) -> None:
    content = archive(entry("train.py", b"print()", mode=0o4777), entry("a/b.py", b"", mode=0o600))
    request = sent(store, content, commit="c" * 40)
    place = files.unpack(request, store, home)
    assert place.folder == home / "script"
    assert place.commit == "c" * 40
    assert (place.folder / "train.py").read_bytes() == b"print()"
    assert (place.folder / "train.py").stat().st_mode & 0o7777 == 0o755
    (place.folder / "written.txt").touch()
    assert files.unpack(request, store, home) == place
    assert (place.folder / "written.txt").exists()


HOSTILE = {
    "a path out of the folder": archive(entry("../evil.py")),
    "an absolute path": archive(entry("/evil.py")),
    "a link": archive(entry("link.py", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a device": archive(entry("null", b"", type=tarfile.CHRTYPE)),
    "the same file twice": archive(entry("a.py"), entry("a.py")),
    "no archive": b"train",
    "a wrong header": archive(entry("a.py", pax_headers={"GNU.sparse.map": "a,b"})),
    "a negative size": archive(entry("a.py", pax_headers={"size": "-1"})),
    "half an archive": gzip.compress(b"train.py" * 90)[:40],
    "too many bytes": archive(entry("zeros", b"0" * 11)),
}


def test_what_is_not_unpacked_leaves_nothing_outside(
    golden: Golden, store: Folder, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED_BYTES", 10)
    requests = {name: sent(store, content) for name, content in HOSTILE.items()}
    requests["no variables"] = sent(store, archive(entry("train.py")), env=["HF_TOKEN"])
    for name in ("damaged", "missing"):
        requests[name] = sent(store, archive(entry(f"{name}.py")))
        at = files.archive_object(requests[name].script["sha256"])
        store.write(at, b"other") if name == "damaged" else Path(store.locate(at)).unlink()
    for name in requests:
        (home / name).mkdir()
    text = told({name: partial(files.unpack, request, store, home / name) for name, request in requests.items()})
    (tmp_path / "data").mkdir()
    fetch = partial(files.fetch_data, str(tmp_path / "data"), tmp_path / "here", is_over=lambda: False)
    text += "\n" + told({"no data at an address": fetch})
    # What Python says of an archive is its own.
    text = re.sub("(cannot be unpacked: ).*", r"\1…", text.replace(str(tmp_path), "FOLDER"))
    golden("not_unpacked.txt", re.sub("[0-9a-f]{64}", "SHA256", text))
    assert not list(tmp_path.rglob("evil.py"))
    assert list(home.rglob("script")) == [home / "no variables" / "script"]


def test_the_script_gets_the_variables_that_its_request_names(store: Folder, home: Path) -> None:
    request = sent(store, archive(entry("train.py")), env=["HF_TOKEN"])
    store.write(variables_object(request.name), b'{"values": {"HF_TOKEN": "hf_1", "LD_PRELOAD": "x"}}')
    place = files.unpack(request, store, home)
    assert place.variables == {"HF_TOKEN": "hf_1"}
    assert "hf_1" not in repr(place)


def test_data_is_copied_once_and_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, here = tmp_path / "data", tmp_path / "here"
    (data / "cats").mkdir(parents=True)
    (data / "cats/1.jpg").write_bytes(b"cat")
    (data / "labels.csv").write_bytes(b"1,cat")
    files.fetch_data(str(data), here, is_over=lambda: True)
    assert not here.exists()
    files.fetch_data(str(data), here, is_over=lambda: False)
    copies = {path.relative_to(here).as_posix(): path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert copies == {"cats/1.jpg": b"cat", "labels.csv": b"1,cat"}
    (data / "labels.csv").write_bytes(b"2,cat and more")
    copied: list[str] = []
    monkeypatch.setattr(files, "_copy", lambda _store, listed, _path: copied.append(listed.name))
    files.fetch_data(str(data), here, is_over=lambda: False)
    assert copied == ["labels.csv"]


def test_request_with_a_script_describes_its_files() -> None:
    request = replace(WITH_SCRIPT, script={"sha256": "0" * 64, "files": 3, "bytes": 40, "commit": "0" * 40 + "-dirty"})
    assert request.files_text == "3 files, 40 B, of commit 0000000 with changes"
    assert WITH_SCRIPT.files_text == ""
    again = Request.from_bytes(request.to_bytes())
    assert again.work.runs[0].spec == RunSpec(script=("train.py", "--lr", "1"))
    for damage in (
        {"sha256": "../x"},
        {"commit": "a b"},
        {"bytes": 10**9},
        {"files": "3"},
        {"env": ["A B"]},
        {"data": "x"},
    ):
        damaged = replace(request, script={**request.script, **damage})
        with pytest.raises(BundleError, match="script must be an object with the sha256 of an archive"):
            Request.from_bytes(damaged.to_bytes())

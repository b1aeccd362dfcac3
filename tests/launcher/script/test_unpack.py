"""A script's archive on the machine that runs it: unpacked whole, or refused."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.protocol.records import Request, variables_object
from launcher.script import files
from tests.launcher.own_machine import own_machine_request
from workload.contract.errors import BundleError, UsageError
from workload.contract.spec import RunSpec
from workload.storage.folder import Folder

REQUEST = own_machine_request(spec=RunSpec(script=("train.py", "--lr", "1")).to_json())


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
    return replace(REQUEST, script=script)


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
    "a path out of the folder": (archive(entry("../evil.py")), r"'\.\./evil\.py' in the script's archive: leaves its"),
    "an absolute path": (archive(entry("/evil.py")), "'/evil.py' in the script's archive: an absolute path"),
    "a link": (
        archive(entry("link.py", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        r"'link\.py' in the script's archive: not a regular file",
    ),
    "a device": (
        archive(entry("null", b"", type=tarfile.CHRTYPE)),
        "'null' in the script's archive: not a regular file",
    ),
    "the same file twice": (archive(entry("a.py"), entry("a.py")), "the script's archive cannot be unpacked: "),
    "no archive": (b"train", "the script's archive cannot be unpacked: "),
    "a wrong header": (
        archive(entry("a.py", pax_headers={"GNU.sparse.map": "a,b"})),
        "the script's archive cannot be unpacked: invalid literal",
    ),
    "a negative size": (archive(entry("a.py", pax_headers={"size": "-1"})), "in the script's archive: not a regular"),
    "half an archive": (gzip.compress(b"train.py" * 90)[:40], "the script's archive cannot be unpacked: "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_leaves_nothing_outside(name: str, store: Folder, home: Path) -> None:
    content, message = HOSTILE[name]
    with pytest.raises(BundleError, match=message):
        files.unpack(sent(store, content), store, home)
    assert not (home / "script").exists()
    assert not (home / "evil.py").exists()


def test_too_many_bytes(store: Folder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED_BYTES", 10)
    with pytest.raises(BundleError, match="'zeros' in the script's archive: more than 10 bytes"):
        files.unpack(sent(store, archive(entry("zeros", b"0" * 11))), store, home)


def test_missing_or_damaged(store: Folder, home: Path) -> None:
    request = sent(store, archive(entry("train.py")))
    name = files.archive_object(request.script["sha256"])
    store.write(name, archive(entry("train.py", b"other")))
    with pytest.raises(BundleError, match=f"the script's archive is damaged: .*{name}"):
        files.unpack(request, store, home)
    (Path(store.locate(name))).unlink()
    with pytest.raises(BundleError, match=f"the script's archive is missing: .*{name}"):
        files.unpack(request, store, home)


def test_the_script_gets_the_variables_that_its_request_names(store: Folder, home: Path) -> None:
    request = sent(store, archive(entry("train.py")), env=["HF_TOKEN"])
    with pytest.raises(BundleError, match="the variables of the script are not in the store"):
        files.unpack(request, store, home)
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


def test_no_data_at_an_address(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match="no data at ") as caught:
        files.fetch_data(str(tmp_path / "data"), tmp_path / "here", is_over=lambda: False)
    assert caught.value.hint == "name a place with objects: --data ADDRESS"


def test_request_with_a_script_describes_its_files() -> None:
    request = replace(REQUEST, script={"sha256": "0" * 64, "files": 3, "bytes": 40, "commit": "0" * 40 + "-dirty"})
    assert request.files_text == "3 files, 40 B, of commit 0000000 with changes"
    assert REQUEST.files_text == ""
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

"""What is particular to a store in a folder; what every store promises is in test_store_contract.py."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.workload.told import report_of, told
from workload.contract.errors import BundleError, ExitCode, ToolError
from workload.contract.operating_system import crc32c_of
from workload.storage import folder
from workload.storage.address import open_store
from workload.storage.folder import Folder
from workload.storage.ssh_remote import ABANDONED_S
from workload.storage.store import ObjectChangedError, Patience, UnreachableError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path) -> Folder:
    return Folder(root)


def names_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


def fail_with(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# Writers that are killed, and readers beside writers


@pytest.mark.world
@pytest.mark.parametrize("there", [False, True])
def test_a_writer_that_is_killed_leaves_nothing_that_is_seen(root: Path, store: Folder, there: bool) -> None:
    if there:
        store.write("a/x", b"old")
    code = (
        "import os, pathlib, signal, sys\nfrom workload.storage.folder import Folder\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.mkdir(sys.argv[1] + '/a') if not os.path.isdir(sys.argv[1] + '/a') else None\n"
        "Folder(pathlib.Path(sys.argv[1])).write('a/x', b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(root)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = [name for name in names_in(root) if name != "a/x"]
    assert [listed.name for listed in store.objects("")] == (["a/x"] if there else [])
    assert store.read("a/x") == (b"old" if there else None)
    assert store.folders("") == (["a"] if there else [])
    store.write("a/y", b"1")
    assert left in names_in(root), "its writer may be alive"
    old_s = time.time() - ABANDONED_S - 60
    os.utime(root / left, (old_s, old_s))
    store.write("a/y", b"2")
    assert left not in names_in(root)


def test_a_reader_sees_the_old_content_or_the_new(store: Folder) -> None:
    size = 50_000
    store.write("x", b"0" * size)
    is_over = threading.Event()

    def read() -> int:
        reads = 0
        while not is_over.is_set() or not reads:
            content = store.read("x")
            assert content is not None
            assert content == content[:1] * size
            reads += 1
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(30):
            store.write("x", b"%d" % (number % 10) * size)
        is_over.set()
        assert all(reader.result() for reader in readers)


def test_the_content_is_on_the_disk_before_it_has_its_name(
    store: Folder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    flush, link = os.fsync, os.link

    def flushing(descriptor: int) -> None:
        steps.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().suffix or 'folder'}")
        flush(descriptor)

    def linking(*words: Any) -> None:
        steps.append("link")
        link(*words)

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc")
    (root / "a").mkdir()
    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "link", linking)
    store.write("a/x", b"1", if_absent=True)
    assert steps == ["flush .tmp", "link", "flush folder"]


def test_an_object_that_is_written_to_in_its_place(store: Folder, root: Path) -> None:
    """As `cp` and `rsync --inplace` do, beside our own writers."""
    (root / "x").write_bytes(b"." * (3 << 20))
    (listed,) = store.objects("")

    class Sink(io.BytesIO):
        def write(self, data: Any, /) -> int:
            with (root / "x").open("r+b") as place:
                place.write(b"other")
            os.utime(root / "x", ns=(1, 1))
            return super().write(data)

    with pytest.raises(ObjectChangedError, match=r"^'x' changed while it was copied$"):
        store.download(listed, Sink())


def test_who_linked_first_knows_so_after_a_lost_answer(
    store: Folder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats the request, and is told that the name is taken: by the first one."""
    link = os.link

    def link_twice(*words: Any) -> None:
        link(*words)
        link(*words)

    monkeypatch.setattr(os, "link", link_twice)
    assert store.write("x", b"mine", if_absent=True) is True
    assert store.write("x", b"yours", if_absent=True) is False
    assert names_in(root) == ["x"]


# What is no file of ours


@pytest.mark.parametrize("name", ["link", "linked/x", "linked/new", "dangling"])
def test_links_are_not_followed(store: Folder, root: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    (root / "link").symlink_to(outside / "x")
    (root / "linked").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "made")
    source = tmp_path / "source"
    source.write_bytes(b"1")
    for use in (
        lambda: store.read(name),
        lambda: store.checksum(name),
        lambda: store.write(name, b"1"),
        lambda: store.write(name, b"1", if_absent=True),
        lambda: store.upload(name, source, crc32c=crc32c_of(io.BytesIO(b"1"))),
    ):
        assert report_of(use, BundleError, ExitCode.BAD_BUNDLE) == (
            f"error: '{root}/{name.partition('/')[0]}' is a symbolic link in folder '{root}'\n"
            "hint: give it another name, or replace the link by the file itself"
        )
    assert names_in(outside) == ["x"]
    assert (outside / "x").read_bytes() == b"secret"
    assert {(each.name, each.bytes, each.problem) for each in store.objects("")} == {
        (link, 0, "a symbolic link") for link in ("link", "linked", "dangling")
    }
    assert [(each.name, each.problem) for each in store.objects("linked/")] == [("linked", "a symbolic link")]
    assert store.folders("") == store.folders("linked/") == []


def test_the_store_itself_may_be_reached_over_a_link(store: Folder, root: Path, tmp_path: Path) -> None:
    store.write("a/x", b"1")
    (tmp_path / "alias").symlink_to(root)
    assert Folder(tmp_path / "alias").read("a/x") == b"1"
    assert [listed.name for listed in Folder(tmp_path / "alias").objects("")] == ["a/x"]


def test_a_fifo_is_no_object_and_nobody_waits_for_it(store: Folder, root: Path) -> None:
    os.mkfifo(root / "x")
    assert [(listed.name, listed.problem) for listed in store.objects("")] == [("x", "not a regular file")]
    assert store.read("x") is None
    assert store.checksum("x") is None


@pytest.mark.parametrize(
    ("name", "why"), [("a", "Is a directory|File exists"), ("a/x/y", "Not a directory|File exists")]
)
@pytest.mark.parametrize("if_absent", [False, True])
def test_a_name_between_other_objects(store: Folder, root: Path, name: str, why: str, if_absent: bool) -> None:
    store.write("a/x", b"1")
    with pytest.raises(ToolError, match=rf"^({why}) while writing '{root}/{name}'$"):
        store.write(name, b"1", if_absent=if_absent)
    assert names_in(root) == ["a/x"]


def test_names_that_the_store_uses_itself(store: Folder) -> None:
    name = ".rooflaunch-0123456789abcdef.tmp"
    with pytest.raises(BundleError, match=r"^'.*' is not allowed as a name in folder '.*'$"):
        store.write(name, b"1")


def test_a_file_has_the_rights_that_others_of_its_writer_have(store: Folder, root: Path) -> None:
    before = os.umask(0o002)
    try:
        store.write("a/x", b"1")
    finally:
        os.umask(before)
    assert (root / "a/x").stat().st_mode & 0o777 == 0o664
    assert (root / "a").stat().st_mode & 0o777 == 0o775


# Disks and servers that fail


DISK_ERRORS = ["ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO"]


def test_what_a_disk_says(store: Folder, root: Path, golden: Callable[[str, str], None]) -> None:
    texts = []
    for name in DISK_ERRORS:
        told_of = set()
        for where, call in ((Path, "mkdir"), (os, "fsync"), (os, "link")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(where, call, fail_with(getattr(errno, name)))
                told_of.add(told(name, lambda: store.write("a/x", b"1", if_absent=True)))
            (root / "a").mkdir(exist_ok=True)
        (root / "a").rmdir()
        texts += told_of
        assert len(told_of) == 1, "wherever it comes from"
    (root / "x").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", fail_with(errno.EACCES))
        texts.append(told("a file that may not be read", lambda: store.read("x")))
    for name in ("absent", "x"):
        texts.append(told(f"opening {name}", lambda: open_store(str(root / name))))  # noqa: B023 - called at once
    (root / "x").unlink()
    released = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder.os, "scandir", lambda _: released.wait(60))
        hasty = Patience(first_answer_s=0.01)
        texts.append(told("a mount that hangs", lambda: open_store(str(root), patience=hasty)))
        released.set()
    golden("disk_errors.txt", "".join(texts).replace(str(root), "/store"))
    assert names_in(root) == []


def test_file_that_changed_after_it_was_sealed_is_not_stored(store: Folder, root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"other")
    with pytest.raises(BundleError, match=r"^'x' differs from its checksum: it was changed after the run$"):
        store.upload("x", tmp_path / "source", crc32c="AAAAAA==")
    assert names_in(root) == []


def test_a_server_that_has_let_go_of_a_file_is_asked_again(store: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("x", b"1")
    stale = [True, True]
    open_file = os.open

    def flaky(path: Any, *rest: Any) -> int:
        if stale and stale.pop():
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return open_file(path, *rest)

    monkeypatch.setattr(os, "open", flaky)
    assert store.read("x") == b"1"
    stale += [True] * 3
    with pytest.raises(UnreachableError, match=r"^folder '.*' cannot be read or written: Stale file handle$"):
        store.read("x")


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "the folder below a disk that was unmounted"])
def test_a_store_that_goes_away_is_not_an_empty_one(store: Folder, root: Path, is_there: bool) -> None:
    store.write("a/x", b"1")
    root.rename(root.with_name("elsewhere"))
    if is_there:
        root.mkdir()
    for use in (
        lambda: store.read("a/x"),
        lambda: store.checksum("a/x"),
        lambda: list(store.objects("")),
        lambda: store.folders(""),
        lambda: store.write("a/x", b"1"),
    ):
        assert report_of(use, UnreachableError, ExitCode.TOOL) == (
            f"error: folder '{root}' is gone\nhint: check whether the disk is mounted, then run again"
        )
    assert names_in(root) == []


def test_addresses_of_objects_are_for_a_shell(store: Folder, root: Path) -> None:
    assert str(store) == f"folder '{root}'"
    assert store.locate("a/x y") == f"{root}/a/x y"
    assert store.removal("a/x y") == f"rm '{root}/a/x y'"
    assert store.removal("a/") == f"rm -r {root}/a"
    assert open_store(f"file://{root}").locate("x") == f"{root}/x"
    assert store.with_patience(Patience()) is store

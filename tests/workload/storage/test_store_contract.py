"""What every store promises, on every kind that there is; `places.py` names them."""

import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.lease import Lease, take
from tests import sshd
from tests.workload.storage import places
from tests.workload.storage.bundles import STEPS, content_of, make_bundle
from tests.workload.storage.gcs_server import GcsServer
from tests.workload.storage.places import Place
from tests.workload.storage.s3_server import S3Server
from workload.contract import bundle
from workload.contract.errors import BundleError
from workload.contract.operating_system import crc32c_of
from workload.storage.address import open_store, parse_source
from workload.storage.fetch import FetchReport, FetchState, fetch
from workload.storage.inventory import SealedRun, sealed_runs, upload
from workload.storage.store import ObjectChangedError, ObjectExistsError, Store, StoredObject, TooLongError

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[3]
NAME = "rooflaunch-t4-20261121-100000-0000aa"
RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000aa"
FILES = {"steps.csv": STEPS, "empty.txt": b"", "ncu/kernels.csv": b"ID\n" * 60}
HOSTILE = [
    "../evil",
    "a/../../evil",
    "/etc/evil",
    "a//b",
    "a\\..\\evil",
    "nul\0",
    "line\nfeed",
    "C:evil",
    "a/-rf",
    "a.",
    "x" * 256,
    "",
]


KINDS = [
    "gcs",
    "s3",
    pytest.param("moto", marks=pytest.mark.slow),
    "folder",
    pytest.param("ssh", marks=pytest.mark.server),
]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    own_name = re.sub(r"\W", "-", request.node.name)
    if request.param == "ssh":
        machine = request.getfixturevalue("sshd_machine")
        sshd.meet(machine, monkeypatch)
        return places.FolderOverSsh(machine, own_name)
    if request.param == "gcs":
        server: GcsServer = request.getfixturevalue("server")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        return places.Bucket(server, own_name)
    if request.param == "s3":
        return places.StrictS3Bucket(request.getfixturevalue("small_parts"), own_name)
    if request.param == "moto":
        moto: S3Server = request.getfixturevalue("moto")
        moto.meet(monkeypatch)
        return places.S3Bucket(moto, own_name)
    return places.Folder(tmp_path / "store")


@pytest.fixture
def store(place: Place) -> Store:
    return place.opened()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "made", RUN, FILES)


def listed(store: Store, prefix: str = "") -> dict[str, StoredObject]:
    return {each.name: each for each in store.objects(prefix)}


def downloaded(store: Store, name: str) -> bytes:
    content = io.BytesIO()
    store.download(listed(store)[name], content)
    return content.getvalue()


def file_of(tmp_path: Path, content: bytes) -> tuple[Path, str]:
    path = tmp_path / "source"
    path.write_bytes(content)
    return path, crc32c_of(io.BytesIO(content))


def child(place: Place, code: str, *words: str) -> subprocess.Popen[str]:
    """A process that has `store`."""
    head = f"import os, sys\n{place.preamble}\nfrom workload.storage.address import open_store\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{head}store = open_store({place.address!r}, jobs=4)\n{code}", *words],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


# Small objects


def test_what_is_written_is_read(store: Store) -> None:
    assert store.read("a/b.json") is None
    assert store.checksum("a/b.json") is None
    assert store.write("a/b.json", b"1") is True
    assert store.read("a/b.json") == b"1"
    assert store.write("a/b.json", b"22") is True, "replaced"
    assert store.read("a/b.json") == b"22"
    assert store.checksum("a/b.json") == crc32c_of(io.BytesIO(b"22"))
    assert store.write("a/empty", b"") is True
    assert store.read("a/empty") == b""
    assert store.read("a") is None, "where other objects lie is no object"
    assert store.read("a/b.json/c") is None


def test_once_only(store: Store) -> None:
    assert store.write("launches/x/result.json", b"mine", if_absent=True) is True
    assert store.write("launches/x/result.json", b"yours", if_absent=True) is False
    assert store.write("launches/x/result.json", b"mine", if_absent=True) is False
    assert store.read("launches/x/result.json") == b"mine"
    assert list(listed(store)) == ["launches/x/result.json"], "nothing temporary is left"


def test_a_private_object_is_its_owners_alone(place: Place, store: Store) -> None:
    """In a folder; a bucket has rules of its own for all of its objects."""
    for name, is_private in (("launches/a.json", False), ("launches/b.json", True)):
        assert store.write(name, b"1", is_private=is_private)
        assert store.write(name, b"2", is_private=is_private)
        assert store.read(name) == b"2"
    if isinstance(place, places.Folder):
        modes = [stat.S_IMODE((place.root / f"launches/{name}.json").stat().st_mode) for name in "ab"]
        assert modes[1] == 0o600
        assert modes[0] & 0o400


def test_of_many_threads_one_wins(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for round_number in range(5):
            name = f"round/{round_number}"

            def write(index: int, name: str = name) -> bool:
                return store.write(name, b"%d" % index, if_absent=True)

            won = list(pool.map(write, range(8)))
            assert won.count(True) == 1
            assert store.read(name) == b"%d" % won.index(True)


def test_sizes_are_capped(store: Store) -> None:
    store.write("x", b"." * 1000)
    assert store.read("x", most_bytes=1000) == b"." * 1000
    with pytest.raises(TooLongError, match=r"^'(.*/)?x' in (bucket|folder) '.*' has more than 999 bytes$"):
        store.read("x", most_bytes=999)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_not_stored(place: Place, store: Store, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    path, checksum = file_of(tmp_path, b"evil")
    for store_it in (
        lambda: store.write(name, b"evil"),
        lambda: store.write(name, b"evil", if_absent=True),
        lambda: store.upload(name, path, crc32c=checksum),
    ):
        with pytest.raises(BundleError, match=r"^'.*' is not allowed as a name in (bucket|folder) '"):
            store_it()
    path.unlink()
    assert sorted(tmp_path.rglob("*")) == before
    assert listed(place.opened()) == {}


# Lists


def test_lists_in_the_order_of_names(place: Place, store: Store) -> None:
    names = ["runs/b/run.json", "runs/a/ncu/x", "runs/a.txt", "runs/a/run.json", "runs/é", "runsnot", "launches/x/y"]
    for name in names:
        place.put(name, name.encode())
    assert list(listed(store)) == sorted(names, key=str.encode)
    assert list(listed(store, "runs/")) == sorted((n for n in names if n.startswith("runs/")), key=str.encode)
    assert list(listed(store, "runs/a")) == ["runs/a.txt", "runs/a/ncu/x", "runs/a/run.json"]
    assert list(listed(store, "runs/a/run.json")) == ["runs/a/run.json"]
    assert list(listed(store, "nothing/")) == []
    assert {each.bytes == len(name.encode()) for name, each in listed(store).items()} == {True}


def test_folders(place: Place, store: Store) -> None:
    for name in ("launches/b/status.json", "launches/a/request.json", "launches/a/x/y.json", "launches/top", "c/x"):
        place.put(name, b"1")
    assert store.folders("launches/") == ["a", "b"]
    assert store.folders("launches/a/") == ["x"]
    assert store.folders("") == ["c", "launches"]
    assert store.folders("launches/b/") == store.folders("nothing/") == []
    place.remove("c/x")
    assert store.folders("") == ["launches"], "a folder without objects is none"


def test_a_new_version_for_each_content(place: Place, store: Store) -> None:
    seen = set()
    for content in (b"1", b"2", b"1", b"22"):
        store.write("x", content)
        seen.add(listed(store)["x"].version)
    assert len(seen) == (3 if place.version_is_content else 4)
    assert "" not in seen
    assert listed(store)["x"].version == listed(store)["x"].version


# Files


def test_a_file_is_stored_once(store: Store, tmp_path: Path) -> None:
    path, checksum = file_of(tmp_path, os.urandom(3_000_000))
    assert store.upload("a/x", path, crc32c=checksum) is True
    assert downloaded(store, "a/x") == path.read_bytes()
    assert store.upload("a/x", path, crc32c=checksum) is False
    path, other = file_of(tmp_path, b"other")
    with pytest.raises(ObjectExistsError, match=r"^another '(.*/)?a/x' is in (bucket|folder) '.*' already$"):
        store.upload("a/x", path, crc32c=other)
    with pytest.raises(ObjectExistsError):
        store.upload("a/x", path, crc32c=other, replaces="1")
    assert store.upload("a/x", path, crc32c=other, replaces=listed(store)["a/x"].version) is True
    assert downloaded(store, "a/x") == b"other"


def test_an_object_that_is_replaced_or_gone_after_the_list(place: Place, store: Store) -> None:
    place.put("x", b"old")
    before = listed(store)["x"]
    place.put("x", b"new")
    with pytest.raises(ObjectChangedError, match=r"^'x' changed while it was copied$"):
        store.download(before, io.BytesIO())
    before = listed(store)["x"]
    place.remove("x")
    with pytest.raises(ObjectChangedError):
        store.download(before, io.BytesIO())


# Bundles


def test_a_bundle_and_its_manifest_last(place: Place, store: Store, made: Path) -> None:
    names: list[str] = []
    sent = upload(store, made, on_file=lambda file: names.append(file.name))
    assert (sent.files, names[-1]) == (5, "MANIFEST.json")
    assert list(listed(store)) == [f"runs/{RUN}/{name}" for name in sorted(names)]
    assert upload(place.opened(), made).files == 0
    for name in names:
        assert downloaded(store, f"runs/{RUN}/{name}") == (made / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("files", [0, 1, 3, 4])
def test_an_upload_that_is_killed_leaves_no_manifest_and_continues(
    place: Place, store: Store, made: Path, files: int
) -> None:
    code = (
        "import pathlib, signal\n"
        "from workload.storage.inventory import upload\n"
        "left = [int(sys.argv[2])]\n"
        "send = store.upload\n"
        "def killed(*words, **options):\n"
        "    if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    left[0] -= 1\n"
        "    return send(*words, **options)\n"
        "store.upload = killed\n"
        "upload(store, pathlib.Path(sys.argv[1]))\n"
    )
    with child(place, code, str(made), str(files)) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(listed(store)) == files
    assert f"runs/{RUN}/MANIFEST.json" not in listed(store)
    assert upload(store, made).files == 5 - files
    assert len(listed(store)) == 5


def test_incomplete_run_of_the_same_name_gives_way(place: Place, store: Store, made: Path) -> None:
    upload(store, made)
    place.remove(f"runs/{RUN}/MANIFEST.json")
    bundle.write_document(made, {"run_id": RUN, "status": "preempted"})
    bundle.seal(made)
    assert upload(store, made).files == 2, "the record and the manifest"
    assert downloaded(store, f"runs/{RUN}/run.json") == (made / "run.json").read_bytes()


@pytest.mark.parametrize("name", ["MANIFEST.json", "steps.csv"])
def test_bundle_that_is_incomplete_here_is_not_sent(name: str, store: Store, made: Path) -> None:
    (made / name).unlink()
    with pytest.raises(BundleError):
        upload(store, made)
    assert listed(store) == {}


def test_file_that_changes_during_the_upload_is_refused(store: Store, made: Path) -> None:
    with pytest.raises(BundleError) as caught:
        upload(store, made, on_file=lambda _: (made / "steps.csv").write_text("other"))
    assert re.sub(r"'.*runs/", "'runs/", caught.value.report()) == (
        f"error: 'runs/{RUN}/steps.csv' differs from its checksum: it was changed after the run\nhint: run again"
    )
    assert f"runs/{RUN}/MANIFEST.json" not in listed(store)


def test_a_complete_run_of_the_same_name_stays(store: Store, made: Path) -> None:
    upload(store, made)
    bundle.write_document(made, {"run_id": RUN, "status": "preempted"})
    bundle.seal(made)
    another = rf"^another complete run is in (bucket|folder) '.*' as '.*runs/{RUN}/MANIFEST\.json'$"
    with pytest.raises(BundleError, match=another) as caught:
        upload(store, made)
    assert caught.value.hint == f"to replace it: {store.removal(f'runs/{RUN}/')}"
    assert json.loads(store.read(f"runs/{RUN}/run.json") or b"")["status"] == "completed"


def test_a_complete_run_that_was_damaged_there(place: Place, store: Store, made: Path) -> None:
    upload(store, made)
    place.put(f"runs/{RUN}/steps.csv", b"other")
    damaged = r"^'runs/.*/steps\.csv' in (bucket|folder) '.*' is damaged: it differs from its manifest$"
    with pytest.raises(BundleError, match=damaged) as caught:
        upload(store, made)
    assert caught.value.hint == f"{store.removal(f'runs/{RUN}/steps.csv')}, then upload again"
    place.remove(f"runs/{RUN}/steps.csv")
    assert upload(store, made).files == 1


def test_many_bundles_at_a_time(store: Store, made: Path) -> None:
    """Two that store the same bundle at once end as one does."""
    others = [made.parent / f"{RUN[:-2]}{index:02x}" for index in range(4)]
    for other in others:
        shutil.copytree(made, other)
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda index: bool(upload(store, others[index % 4])), range(8)))
    assert len(sent) == 8
    assert len(listed(store)) == 4 * 5
    assert {downloaded(store, f"runs/{other.name}/steps.csv") for other in others} == {STEPS}


def test_how_runs_ended_is_seen_in_a_list(place: Place, store: Store, tmp_path: Path) -> None:
    ids = {f"{RUN[:-2]}{index:02x}": status for index, status in enumerate(("completed", "failed", "out_of_memory"))}
    for run_id, status in ids.items():
        upload(store, make_bundle(tmp_path / "made", run_id, FILES, status=status))
    kept = make_bundle(tmp_path / "made", RUN, FILES)
    for name in ("run.json", "MANIFEST.json"):  # by other means, without labels
        place.put(f"runs/{RUN}/{name}", (kept / name).read_bytes())
    place.put("runs/unfinished/run.json", b"{}")
    place.put("runs/foreign/MANIFEST.json", b"{}")
    assert {sealed.run_id: (sealed.status, sealed.run_key) for sealed in sealed_runs(store)} == {
        **{run_id: (status, "") for run_id, status in ids.items()},
        RUN: ("completed", ""),
        "foreign": ("", ""),
    }


def damage_of(store: Store, *, by_content: bool) -> list[str]:
    return [sealed.damage for sealed in sealed_runs(store, compared=lambda _: True, by_content=by_content)]


@pytest.mark.parametrize(
    ("name", "content", "damage"),
    [
        ("run.json", b"{", "run.json has 1 bytes, the manifest says {size}"),
        ("steps.csv", None, "steps.csv is missing"),
        ("notes.txt", b"a colleague's", ""),
    ],
    ids=["truncated", "missing", "beside"],
)
def test_damage_is_seen_in_a_list(
    name: str, content: bytes | None, damage: str, place: Place, store: Store, made: Path
) -> None:
    upload(store, made)
    assert damage_of(store, by_content=True) == [""]
    if content is None:
        place.remove(f"runs/{RUN}/{name}")
    else:
        place.put(f"runs/{RUN}/{name}", content)
    size = (made / "run.json").stat().st_size
    assert damage_of(store, by_content=False) == [damage.format(size=size)]
    assert [sealed.damage for sealed in sealed_runs(store)] == [""], "nobody asked"


def test_a_changed_byte_is_seen_by_its_checksum(place: Place, store: Store, made: Path) -> None:
    upload(store, made)
    place.put(f"runs/{RUN}/steps.csv", (made / "steps.csv").read_bytes().replace(b"0", b"1", 1))
    changed = "steps.csv was changed after the run: its crc32c differs"
    assert damage_of(store, by_content=True) == [changed]
    # The list of a folder has no checksums, and that of S3 neither.
    assert damage_of(store, by_content=False) == [changed if place.lists_all else ""]


def test_a_list_with_checksums_shows_whole_bundles(place: Place, store: Store, made: Path) -> None:
    upload(store, made)
    with place.requests() as asked:
        assert damage_of(store, by_content=True) == [""]
    # The list, and run.json, which the labels are compared with.
    assert (len(asked) == 2) is place.lists_all, asked


def test_a_key_is_a_label_too(store: Store, made: Path) -> None:
    job = {"name": "night", "task": 1, "block": 1, "position": 1}
    bundle.write_document(made, {"run_id": RUN, "status": "completed", "run_key": "abc", "job": job})
    bundle.seal(made)
    upload(store, made)
    assert list(sealed_runs(store)) == [SealedRun(run_id=RUN, status="completed", run_key="abc", job="night")]


def test_one_agent_at_a_time_has_the_lease_of_a_launch(place: Place, store: Store) -> None:
    def taken(store: Store) -> Lease:
        lease = take(store, NAME, now=lambda: 1_795_255_200.0, wait=lambda _: False)
        assert lease is not None
        return lease

    first = taken(store)
    assert not first.is_lost()
    # Eight find it stale, and each of them again what the one before it has taken: no number is given twice.
    with ThreadPoolExecutor(8) as pool:
        others = list(pool.map(lambda _: taken(place.opened()), range(8)))
    assert sorted(lease.number for lease in others) == list(range(2, 10))
    assert [lease.number for lease in (first, *others) if not lease.is_lost()] == [9]


# Fetching


def fetch_all(place: Place, output: Path, *, store: Store | None = None, **options: Any) -> FetchReport:
    """As `analyze fetch ADDRESS` does it."""
    source = parse_source(place.address)
    return fetch(store or open_store(source.address, probe=source.prefix), source, output, jobs=2, **options)


def test_what_is_uploaded_is_fetched_once(place: Place, store: Store, made: Path, tmp_path: Path) -> None:
    upload(store, made)
    report = fetch_all(place, tmp_path / "results")
    assert [(run.state, run.files) for run in report.outcomes] == [(FetchState.FETCHED, 5)]
    assert content_of(tmp_path / "results" / RUN) == content_of(made)
    report = fetch_all(place, tmp_path / "results")
    assert [(run.state, run.files) for run in report.outcomes] == [(FetchState.SKIPPED, 0)]
    bundle.write_document(tmp_path / "results" / RUN, {"run_id": RUN, "status": "completed", "made": "here"})
    bundle.seal(tmp_path / "results" / RUN)
    report = fetch_all(place, tmp_path / "results")
    assert [run.reason for run in report.outcomes] == [
        f"'{tmp_path / 'results' / RUN}' is another complete bundle: --replace overwrites it"
    ]
    assert "made" in bundle.read(tmp_path / "results" / RUN).document
    assert fetch_all(place, tmp_path / "results", replace=True).count(FetchState.FETCHED) == 1
    assert content_of(tmp_path / "results" / RUN) == content_of(made)


def test_nothing_below_an_address(place: Place, store: Store, tmp_path: Path) -> None:
    store.write("launches/x/request.json", b"{}")
    assert fetch_all(place, tmp_path / "results").outcomes == ()
    assert not (tmp_path / "results").exists()


def test_an_incomplete_run_comes_only_when_asked_for(place: Place, store: Store, made: Path, tmp_path: Path) -> None:
    upload(store, made)
    place.remove(f"runs/{RUN}/MANIFEST.json")
    report = fetch_all(place, tmp_path / "results")
    assert [run.reason for run in report.outcomes] == [
        "no MANIFEST.json: the run is still going on, or was interrupted; --incomplete fetches it"
    ]
    assert fetch_all(place, tmp_path / "results", incomplete=True).outcomes[0].files == 4
    place.put(f"runs/{RUN}/steps.csv", (made / "steps.csv").read_bytes()[:-2] + b"?\n")
    assert fetch_all(place, tmp_path / "results", incomplete=True).outcomes[0].files == 1, "what differs"
    assert (tmp_path / "results" / RUN / "steps.csv").read_bytes().endswith(b"?\n")
    # Then it ends.
    place.remove(f"runs/{RUN}/steps.csv")
    upload(store, made)
    assert [run.state for run in fetch_all(place, tmp_path / "results").outcomes] == [FetchState.FETCHED]
    assert content_of(tmp_path / "results" / RUN) == content_of(made)


def test_what_was_damaged_where_it_lies_is_refused(place: Place, store: Store, made: Path, tmp_path: Path) -> None:
    upload(store, made)
    place.put(f"runs/{RUN}/steps.csv", (made / "steps.csv").read_bytes()[:-2] + b"?\n")
    (outcome,) = fetch_all(place, tmp_path / "results").outcomes
    assert (outcome.state, outcome.reason) in (
        (FetchState.REFUSED, "damaged in the bucket: steps.csv was changed after the run: its crc32c differs"),
        (FetchState.REFUSED, "steps.csv arrived damaged 2 times"),
    )
    place.remove(f"runs/{RUN}/steps.csv")
    (outcome,) = fetch_all(place, tmp_path / "results").outcomes
    assert outcome.reason == f"damaged in the {store.kind}: steps.csv is missing"
    assert not (tmp_path / "results" / RUN / "MANIFEST.json").exists()


def test_hostile_names_that_lie_there_are_refused(place: Place, store: Store, made: Path, tmp_path: Path) -> None:
    upload(store, made)
    hostile = {
        "ncu/-rf": "a part that begins with a dash",
        "a\\..\\evil": "a backslash",
        "C:evil": "a drive letter",
        # moto's server finds no name with a line feed.
        **({} if isinstance(place, places.S3Bucket) else {"line\nfeed": "a control character"}),
        "\x1b]0;evil": "a control character",
        "MANIFEST.json.": "a part that ends in a dot or a space",
        ".fetch/x": "a name that the fetch itself uses",
        "manifest.json": "a name that the fetch itself uses",
    }
    for name in hostile:
        place.put(f"runs/{RUN}/{name}", b"evil")
    report = fetch_all(place, tmp_path / "results")
    assert {each.name.rpartition(f"runs/{RUN}/")[2]: each.reason for each in report.refused} == hostile
    assert [run.state for run in report.outcomes] == [FetchState.FETCHED]
    assert content_of(tmp_path / "results" / RUN) == content_of(made)


def test_one_run_alone(place: Place, store: Store, made: Path, tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "made", f"{RUN}b", FILES)
    for folder in (made, other):
        upload(store, folder)
    source = parse_source(f"{place.address}/runs/{RUN}")
    report = fetch(open_store(source.address, probe=source.prefix), source, tmp_path / "results")
    assert [run.run_id for run in report.outcomes] == [RUN]
    assert [path.name for path in (tmp_path / "results").iterdir()] == [RUN]


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 3])
def test_a_fetch_that_is_killed_leaves_no_manifest_and_continues(
    place: Place, store: Store, made: Path, tmp_path: Path, files: int
) -> None:
    upload(store, made)
    code = (
        "import pathlib, signal\n"
        "from workload.storage.fetch import fetch\nfrom workload.storage.address import parse_source\n"
        "source = parse_source(sys.argv[1])\n"
        "store = open_store(source.address)\n"
        "left = [int(sys.argv[3])]\n"
        "bring = store.download\n"
        "def killed(listed, sink):\n"
        "    if not left[0]:\n"
        "        sink.write(b'?'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    left[0] -= 1\n"
        "    bring(listed, sink)\n"
        "store.download = killed\n"
        "fetch(store, source, pathlib.Path(sys.argv[2]), jobs=1)\n"
    )
    output = tmp_path / "results"
    with child(place, code, place.address, str(output), str(files)) as process:
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(BundleError):
        bundle.read(output / RUN)
    assert not (output / RUN / "MANIFEST.json").exists()
    (outcome,) = fetch_all(place, output).outcomes
    # The manifest again, and the rest.
    assert (outcome.state, outcome.files) == (FetchState.FETCHED, 6 - files)
    assert content_of(output / RUN) == content_of(made)

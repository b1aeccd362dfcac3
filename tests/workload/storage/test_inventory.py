"""Names that are safe, objects sorted into runs, manifests that describe their run, and manifests in a folder."""

import json
import os
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.contract.errors import BundleError
from workload.storage import inventory
from workload.storage.inventory import Refused, RemoteRun, SealedRun
from workload.storage.store import StoredObject, why_unsafe


def listed(*names: str, size: int = 1) -> list[StoredObject]:
    return [StoredObject(name=name, bytes=size, crc32c="", version="1") for name in names]


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        (
            "",
            [
                "run.json",
                "ncu/kernels.csv",
                ".hidden",
                "a..b/c...d",
                "ab:c",
                "messungen/größe.csv",
                "x" * 255,
                "a-b/c-",
            ],
        ),
        ("a drive letter", ["a:b", "ncu/C:evil", "C:/evil", "c:evil"]),
        ("a part of more than 255 bytes", ["x" * 256, "ü" * 128]),
        ("an absolute path", ["/etc/passwd"]),
        ("leaves its folder", ["../evil", "a/../../evil", ".."]),
        ("a backslash", ["a\\..\\evil"]),
        ("a part that begins with a dash", ["-rf", "ncu/-rf"]),
        ("an empty part", ["a//b", "a/", ""]),
        ("a control character", ["nul\0x", "line\nfeed", "\x1b[31mred", "\x9b31mred"]),
        ("a part that ends in a dot or a space", ["a/./b", "run.json.", "folder /run.json"]),
        ("no valid Unicode", ["\ud800"]),
    ],
)
def test_unsafe_name_is_refused_with_a_reason(reason: str, names: list[str]) -> None:
    assert {why_unsafe(name) for name in names} == {reason}


@given(st.text(st.sampled_from("ab./\\:C \0\n~é\ud800")) | st.text())
def test_safe_name_stays_below_its_folder_everywhere(name: str) -> None:
    if why_unsafe(name):
        return
    posix, windows = Path("/base") / name, PureWindowsPath("D:\\base") / name
    assert os.path.normpath(posix) == str(posix)
    assert posix.is_relative_to("/base")
    assert posix != Path("/base")
    assert windows.is_relative_to("D:\\base")
    assert ".." not in windows.parts


def test_objects_are_sorted_into_runs_and_hostile_names_are_refused() -> None:
    stock = inventory.take_stock(
        listed(
            "p/runs/b/run.json",
            "p/runs/a/MANIFEST.json",
            "p/runs/a/ncu/kernels.csv",
            "p/runs/README.md",  # lies beside the runs: not ours to judge
            "p/runs/../evil",
            "p/runs//evil",
            "p/runs/a/../b/run.json",
        ),
        "p/runs/",
    )
    assert [(run.run_id, sorted(run.objects)) for run in stock.runs] == [
        ("a", ["MANIFEST.json", "ncu/kernels.csv"]),
        ("b", ["run.json"]),
    ]
    assert [run.manifest is None for run in stock.runs] == [False, True]
    assert stock.refused == (
        Refused(name="p/runs/../evil", reason="leaves its folder"),
        Refused(name="p/runs//evil", reason="an absolute path"),
        Refused(name="p/runs/a/../b/run.json", reason="leaves its folder"),
    )


def test_empty_object_that_shows_a_folder_in_consoles_is_ignored() -> None:
    shown = listed("runs/", "runs/a/", "runs/a/ncu/", size=0)
    assert inventory.take_stock(shown, "runs/") == inventory.Inventory(runs=(), refused=())
    stock = inventory.take_stock(listed("runs/a/ncu/", size=3), "runs/")
    assert stock.refused == (Refused(name="runs/a/ncu/", reason="an empty part"),)


def test_names_that_the_fetch_itself_uses_are_refused() -> None:
    refused = ["manifest.json", "MANIFEST.json.tmp", "MANIFEST.json/x", ".fetch/x"]
    kept = ["run.json", "ncu/MANIFEST.json", "MANIFEST.json"]
    stock = inventory.take_stock(listed(*(f"runs/a/{name}" for name in refused + kept)), "runs/")
    reason = "a name that the fetch itself uses"
    assert stock.refused == tuple(Refused(name=f"runs/a/{name}", reason=reason) for name in refused)
    assert list(stock.runs[0].objects) == kept


# Manifests

RECORD = {"name": "run.json", "bytes": 1, "sha256": "0", "crc32c": "AAAAAA=="}
NOT_JSON = "MANIFEST.json is not readable JSON"
NO_SCHEMA = "MANIFEST.json has no schema_version"
NO_FILES = "MANIFEST.json does not list its files"
VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
ROWS = st.fixed_dictionaries(
    {"name": VALUES | st.just("run.json"), "bytes": VALUES, "sha256": VALUES | st.text(), "crc32c": VALUES | st.text()}
)


def wanted(content: bytes) -> tuple[inventory.Wanted, ...]:
    """Files that a run with a run.json of one byte, whose checksum is in the list, is to have."""
    record = StoredObject(name="runs/a/run.json", bytes=1, crc32c="AAAAAA==", version="1")
    return inventory.wanted_files(RemoteRun(run_id="a", objects={"run.json": record}), content)


def with_row(**other: Any) -> bytes:
    return json.dumps({"schema_version": 3, "files": [RECORD, RECORD | other]}).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, NOT_JSON) for content in (b"", b"{", b"\xff", b"[" * 100_000)),
        *((b'{"schema_version": %s}' % version, NO_SCHEMA) for version in (b"true", b"0", b'"3"')),
        (b"[]", NO_SCHEMA),
        (b"{}", NO_SCHEMA),
        *((b'{"schema_version": 3, "files": %s}' % rows, NO_FILES) for rows in (b"7", b'["run.json"]')),
        (b'{"schema_version": 3}', NO_FILES),
        *((with_row(**other), NO_FILES) for other in ({"name": 7}, {"bytes": True}, {"colour": "red"})),
        (b'{"schema_version": 3, "files": []}', "MANIFEST.json lists no run.json"),
        (with_row(name="../evil"), "MANIFEST.json names '../evil': leaves its folder"),
        (with_row(name="/evil"), "MANIFEST.json names '/evil': an absolute path"),
        (with_row(name="MANIFEST.json"), "MANIFEST.json names 'MANIFEST.json': a name that the fetch itself uses"),
        (with_row(name="absent"), "absent is missing"),
        (with_row(bytes=3), "run.json has 1 bytes, the manifest says 3"),
        (with_row(crc32c="AAAAAB=="), "run.json was changed after the run: its crc32c differs"),
    ],
)
def test_manifest_that_does_not_describe_its_run_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(BundleError) as caught:
        wanted(content)
    assert str(caught.value) == f"damaged in the bucket: {reason}"


def test_manifest_of_another_schema_is_refused() -> None:
    with pytest.raises(BundleError, match=r"^MANIFEST\.json has bundle schema 99; this version reads schema 3$"):
        wanted(b'{"schema_version": 99}')


@given(
    st.binary() | st.lists(ROWS | VALUES).map(lambda rows: json.dumps({"schema_version": 3, "files": rows}).encode())
)
def test_any_manifest_is_read_or_refused(content: bytes) -> None:
    try:
        assert {each.name for each in wanted(content)} == {"run.json"}
    except BundleError as error:
        assert str(error).startswith("damaged in the bucket: ")  # noqa: PT017 - both ends are right


def test_runs_in_a_folder_of_results_are_listed_by_their_manifests_alone(tmp_path: Path) -> None:
    manifests = {
        "a-run": '{"labels": {"status": "completed", "run_key": "00ff", "job": "night", "seconds": "31.5"}}',
        "b-older": '{"files": []}',
        "c-damaged": "{",
        "d-other": "[]",
        "e-odd": '{"labels": {"status": 3, "seconds": "nan"}}',
        "f-odd": '{"labels": []}',
    }
    for name, text in manifests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "MANIFEST.json").write_text(text)
    (tmp_path / "open").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert list(inventory.sealed_in(tmp_path)) == [
        SealedRun(run_id="a-run", status="completed", run_key="00ff", job="night", seconds=31.5),
        *(SealedRun(run_id=name, status="", run_key="") for name in ("b-older", "e-odd", "f-odd")),
    ]
    assert list(inventory.sealed_in(tmp_path / "none")) == []

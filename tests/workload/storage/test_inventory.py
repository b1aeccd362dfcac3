import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.contract.errors import BundleError
from workload.storage import inventory
from workload.storage.inventory import Refused, SealedRun
from workload.storage.store import StoredObject


def listed(*names: str, size: int = 1) -> list[StoredObject]:
    return [StoredObject(name=name, bytes=size, crc32c="", version="1") for name in names]


def test_taking_stock() -> None:
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


def test_what_shows_a_folder_in_consoles_is_no_object() -> None:
    shown = listed("runs/", "runs/a/", "runs/a/ncu/", size=0)
    assert inventory.take_stock(shown, "runs/") == inventory.Inventory(runs=(), refused=())
    stock = inventory.take_stock(listed("runs/a/ncu/", size=3), "runs/")
    assert stock.refused == (Refused(name="runs/a/ncu/", reason="an empty part"),)


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["manifest.json"], {"manifest.json": "a name that the fetch itself uses"}),
        (["MANIFEST.json.tmp"], {"MANIFEST.json.tmp": "a name that the fetch itself uses"}),
        (["MANIFEST.json/x"], {"MANIFEST.json/x": "a name that the fetch itself uses"}),
        ([".fetch/x"], {".fetch/x": "a name that the fetch itself uses"}),
        (["ncu/MANIFEST.json", "MANIFEST.json"], {}),
    ],
)
def test_names_that_the_fetch_itself_uses_are_refused(names: list[str], refused: dict[str, str]) -> None:
    stock = inventory.take_stock(listed("runs/a/run.json", *(f"runs/a/{name}" for name in names)), "runs/")
    assert {each.name.removeprefix("runs/a/"): each.reason for each in stock.refused} == refused
    assert set(stock.runs[0].objects) == {"run.json", *names} - refused.keys()


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
ROWS = st.fixed_dictionaries(
    {"name": VALUES | st.just("run.json"), "bytes": VALUES, "sha256": VALUES | st.text(), "crc32c": VALUES | st.text()}
)


@given(
    st.binary() | st.lists(ROWS | VALUES).map(lambda rows: json.dumps({"schema_version": 3, "files": rows}).encode())
)
def test_any_manifest_is_read_or_refused(content: bytes) -> None:
    run = inventory.RemoteRun(run_id="a", objects={"run.json": listed("runs/a/run.json")[0]})
    try:
        assert {each.name for each in inventory.wanted_files(run, content)} == {"run.json"}
    except BundleError as error:
        assert str(error).startswith("damaged in the bucket: ")  # noqa: PT017 - both ends are right


def test_what_lies_in_a_folder_of_results_is_seen_by_its_manifests_alone(tmp_path: Path) -> None:
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

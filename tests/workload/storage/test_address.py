"""Addresses of stores, and what they name: a place, one run there, and the command that searches it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workload.told import report_of
from workload.contract.errors import ExitCode, UsageError
from workload.storage.address import parse_source

RUN = "run-1"
BUCKETS = ["", "/", "/runs", "/a/b", "/a/b/", "/a/runs/", f"/runs/{RUN}", f"/a/runs/{RUN}/"]
MACHINES = ["box/~/.roof", "box/~/a b", f"me@box:2222/srv/x/runs/{RUN}/", "box/a/runs"]
# `store` has runs/, `results` has bundles beside each other, `absent` does not exist.
STORES = ["store", "store/", "store/runs", f"store/runs/{RUN}", "file://{here}/sto%72e", "results/.."]
FOLDERS = [*STORES, "results", f"results/{RUN}/", "absent", f"absent/runs/{RUN}", "."]
# The last is a folder of Cloud Storage's, and no name for S3.
NAMES = [":/abc", "://", "://A_B/x", "://ab", "://-ab", f"://{'a' * 64}", "://a..b", "://a_b"]
NO_PLACES = ["", "S3://abc/x", "http://abc/x", "GS://abc", "az:/x", "file://host/x", "file:/x", "file://"]


def described(text: str) -> str:
    try:
        source = parse_source(text)
    except UsageError:
        report = report_of(lambda: parse_source(text), UsageError, ExitCode.USAGE)
        return f"{text!r}\n{report}\n"
    return f"{text!r} is {source}: {source.address!r}, {source.folder!r}, {source.run_id!r}\n  {source.search()}\n"


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    for path in (f"store/runs/{RUN}", f"results/{RUN}"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    texts = [
        *(f"gs://abc{path}" for path in BUCKETS),
        *(f"s3://my.bucket-1{path}" for path in BUCKETS[-2:]),
        *(f"ssh://{path}" for path in MACHINES),
        *(path.format(here=tmp_path) for path in FOLDERS),
        *(f"{scheme}{name}" for scheme in ("gs", "s3") for name in NAMES),
        *NO_PLACES,
        "gs://abc/runs/..",
    ]
    golden("addresses.txt", "".join(described(text) for text in texts).replace(str(tmp_path), "{here}"))

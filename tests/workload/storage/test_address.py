from pathlib import Path

import pytest

from workload.contract.errors import UsageError
from workload.storage.address import FetchSource, parse_source

RUN = "20261121T142530Z-local-cpu-resnet18-b16-fp32-0000aa"


@pytest.mark.parametrize(
    ("text", "folder", "run_id"),
    [
        ("gs://abc", "runs/", None),
        ("gs://abc/", "runs/", None),
        ("gs://abc/runs", "runs/", None),
        ("gs://abc/a/b", "a/b/runs/", None),
        ("gs://abc/a/b/", "a/b/runs/", None),
        ("gs://abc/a/runs/", "a/runs/", None),
        (f"gs://abc/runs/{RUN}", "runs/", RUN),
        (f"gs://abc/a/runs/{RUN}/", "a/runs/", RUN),
    ],
)
def test_sources(text: str, folder: str, run_id: str | None) -> None:
    source = parse_source(text)
    assert source == FetchSource(address="gs://abc", folder=folder, run_id=run_id)
    assert str(source) == f"gs://abc/{folder}" + (f"{run_id}/" if run_id else "")


@pytest.mark.parametrize(
    ("text", "address", "run_id", "search"),
    [
        ("ssh://box/~/.roof", "ssh://box/~/.roof", None, "ssh box 'find ~/.roof -name MANIFEST.json'"),
        ("ssh://box/~/a b", "ssh://box/~/a b", None, """ssh box 'find ~/'"'"'a b'"'"' -name MANIFEST.json'"""),
        (
            f"ssh://me@box:2222/srv/x/runs/{RUN}/",
            "ssh://me@box:2222/srv/x",
            RUN,
            "ssh -p 2222 me@box 'find /srv/x -name MANIFEST.json'",
        ),
        ("ssh://box/a/runs", "ssh://box/a", None, "ssh box 'find /a -name MANIFEST.json'"),
    ],
)
def test_sources_on_another_machine(text: str, address: str, run_id: str | None, search: str) -> None:
    source = parse_source(text)
    assert source == FetchSource(address=address, folder="runs/", run_id=run_id)
    assert source.search() == search


@pytest.mark.parametrize(
    ("text", "address", "folder", "run_id"),
    [
        ("s3://abc", "s3://abc", "runs/", None),
        ("s3://my.bucket-1/a/runs/", "s3://my.bucket-1", "a/runs/", None),
        (f"s3://abc/a/runs/{RUN}/", "s3://abc", "a/runs/", RUN),
    ],
)
def test_sources_in_s3(text: str, address: str, folder: str, run_id: str | None) -> None:
    source = parse_source(text)
    assert source == FetchSource(address=address, folder=folder, run_id=run_id)
    assert source.search() == f"aws s3 ls --recursive {address}/ | grep MANIFEST.json"


@pytest.mark.parametrize("path", [":/abc", "://", "://A_B/x", "://ab", "://-ab"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_source_is_a_bucket(scheme: str, path: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_source(scheme + path)
    assert caught.value.report() == (
        f"error: a bucket is written {scheme}://BUCKET/PREFIX; got '{scheme}{path}'\n"
        f"hint: analyze fetch {scheme}://BUCKET/PREFIX -o results"
    )


@pytest.mark.parametrize(("text", "is_valid"), [("a" * 63, True), ("a" * 64, False), ("a_b", False), ("a..b", False)])
def test_names_of_buckets_in_s3(text: str, is_valid: bool) -> None:
    assert parse_source(f"gs://{text}").address == f"gs://{text}"
    if is_valid:
        assert parse_source(f"s3://{text}").address == f"s3://{text}"
    else:
        with pytest.raises(UsageError):
            parse_source(f"s3://{text}")


@pytest.mark.parametrize("text", ["", "S3://abc/x", "http://abc/x", "GS://abc", "az:/x"])
def test_a_source_is_a_bucket_or_a_folder(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_source(text)
    assert caught.value.report() == (
        "error: a place for bundles is written gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, ssh://USER@HOST/FOLDER, "
        f"FOLDER or file:///FOLDER; got '{text}'\n"
        "hint: analyze fetch gs://BUCKET/PREFIX -o results"
    )


@pytest.mark.parametrize("text", ["file://host/x", "file:/x", "file://"])
def test_a_file_address_names_no_host(text: str) -> None:
    with pytest.raises(UsageError, match=f"^a folder is written file:///FOLDER, or FOLDER; got '{text}'$"):
        parse_source(text)


@pytest.mark.parametrize(
    ("words", "address", "folder", "run_id"),
    [
        ("store", "store", "runs/", None),
        ("store/", "store", "runs/", None),
        ("store/runs", "store", "runs/", None),
        (f"store/runs/{RUN}", "store", "runs/", RUN),
        ("results", "results", "", None),
        (f"results/{RUN}/", "results", "", RUN),
        ("absent", "absent", "", None),
        (f"absent/runs/{RUN}", "absent", "runs/", RUN),
        ("file://{here}/sto%72e", "{here}/store", "runs/", None),
        (".", ".", "", None),
        ("results/..", "{here}", "", None),
    ],
)
def test_sources_in_folders(
    words: str, address: str, folder: str, run_id: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (f"store/runs/{RUN}", f"results/{RUN}"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    source = parse_source(words.format(here=tmp_path))
    expected = address.replace(".", str(tmp_path)) if address == "." else address.format(here=tmp_path)
    assert source == FetchSource(address=expected, folder=folder, run_id=run_id)
    assert str(source) == f"{expected}/{folder}" + (f"{run_id}/" if run_id else "")


def test_a_run_named_in_the_source_cannot_leave_either() -> None:
    with pytest.raises(UsageError, match=r"^'\.\.' is not a run: leaves its folder$"):
        parse_source("gs://abc/runs/..")

from pathlib import Path

import pytest

from workload.contract import vocabulary
from workload.contract.errors import ExitCode, UsageError
from workload.contract.spec import Profile, RunSpec, arguments, resolve

NEITHER = "is neither a file nor a list of metrics of ncu"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("dram__bytes.sum", ["dram__bytes.sum"]),
        (" dram__bytes.sum,sm__x.avg.pct , dram__bytes.sum,", ["dram__bytes.sum", "sm__x.avg.pct"]),
        ("launch__registers_per_thread", ["launch__registers_per_thread"]),
    ],
)
def test_list(text: str, names: list[str]) -> None:
    assert vocabulary.metric_names(vocabulary.parse_metrics(text)) == names
    assert vocabulary.parse_metrics(vocabulary.parse_metrics(text)) == vocabulary.parse_metrics(text)


def test_file_has_commas_lines_and_comments() -> None:
    Path("names.txt").write_bytes(
        b"\xef\xbb\xbf# of the rubric\r\ndram__bytes.sum,\r\nsm__x.avg # trailing\r\n\r\nl2__a.sum, sm__x.avg\r\n"
    )
    assert vocabulary.parse_metrics("names.txt") == "dram__bytes.sum,sm__x.avg,l2__a.sum"
    # A list wins, although a file has this name: the list comes from another machine, which has read its file.
    Path("dram__bytes.sum").write_text("l2__a.sum")
    assert vocabulary.parse_metrics("dram__bytes.sum") == "dram__bytes.sum"


@pytest.mark.parametrize(
    ("value", "content", "message"),
    [
        ("absent.txt", None, f"'absent.txt' {NEITHER}"),
        ("", None, f"'' {NEITHER}"),
        ("dram__bytes.sum,Dram", None, f"'dram__bytes.sum,Dram' {NEITHER}"),
        ("regex:dram.*", None, f"'regex:dram.*' {NEITHER}"),
        (".", None, f"'.' {NEITHER}"),
        ("empty.txt", b"# nothing\n", "'empty.txt' names no metric"),
        (
            "bad.txt",
            b"dram__bytes.sum\n\nsm__x; rm -rf /\n",
            "'bad.txt', line 3: 'sm__x;' is not the name of a metric of ncu",
        ),
    ],
)
def test_wrong_value_is_one_line(value: str, content: bytes | None, message: str) -> None:
    if content is not None:
        Path(value).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        resolve({"ncu_metrics": value, "profile": "ncu"}, {}, None)
    assert (str(caught.value), caught.value.exit_code) == (message, ExitCode.USAGE)
    assert caught.value.hint.startswith("--ncu-metrics ")


def test_names_and_not_the_file_travel() -> None:
    Path("names.txt").write_text("dram__bytes.sum\nsm__x.avg\n")
    spec = resolve({"ncu_metrics": "names.txt", "profile": "ncu"}, {}, None).spec
    words = arguments(spec)
    assert words[words.index("--ncu-metrics") + 1] == "dram__bytes.sum,sm__x.avg"
    Path("names.txt").unlink()
    assert RunSpec.from_json(spec.to_json()) == spec
    assert arguments(RunSpec(profile=Profile.NCU)) == ["--profile", "ncu"]


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_metrics_need_ncu(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"^--ncu-metrics needs --profile ncu; got --profile {kind}$"):
        resolve({"ncu_metrics": "dram__bytes.sum", "profile": kind}, {}, None)

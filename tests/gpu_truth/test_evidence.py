"""Evidence is read from a folder or its archive; damaged, foreign and hostile files are refused."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.__main__ import main
from benchmarks.gpu_truth import collect
from benchmarks.gpu_truth import evidence as module
from benchmarks.gpu_truth.evidence import read
from tests.gpu_truth.answers import document, h100, save
from tests.workload.told import told
from workload.contract.errors import BundleError, ExitCode

# Collected on a machine without a GPU, with `--quick`.
CPU = Path(__file__).with_name("cpu")


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return path


def good(name: str = "loops") -> bytes:
    return json.dumps(document(name, {"ratios": [1.0]})).encode()


def test_a_folder_and_its_archive_say_the_same(tmp_path: Path) -> None:
    folder = save(tmp_path / "truth", h100())
    packed = collect.pack(folder)
    assert read(folder) == read(packed)
    assert set(read(folder).parts) == set(h100())


def test_what_a_machine_without_a_gpu_leaves_is_read() -> None:
    found = read(CPU)
    assert found.of("machine")["auto"] == "cpu"
    assert found.of("counters") is None
    assert found.why_not("counters").startswith("it needs an NVIDIA GPU: torch")
    assert found.why_not("unheard-of") == "part unheard-of was not collected"


# How to damage it.
DAMAGED: dict[str, Callable[[Path], Path]] = {
    "an empty folder": lambda path: path,
    "no JSON": lambda path: raw(path, b"{"),
    "deep JSON": lambda path: raw(path, b"[" * 100000),
    "no text": lambda path: raw(path, b"\xff\xfe"),
    "a list": lambda path: raw(path, b"[]"),
    "another part": lambda path: raw(path, good("names")),
    "another format": lambda path: raw(path, good().replace(b"rooflaunch", b"another")),
    "a newer schema": lambda path: raw(path, good().replace(b'"schema": 1', b'"schema": 2')),
    "no archive": lambda path: whole(path / "x.tar.gz", b"text"),
    "half an archive": lambda path: whole(
        path / "x.tar.gz", archive(path / "y", {"parts/loops.json": good()}).read_bytes()[:80]
    ),
    "an archive of something else": lambda path: archive(path / "x.tar.gz", {"readme": b"x"}),
    "a name that climbs out": lambda path: archive(path / "x.tar.gz", {"../parts/loops.json": good()}),
    "a name from the root": lambda path: archive(path / "x.tar.gz", {"/parts/loops.json": good()}),
    "too many files": lambda path: archive(path / "x.tar.gz", {f"{number}": b"" for number in range(101)}),
    "a large part": lambda path: archive(path / "x.tar.gz", {"parts/loops.json": b" " * (5 << 20)}),
    "a bomb": lambda path: archive(path / "x.tar.gz", {"zeros": bytes(70 << 20)}),
    "a bomb without a table": lambda path: whole(path / "x.tar.gz", gzip.compress(bytes(70 << 20))),
}


def raw(folder: Path, text: bytes) -> Path:
    (folder / "parts").mkdir()
    (folder / "parts" / "loops.json").write_bytes(text)
    return folder


def whole(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def test_what_is_damaged_or_foreign_in_words(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    texts = []
    for number, (title, damage) in enumerate(DAMAGED.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = damage(folder)
        texts.append(told(title, lambda: read(path)).replace(str(folder), "/truth"))  # noqa: B023 - called at once
    golden("damaged_evidence.txt", "".join(texts))


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo("parts/loops.json")
            member.type, member.linkname = kind, "/etc/passwd"
            packed.addfile(member)
    with pytest.raises(BundleError, match="holds no evidence"):
        read(path)


def test_a_member_larger_than_a_part_is_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_LIMIT_BYTES", 10)
    with pytest.raises(BundleError, match="is larger than"):
        read(archive(tmp_path / "x.tar.gz", {"parts/loops.json": good()}))


# --- the command


def analyze(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["analyze", "gpu-truth", *words])
    return main()


def test_the_table_of_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze(str(CPU), monkeypatch=monkeypatch) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no GPU in this evidence"
    assert lines[1].split() == ["claim", "verdict", "expected", "note"]
    assert lines[2] == "the compiler builds constants with HFMA2.MMA  holds        on 8.0 and 9.0 alone"
    assert lines[3] == "    8.0 8, 8.9 0, 9.0 8"
    assert lines[-1] == "2 holds, 0 disproved, 63 not settled"
    assert sum(line.startswith("note ") for line in lines) == 4, "the same reason is said once"
    assert max(map(len, lines)) <= 100


def test_json_and_csv_have_every_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path / "truth", h100())
    assert analyze(str(folder), "--format", "json", monkeypatch=monkeypatch) == ExitCode.DONE
    rows = json.loads(capsys.readouterr().out)
    assert rows[1] == {
        "claim": "they run on the tensor pipe",
        "expected": "on 8.0 and 9.0 alone",
        "found": "8 instructions",
        "verdict": "holds",
        "why": None,
        "parts": ["machine", "counters"],
    }
    assert analyze(str(folder), "--format", "csv", monkeypatch=monkeypatch) == ExitCode.DONE
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


@pytest.mark.parametrize(("name", "code"), [("absent", ExitCode.USAGE), ("", ExitCode.BAD_BUNDLE)])
def test_errors_of_the_command(
    name: str, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze(str(tmp_path / name), monkeypatch=monkeypatch) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "\nhint: " in captured.err

import gzip
from pathlib import Path

import pytest

from tests.analysis.in_process import Analyze
from tests.analysis.readers.logs.trainer_logs import pytorch_examples
from workload.contract.errors import ExitCode

LOG = "iter_time_ms,lr,timestamp\n" + "".join(f"200,0.1,{1763159640 + 0.2 * step:.1f}\n" for step in range(5))
OPTIONS = ("--model", "resnet50", "--batch-size", "64", "-o", "out")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(LOG.replace("0.1,", "0.2,").encode()))
    (tmp_path / "train.log").write_text(pytorch_examples())
    (tmp_path / "notes.md").write_text("# What I did\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    return tmp_path


def test_a_bad_file_never_stops_the_others_and_the_end_says_what_was_left_out(folder: Path, analyze: Analyze) -> None:
    names = sorted(path.name for path in folder.iterdir())
    code, out, err = analyze("import", *names, *OPTIONS)
    assert code == ExitCode.USAGE
    assert len(out.splitlines()) == 3
    assert all((folder / line / "MANIFEST.json").is_file() for line in out.splitlines())
    lines = err.splitlines()
    assert lines[:2] == [
        "note       log.csv: columns that are not read: lr",
        "note       log.csv.gz: columns that are not read: lr",
    ]
    assert lines[2].startswith(
        "error: 'notes.md' is not a known kind of log; it begins with '# What I did'; readable are CSV"
    )
    assert lines[4].startswith("error: 'picture.png' looks like a binary file; readable are CSV logs with a row per")
    assert lines[5] == "hint: import text"
    assert lines[6:] == [
        (
            "note       train.log: the wall time is the sum of the log's times of iterations, without other work "
            "between them"
        ),
        (
            "note       train.log: a row every 10 iterations: the other iterations count in the wall time, but "
            "not as steps"
        ),
        "left out   2 of 5 files: notes.md, picture.png",
    ]


def test_notes_of_many_runs_are_told_once(folder: Path, analyze: Analyze) -> None:
    (folder / "runs.csv").write_text("gpu,model,batch,img_per_s\nT4,vgg16,8,50\nL4,vgg16,8,90\nA100,vgg16,8,300\n")
    code, out, err = analyze("import", "runs.csv", *OPTIONS)
    assert code == ExitCode.DONE
    assert len(out.splitlines()) == 3
    assert err.splitlines() == [
        "note       runs.csv: the file says model 'vgg16', but the import was given 'resnet50' (3 runs)",
        "note       runs.csv: the file says batch size '8', but the import was given '64' (3 runs)",
        "note       runs.csv: a table with a row per run: nothing in the table confirms its figures (3 runs)",
    ]

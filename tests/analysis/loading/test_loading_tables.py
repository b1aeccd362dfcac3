import shutil
from pathlib import Path

import pytest

import analysis
from analysis.loading.run_row import CEILING_COLUMNS, RUN_COLUMNS
from benchmarks.synthetic_bundles import make
from workload.contract import bundle
from workload.contract.errors import ExitCode, NothingToDoError, UsageError


def test_tables_of_two_runs(tmp_path: Path) -> None:
    first, second = make(tmp_path, 1), make(tmp_path, 2, spec__model="vgg16", status="failed", timing__step_s=None)
    results = analysis.load(tmp_path)
    assert results.problems == ()
    assert list(results.runs.columns) == list(RUN_COLUMNS)
    assert results.runs["path"].tolist() == [str(first), str(second)]
    assert results.runs["model"].tolist() == ["resnet18", "vgg16"]
    assert results.runs["step_median_s"].isna().tolist() == [False, True]
    assert results.runs["batch_size"].dtype == "int64"
    assert str(results.runs["started_at"].dtype) == "datetime64[us, UTC]"
    assert results.runs["notes"].tolist() == [[], []]
    assert list(results.steps.columns) == ["run_id", *bundle.STEP_COLUMNS]
    assert list(results.telemetry.columns) == ["run_id", *bundle.TELEMETRY_COLUMNS]
    assert list(results.ceilings.columns) == ["run_id", *CEILING_COLUMNS]
    assert results.steps["run_id"].value_counts().to_dict() == {first.name: 110, second.name: 110}
    assert results.steps["phase"].value_counts().to_dict() == {"measured": 200, "warmup": 20}
    assert len(results.telemetry) == 40
    assert len(results.ceilings) == 6
    numbers = set(bundle.STEP_COLUMNS) - {"phase"}
    assert {str(results.steps[name].dtype) for name in numbers} == {"float64"}
    assert {str(results.telemetry[name].dtype) for name in bundle.TELEMETRY_COLUMNS} == {"float64"}


def test_one_run_twice_is_counted_once(tmp_path: Path) -> None:
    original = make(tmp_path / "a", 1)
    # The same folder under two names needs no word, a copy does: copies would pass for repeats.
    assert len(analysis.load(tmp_path, tmp_path / "a", original).runs) == 1
    assert analysis.load(tmp_path, original).problems == ()
    shutil.copytree(original, tmp_path / "b" / "copy")
    results = analysis.load(tmp_path)
    assert len(results.runs) == 1
    assert [str(problem) for problem in results.problems] == [
        f"{tmp_path / 'b' / 'copy'}: contains the same run as {original}; counted once"
    ]
    assert len(results.steps) == 110


def test_runs_with_other_seeds_and_first_runs_of_a_tuning_are_left_out_beside_others(tmp_path: Path) -> None:
    seeds = make(tmp_path / "tune", 1, spec__change="seeds(shift=1)")
    assert analysis.load(tmp_path).runs["path"].tolist() == [str(seeds)]
    plain, changed = make(tmp_path / "tune", 2), make(tmp_path / "tune", 3, spec__change="channels_last")
    make(tmp_path / "tune", 4, spec__change="channels_last", job={"name": "tune-first-runs"})
    results = analysis.load(tmp_path)
    assert results.runs["path"].tolist() == [str(plain), str(changed)]
    assert set(results.steps["run_id"]) == {plain.name, changed.name}


def test_remarks_of_a_loaded_run_are_problems_each_time(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, environment__device="a GPU")
    for _ in range(2):
        results = analysis.load(tmp_path)
        assert len(results.runs) == 1
        assert [str(problem) for problem in results.problems] == [
            f"{folder}: run.json: environment.device is not an object; left out"
        ]


def test_nothing_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(NothingToDoError) as caught:
        analysis.load(tmp_path)
    assert caught.value.report() == f"error: no bundle in '{tmp_path}'\nhint: launch local -o {tmp_path}"
    assert caught.value.exit_code is ExitCode.NOTHING_TO_DO
    assert list(tmp_path.iterdir()) == []
    folder = make(tmp_path, 1)
    (folder / "MANIFEST.json").unlink()
    with pytest.raises(NothingToDoError) as caught:
        analysis.load(tmp_path)
    assert caught.value.report() == (
        f"error: no complete bundle in '{tmp_path}'; {folder}: incomplete: no MANIFEST.json, because the run "
        "did not end by itself; its steps so far are in steps.csv\nhint: run again: launch local -o "
        f"{tmp_path}"
    )


def test_what_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("")
    cases = {
        tmp_path / "nope": (
            f"error: results folder '{tmp_path}/nope' does not exist\nhint: "
            "name a folder that contains bundles, for example: results"
        ),
        log: (
            f"error: '{log}' is a file, not a folder of bundles\nhint: if it is the log of a run: analyze import {log}"
        ),
    }
    for path, report in cases.items():
        with pytest.raises(UsageError) as caught:
            analysis.load(path)
        assert caught.value.report() == report
    with pytest.raises(UsageError, match="no results folder was named"):
        analysis.load()


def test_record_is_the_whole_run_json(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    results = analysis.load(tmp_path)
    assert results.record(folder.name) == bundle.read(folder).record
    assert results.record(folder.name).environment.device.driver_version == "580.95.05"
    with pytest.raises(UsageError, match="no run is called 'x'"):
        results.record("x")


KERNELS = """"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","dram__bytes.sum"
"","","","","","","","","ns","byte"
"0","1","python","gemm","(1, 1, 1)","(1, 1, 1)","0","7.5","2000","4096"
"1","1","python","copy","(1, 1, 1)","(1, 1, 1)","0","7.5","1000","1024"
"""


def with_kernels(folder: Path, text: str) -> None:
    (folder / "ncu").mkdir()
    (folder / "ncu" / "kernels.csv").write_text(text)
    bundle.seal(folder)


def test_kernels_are_read_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, profiled, broken = (make(tmp_path, number) for number in (1, 2, 3))
    with_kernels(profiled, KERNELS)
    with_kernels(broken, "==PROF== Connected\n==WARNING== No kernels were profiled.\n")
    results = analysis.load(tmp_path)
    assert set(results.kernel_files()) == {profiled.name, broken.name}
    assert plain.name not in results.kernel_files()
    kernels = results.kernels
    assert kernels["run_id"].tolist() == [profiled.name] * 2
    assert kernels["launch"].tolist() == [0, 1]
    assert kernels["duration_s"].tolist() == pytest.approx([2e-6, 1e-6])
    assert kernels["dram_bytes"].tolist() == [4096, 1024]
    assert [problem.path for problem in results.kernel_problems] == [str(broken / "ncu" / "kernels.csv")]
    monkeypatch.setattr("analysis.readers.ncu.read", lambda _: pytest.fail("read twice"))
    assert results.kernels is kernels

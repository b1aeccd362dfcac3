import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from workload.contract import bundle
from workload.contract.errors import NothingToDoError

# Ten iterations of 0.2 s by the time stamps, of which the timer sees 0.15 s, and every tenth 0.05 s; one slow start.
LOG = "env,device,model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp\n" + "".join(
    f"envA,cuda:0,resnet50,64,{index},{time_ms},{rate},{1763159640 + 0.2 * index:.1f}\n"
    for index, (time_ms, rate) in enumerate([(150, 426.67)] * 5 + [(50, 1280)] + [(150, 426.67)] * 5)
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def written(tmp_path: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def imported(tmp_path: Path, text: str | bytes, name: str = "log.csv", **options: Any) -> dict[str, Any]:
    """Run.json of the imported file."""
    (folder,) = import_file(written(tmp_path, text, name), UserFacts(**options), output=tmp_path / "results")
    return dict(bundle.read(folder).document)


def test_log_becomes_a_sealed_bundle(tmp_path: Path, results: Path) -> None:
    record = imported(tmp_path, LOG)
    assert re.fullmatch(r"20251114T223400Z-imported-enva-resnet50-b64-unknown-[0-9a-f]{6}", record["run_id"])
    folder = results / record["run_id"]
    assert [file.name for file in bundle.read(folder).files] == ["imported/log.csv", "run.json", "steps.csv"]
    assert (folder / "imported" / "log.csv").read_text() == LOG
    about = record["imported"]
    assert about["file"] == "log.csv"
    assert about["sha256"] == hashlib.sha256(LOG.encode()).hexdigest()
    assert (about["kind"], about["bytes"], about["rows"], about["rows_cut"]) == ("iterations", len(LOG), 11, 0)
    assert about["columns"]["step_s"]["name"] == "iter_time_ms"
    assert about["columns"]["step_s"]["factor"] == 1e-3
    assert about["columns"]["step_s"]["source"]
    assert about["labels"] == {"model": "resnet50", "batch_size": "64", "device_type": "cuda:0", "place": "envA"}
    assert (about["ignored"], about["given"]) == ([], {})


def test_timer_and_time_stamps_are_both_kept(tmp_path: Path, results: Path) -> None:
    imported(tmp_path, LOG)
    loaded = analysis.load(results)
    assert loaded.problems == ()
    steps = loaded.steps
    assert steps["phase"].tolist() == ["warmup"] + ["measured"] * 10
    assert steps["step_s"].tolist() == pytest.approx([0.15] * 5 + [0.05] + [0.15] * 5)
    assert steps["ended_at_s"].tolist() == pytest.approx([0.2 * index for index in range(11)], abs=1e-6)
    assert steps["images"].tolist() == [64.0] * 11
    assert steps[["data_s", "forward_s", "backward_s", "optimizer_s", "loss"]].isna().all().all()
    (run,) = loaded.runs.to_dict("records")
    # 10 iterations of 64 images between the first time stamp and the last.
    assert run["images_per_s"] == pytest.approx(640 / 2.0, rel=1e-6)
    assert run["claimed_images_per_s"] == pytest.approx((10 * 426.67 + 1280) / 11)
    assert (run["images"], run["steps"], run["iterations"]) == (640, 10, 10)
    assert run["step_median_s"] == pytest.approx(0.15)
    assert run["explained_fraction"] == pytest.approx((9 * 0.15 + 0.05) / 2.0, rel=1e-6)


def test_nothing_is_invented(tmp_path: Path, results: Path) -> None:
    record = imported(tmp_path, LOG)
    known = {"model": "resnet50", "batch_size": 64, "device": "cuda", "iterations": 10}
    assert {name: value for name, value in record["spec"].items() if value is not None} == known
    assert record["spec_origin"] == dict.fromkeys(known, "file")
    assert record["environment"]["device"] == {"type": "cuda"}
    assert record["environment"]["place"] == "envA"
    assert {name for name, value in record["environment"].items() if value is not None} == {"place", "device"}
    absent = ("error", "repeat", "complexity", "ceilings", "bound", "memory", "usage", "cost")
    assert [record[name] for name in absent] == [None] * len(absent)
    run = analysis.load(results).runs.iloc[0]
    assert bool(run["imported"])
    for name in ("precision", "device_name", "backend", "ceiling_flop_per_s", "torch", "zone"):
        assert run.isna()[name], name


def test_same_file_again_is_nothing_to_do(tmp_path: Path, results: Path) -> None:
    folder = results / imported(tmp_path, LOG)["run_id"]
    with pytest.raises(NothingToDoError) as caught:
        imported(tmp_path, LOG, "renamed.csv", model="vgg16")
    assert caught.value.report() == (
        f"error: '{tmp_path}/renamed.csv' is imported already: {folder}\n"
        f"hint: remove {folder} first to import it with other options"
    )
    assert len(analysis.load(results).runs) == 1
    imported(tmp_path, LOG.replace("envA", "envB"))
    assert len(analysis.load(results).runs) == 2


@pytest.mark.parametrize("name", ["../../../etc", "a/b", "<script>alert(1)</script>", "x\ny", "é" * 150, "...", "-"])
def test_hostile_names_stay_inside_the_output_folder(tmp_path: Path, results: Path, name: str) -> None:
    record = imported(tmp_path, LOG, model=name, gpu=name)
    assert record["spec"]["model"] == name
    (folder,) = [path for path in results.iterdir() if path.is_dir()]
    assert folder.name == record["run_id"]
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", folder.name)
    assert analysis.load(results).runs["model"].tolist() == [name]

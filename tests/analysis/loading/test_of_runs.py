import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.audit import RULES
from analysis.audit.rule import breaches
from analysis.causes import causes_of
from analysis.loading import cases, index
from analysis.loading.cases import Case, OfRuns
from analysis.report.evidence import command_of
from benchmarks.synthetic_bundles import make
from tests.analysis.own_peaks import own_t4
from workload.contract import bundle, peaks

pytestmark = pytest.mark.usefixtures("of_few_bundles_too")
CALLS: list[str] = []


def model_of(case: Case) -> str:
    CALLS.append(case.run_id)
    return f"{case['model']} {case.step_s.size} {case.record.spec.optimizer} {case.telemetry['t_s'].size}"


def seed_of(case: Case) -> Any:
    return {"seed": case.record.spec.seed, "sum": case.step_s.sum()}


def found(results: Path, function: Callable[[Case], Any] = model_of, loaded: Any = None) -> tuple[list[Any], int]:
    """The function's results of all runs, and how often it was called."""
    CALLS.clear()
    runs = OfRuns(cases=cases.cases(loaded or analysis.load(results)))
    return runs.of(function), len(CALLS)


def test_second_look_computes_nothing(results: Path) -> None:
    first = found(results)
    assert first == (["resnet18 100 sgd 20"] * 3, 3)
    assert found(results) == (first[0], 0)
    # Another function has results of its own, and those of the first stay.
    assert [row["seed"] for row in found(results, seed_of)[0]] == [0] * 3
    assert found(results) == (first[0], 0)
    assert found(results, seed_of)[0] == found(results, seed_of)[0]


def resealed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / "run.json").read_text())
    change(document)
    bundle.write_document(folder, document)
    bundle.seal(folder)


def test_only_changed_runs_are_computed_again(results: Path) -> None:
    found(results)
    first, second, _ = sorted(path for path in results.iterdir() if path.name != index.FOLDER)
    # A field that is no column, and a step.
    resealed(first, lambda document: document["spec"].update(optimizer="adam"))
    (second / "steps.csv").write_text((second / "steps.csv").read_text().rsplit("\n", 2)[0] + "\n")
    bundle.seal(second)
    make(results, 7)
    assert found(results) == (["resnet18 100 adam 20", "resnet18 99 sgd 20", *["resnet18 100 sgd 20"] * 2], 3)


def test_tables_that_were_changed_in_memory_count(results: Path) -> None:
    found(results)
    loaded = analysis.load(results)
    loaded.runs.loc[1, "model"] = "vgg16"
    assert found(results, loaded=loaded) == (["resnet18 100 sgd 20", "vgg16 100 sgd 20", "resnet18 100 sgd 20"], 1)
    assert found(results)[1] == 0


def test_other_code_invalidates_all_results(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(results)
    folder = tmp_path / "sources"
    shutil.copytree(Path(analysis.__file__).parent / "audit", folder)
    for name, text in (("rule.py", "# a comment\n"), ("debug_variables.toml", "# another\n")):
        with (folder / name).open("a") as file:
            file.write(text)
        monkeypatch.setattr(index, "CODE_FOLDERS", (folder,))
        index.code_version.cache_clear()
        assert found(results)[1] == 3
        assert found(results)[1] == 0
    monkeypatch.undo()
    index.code_version.cache_clear()


def test_kept_findings_and_causes_are_those_that_are_computed(tmp_path: Path) -> None:
    odd = {"explained_fraction": 0.5, "data_wait_fraction": 0.4, "images_per_s": 1.0}
    for number in range(2):
        make(tmp_path, number, **{f"timing__{name}": value for name, value in odd.items()})
    loaded = analysis.load(tmp_path)
    every = cases.cases(loaded)
    functions = (breaches, causes_of, command_of)
    kept = [[OfRuns(cases=every).of(function) for function in functions] for _ in range(2)]
    assert kept[0] == kept[1] == [[function(case) for case in every] for function in functions]
    assert all(kept[0])
    # Without an index the same findings are computed by each rule alone.
    alone = [finding for rule in RULES for finding in analysis.audit.audit(loaded, rules=[rule])]
    assert analysis.audit.by_severity(alone) == analysis.audit.audit(loaded)
    assert len(alone) > 1


def peak_of(case: Case) -> Any:
    CALLS.append(case.run_id)
    return peaks.find(case["device_name"], precision="fp32").flop_per_s


def test_other_peaks_are_another_key(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results.parent)
    first = found(results, peak_of)
    own_t4(Path("peaks.toml"), tflop_per_s=11)
    with_own = found(results, peak_of)
    assert (first, with_own) == (([8.1e12] * 3, 3), ([11e12] * 3, 3))
    assert found(results, peak_of) == (with_own[0], 0)
    Path("peaks.toml").unlink()
    assert found(results, peak_of) == first


class Meanwhile:
    """A value that computes a cached property of its case while it is pickled, as another thread may do."""

    def __init__(self) -> None:
        self.case: cases.Case | None = None

    def __reduce__(self) -> tuple[type, tuple[str]]:
        assert self.case
        assert self.case.step_s.size
        return str, ("pickled",)


def test_a_case_can_be_pickled_while_another_thread_uses_it(results: Path) -> None:
    loaded, late = cases.cases(analysis.load(results))[0], Meanwhile()
    late.case = replace(loaded, facts={**loaded.facts, "job_name": late})
    copy = pickle.loads(pickle.dumps(late.case))
    assert "step_s" in vars(late.case)
    assert "step_s" not in vars(copy)
    assert copy["job_name"] == "pickled"
    assert (copy.run_id, copy.step_s.tolist()) == (loaded.run_id, loaded.step_s.tolist())


@pytest.mark.slow
@pytest.mark.world
def test_work_that_has_begun_is_found(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = cases.cases(analysis.load(results))
    monkeypatch.setattr(cases, "FEWEST_SHARED", 1)
    monkeypatch.setattr(cases, "PART", 1)
    monkeypatch.setattr(cases.processes, "_cpus", lambda: 2)
    runs = OfRuns(cases=every)
    runs.begin(causes_of, command_of)
    runs.begin(command_of, breaches)
    assert runs.of(command_of) == list(map(command_of, every))
    assert runs.of(breaches) == list(map(breaches, every))
    assert runs.of(causes_of) == list(map(causes_of, every))

import json
from pathlib import Path

from workload import log
from workload.contract import bundle
from workload.contract.errors import InterruptedRunError, OutOfDeviceMemoryError, RunFailedError
from workload.contract.ranks import own_folder
from workload.contract.record import Record, Repeat, Spec, Status
from workload.contract.spec import Device, RunSpec
from workload.contract.trainer import Context
from workload.run import ranks, unfinished

KILLED = RunFailedError("the trainer was killed by SIGSEGV", hint="")
NO_MEMORY = OutOfDeviceMemoryError("no memory", hint="")
STOPPED = InterruptedRunError("interrupted by Ctrl-C", hint="")
OUTSIDE = {"host": {"kernel": "6.1"}, "container": {"image": "x"}}
ON_CPU = RunSpec(device=Device.CPU)


def outcomes(
    folders: list[Path], output: Path, *, code: int = -11, error: Exception | None = KILLED, repeats: int = 1
) -> list[tuple[str, str | None, int]]:
    """Status, error and number of each bundle."""
    spec = RunSpec(device=Device.CPU, repeats=repeats)
    settled = unfinished.seal_all(code, error, folders, output=output, spec=spec, context=Context(outside=OUTSIDE))
    records = [bundle.read(folder).document for folder in settled]
    return [(record["status"], record["error"], record["repeat"]["index"]) for record in records]


def make_bundle(output: Path, name: str, status: Status, *, sealed: bool) -> Path:
    folder = bundle.create(output, name)
    spec = Spec(model="resnet18", batch_size=4)
    bundle.write_record(folder, Record(run_id=name, status=status, repeat=Repeat(index=1, of=1), spec=spec))
    (folder / bundle.STEPS).write_text("step,loss\n0,6.9\n1,6.")
    if sealed:
        bundle.seal(folder)
    return folder


def test_a_trainer_that_died_before_its_bundle_gets_one(tmp_path: Path) -> None:
    for number, (code, error, status, said) in enumerate(
        (
            (-11, KILLED, "failed", str(KILLED)),
            (7, NO_MEMORY, "out_of_memory", str(NO_MEMORY)),
            (1, None, "failed", "the trainer ended with a traceback"),
        )
    ):
        assert outcomes([], tmp_path / f"{number}", code=code, error=error) == [(status, said, 1)]


def test_a_bundle_without_a_trainer_names_the_gpu_that_was_chosen(tmp_path: Path) -> None:
    context = Context(outside={**OUTSIDE, "device": {"gpu_index": 1}})
    killed = RunFailedError("killed", hint="run again")
    folder = unfinished.write_new(tmp_path, RunSpec(device=Device.CUDA), context, killed)
    assert bundle.read(folder).document["environment"]["device"] == {"type": "cuda", "gpu_index": 1}


def test_a_rank_that_hangs_seals_the_bundle_with_its_open_log(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path, "killed", Status.INTERRUPTED, sealed=False)
    with log.to_file(own_folder(folder, 1) / bundle.LOG):
        ranks.seal_for_rank_0(folder, [])
        log.LOGGER.error("error: interrupted by SIGTERM")
    assert bundle.read(folder).record.error == "rank 0 was killed; the bundle keeps the steps so far"


def test_complete_bundles_stay_and_the_next_repeat_is_recorded(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path, "run-1", Status.COMPLETED, sealed=True)
    before = (folder / bundle.RECORD).read_bytes()
    assert outcomes([folder], tmp_path, repeats=3) == [("completed", None, 1), ("failed", str(KILLED), 2)]
    assert (folder / bundle.RECORD).read_bytes() == before


def test_a_repeat_that_has_told_its_failure_is_not_followed_by_another(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path, "run-1", Status.FAILED, sealed=True)
    assert outcomes([folder], tmp_path, code=1, error=None, repeats=3) == [("failed", None, 1)]


def test_what_is_known_from_outside_is_recorded(tmp_path: Path) -> None:
    context = Context(place="here", runtime="docker", outside=OUTSIDE, spec_origin={"model": "option"})
    folder = unfinished.write_new(tmp_path, ON_CPU, context, OutOfDeviceMemoryError("no memory", hint="less"))
    found = bundle.read(folder)
    where = found.document["environment"]
    assert "-here-resnet18-b16-fp32-" in found.document["run_id"]
    assert (where["place"], where["runtime"]) == ("here", "docker")
    recorded = {name: {fact: where[name].get(fact) for fact in facts} for name, facts in OUTSIDE.items()}
    assert recorded == OUTSIDE
    assert (where["device"], found.document["spec_origin"]) == ({"type": "cpu"}, {"model": "option"})
    assert found.document["notes"] == [unfinished.NOTE]
    assert {file.name for file in found.files} == {"run.json", "steps.csv", "telemetry.csv", "log.txt"}
    assert json.loads((folder / "run.json").read_text())["timing"]["started_at"]


def test_a_trainer_that_ended_by_itself_or_before_it_began_has_left_what_there_is(tmp_path: Path) -> None:
    for code in (0, 2, 4, 6, 7, 130):
        assert outcomes([], tmp_path, code=code, error=None) == []
    assert outcomes([], tmp_path, error=STOPPED) == []
    assert list(tmp_path.iterdir()) == []


def test_an_open_bundle_keeps_its_steps_and_a_folder_without_a_record_gets_one(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path, "run-1", Status.RUNNING, sealed=False)
    assert outcomes([folder], tmp_path, error=STOPPED) == [("interrupted", "interrupted by Ctrl-C", 1)]
    assert [row["loss"] for row in bundle.read(folder).steps()] == ["6.9"]
    assert outcomes([bundle.create(tmp_path, "run-2")], tmp_path) == [("failed", str(KILLED), 1)]

"""What the places on this machine tell each run of what came before it; the runs themselves: test_sweep_progress.py."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_docker import FakeDocker

from launcher.machine.local import LocalOutcome, LocalPlan
from launcher.machine.runtime import Choice, Workplace
from launcher.script import local_script
from launcher.script.options import HereOptions
from launcher.sweep import drive
from launcher.sweep.drive import LocalPlaces, _LocalPlace
from launcher.sweep.places import LOCAL, Configuration, Place
from launcher.sweep.shared import Control, Progress
from launcher.sweep.sweep_plan import PlacedScript
from launcher.sweep.work import Ended, PlaceWork
from launcher.values import Runtime
from tests.launcher.sweep.sweeps import configurations_of, plan_of
from workload.contract import bundle
from workload.contract.errors import UsageError
from workload.contract.record import Record, Settling, Spec, Status, Timing
from workload.contract.spec import RunSpec
from workload.contract.trainer import Context, Forks


@pytest.fixture
def runs_in_docker(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """Docker with an image, chosen for every run."""
    docker.hold("sha256:ab", "rooflaunch:cpu")
    engine = docker.engine()
    choice = Choice(runtime=Runtime.DOCKER, why="t", engine=engine, image=engine.image("sha256:ab"))
    monkeypatch.setattr(local_script, "choose", lambda *_, **__: choice)
    monkeypatch.setattr(drive, "outside_facts", dict)
    return docker


def test_every_block_begins_at_the_temperature_before_the_first_run_of_all(
    runs_in_docker: FakeDocker, tmp_path: Path
) -> None:
    contexts = []

    def train() -> None:
        command = runs_in_docker.containers.created[-1].arguments["command"]
        context = json.loads(command[command.index("--context") + 1])
        contexts.append(context)
        folder = bundle.create(tmp_path, f"run-{len(contexts)}")
        settling = Settling(target_c=context.get("settle_to_c", 40.0 + len(contexts)))
        spec = Spec(model="squeezenet1_1", batch_size=2)
        timing = Timing(phases={"start": 0.0, "measured": 1e-7, "end": 2e-7})
        run = Record(
            run_id=folder.name,
            status=Status.COMPLETED,
            run_key=context["run_key"],
            settling=settling,
            spec=spec,
            timing=timing,
        )
        bundle.write_record(folder, run)
        bundle.seal(folder)
        lines[1] = (f"{folder}\n".encode(), None)

    lines = [train, (None, None)]
    runs_in_docker.containers.pieces = lines
    plan = plan_of(Place(name="here", backend=LOCAL), configurations_of(batch_size=[1, 2]), 2)
    work = PlaceWork(plan, known={})
    LocalPlaces([work], output=tmp_path, control=Control(), progress=Progress()).run()
    assert [context["job"]["block"] for context in contexts] == [1, 1, 2, 2]
    assert [context.get("settle_to_c") for context in contexts] == [None, 41.0, 41.0, 41.0]
    # The launcher has measured how long the containers ran.
    seconds = {**work.spent.seconds}
    assert seconds.pop("outside") > 0
    assert (work.spent.runs, seconds) == (4, pytest.approx({"imports": 4e-7, "steps": 4e-7}))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The batch size and devices of each run with a start server, "fresh" for one without, and each server's end."""
    seen: list[str] = []

    class Noted(Forks):
        def end(self) -> None:
            seen.append("end")

    def run(plan: LocalPlan, *, watcher: object, forks: Forks | None) -> LocalOutcome:
        del watcher
        seen.append(f"{plan.spec.batch_size} on {plan.spec.devices}" if forks else "fresh")
        return LocalOutcome(exit_code=0, bundles=())

    monkeypatch.setattr(drive, "Forks", Noted)
    monkeypatch.setattr(drive.local, "run", run)
    monkeypatch.setattr(local_script, "choose", lambda *_, **__: Choice(runtime=Runtime.PROCESS, why="t"))
    return seen


@pytest.mark.parametrize(
    ("lists", "blocks", "left"),
    [
        # Also a block of which one run is left, which cannot be pooled with forked ones otherwise.
        ({"batch_size": [1, 2]}, ["1 on 1", "2 on 1", "end"], ["1 on 1", "end"]),
        ({"batch_size": [1]}, ["fresh"], ["fresh"]),
        # A rank is never forked, and efficiency compares runs of both kinds.
        ({"devices": [1, 2]}, ["fresh", "fresh"], ["fresh", "fresh"]),
    ],
    ids=["several configurations", "one configuration", "several devices"],
)
def test_each_block_of_several_configurations_has_a_start_server(
    lists: dict[str, list[int]], blocks: list[str], left: list[str], started: list[str], tmp_path: Path
) -> None:
    plan = plan_of(Place(name="here", backend=LOCAL), configurations_of(**lists), 2)
    done = {
        run.run_key: Ended(status=Status.COMPLETED) for run in plan.runs if run.spec.batch_size == 2 and left != blocks
    }
    for known, expected in (({}, blocks), (done if "batch_size" in lists else {}, left)):
        LocalPlaces([PlaceWork(plan, known=known)], output=tmp_path, control=Control(), progress=Progress()).run()
        assert sorted(started[: len(expected)]) == sorted(expected)
        assert sorted(started) == sorted(expected * 2)
        started.clear()


@pytest.mark.usefixtures("runs_in_docker")
def test_a_script_runs_in_a_container_where_its_place_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    workplace = Workplace(folder=tmp_path, data=str(tmp_path))
    script = PlacedScript(options=HereOptions(), workplace=workplace, code="c", text="t")
    place = Place(name="here", backend=LOCAL, script=script)
    specs = [RunSpec(script=("train.py", "--root", "{data}", "--lr", lr)) for lr in ("1", "2")]
    configurations = tuple(Configuration(values={"args.lr": spec.script[-1]}, spec=spec) for spec in specs)
    here = _LocalPlace(PlaceWork(plan_of(place, configurations, 1), known={}), tmp_path / "results")
    plan = here.plan_of(specs[1], Context())
    assert plan.container is not None
    assert plan.container.command[-5:] == specs[1].script
    assert plan.workplace == workplace
    outside = replace(specs[0], script=("../train.py",))
    (tmp_path.parent / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    other = _LocalPlace(PlaceWork(plan_of(place, configurations, 1), known={}), tmp_path / "results")
    with pytest.raises(UsageError, match="is outside of this folder"):
        other.plan_of(outside, Context())

"""`analyze export`: what MLflow, TensorBoard and W&B have of runs afterwards, read with their own readers."""

import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis import exporting
from benchmarks.synthetic_bundles import FLOP_PER_IMAGE, make
from tests.analysis.in_process import Analyze
from tests.analysis.report.report_bundles import HOSTILE
from tests.ports import await_server, held_port
from workload.contract.errors import ExitCode

pytestmark = pytest.mark.world
BUNDLES = Path(__file__).parents[2] / "bundles"
SCRIPT = {"argv": ["train.py"], "command": "train.py --lr 0.1 --amp", "files": {}, "sha256": "5c41", "unit": "tokens"}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three repeats of a script, and one run with texts that try to be markup or a path."""
    for number in range(3):
        make(tmp_path / "results", number, spec__script=SCRIPT, spec__model="train.py")
    make(tmp_path / "results", 3, spec__model=HOSTILE, environment__place=f"../{HOSTILE}", status="interrupted")
    return tmp_path / "results"


@pytest.fixture
def file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of MLflow's store without a server."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real server. It needs an older pyarrow than we, so it has an environment of its own."""
    pytest.importorskip("mlflow")
    program = shutil.which("mlflow-server")
    if program is None:
        pytest.skip("no mlflow-server (.ci/packages)")
    folder = tmp_path_factory.mktemp("mlflow")
    words = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", folder.as_uri()]
    with held_port() as port, (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(
            [program, "server", *words, "--port", str(port), "--workers", "1"],
            stdout=log,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            start_new_session=True,
        )
        try:
            await_server(server, port, folder / "log.txt")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def contents_of(results: Path) -> list[exporting.Content]:
    return list(exporting.contents(analysis.load(results)))


def mlflow_runs(address: str) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(address)
    return client, list(client.search_runs([client.get_experiment_by_name("rooflaunch").experiment_id]))


# --- what is written


def test_content_of_a_run_by_hand(results: Path) -> None:
    """Names follow the run's unit. The interval of three runs: Student's t of the logarithms."""
    first, second, third, hostile = contents_of(results)
    logs = [math.log(run.figures["tokens_per_s"]) for run in (first, second, third)]
    mean = sum(logs) / 3
    half = 4.302653 * (sum((each - mean) ** 2 for each in logs) / 2 / 3) ** 0.5
    assert first.figures["tokens_per_s_low"] == pytest.approx(math.exp(mean - half))
    assert first.figures["tokens_per_s_high"] == pytest.approx(math.exp(mean + half))
    assert first.figures["configuration_runs"] == 3
    assert first.figures["train_flop_per_token"] == FLOP_PER_IMAGE
    assert not [name for name in first.figures if "image" in name and name != "image_s"]
    chosen = {"script": "train.py --lr 0.1 --amp", "args.lr": "0.1", "args.amp": True, "batch_size": 32}
    assert chosen.items() <= first.parameters.items()
    assert first.tags["device_name"] == "Tesla T4"
    assert first.tags["commit_dirty"] == "false"
    assert [number for number, _, _ in first.steps] == list(range(110))
    lines = [line.split(",") for line in (first.folder / "steps.csv").read_text().splitlines()]
    assert first.steps[0][2]["warmup/step_s"] == float(lines[1][lines[0].index("step_s")])
    assert first.steps[10][2]["measured/step_s"] == float(lines[11][lines[0].index("step_s")])
    assert "images_per_s" in hostile.figures
    assert "images_per_s_low" not in hostile.figures


@pytest.mark.parametrize("store", ["file_store", pytest.param("mlflow_server", marks=pytest.mark.server)])
def test_runs_in_mlflow(
    store: str, results: Path, analyze: Analyze, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first export is stopped before the end of its second run, the second completes it, the third adds nothing."""
    address = request.getfixturevalue(store)
    from mlflow import MlflowClient

    set_tag, marked = MlflowClient.set_tag, list[str]()

    def killed(client: Any, *words: str) -> None:
        marked.append(words[0])
        if len(marked) == 2:
            raise KeyboardInterrupt
        set_tag(client, *words)

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_tag", killed)
        code, _, _ = analyze("export", results, "--to", "mlflow", "--into", address)
        assert code == ExitCode.INTERRUPTED
    assert len(mlflow_runs(address)[1]) == 2
    for counts in ("exported 3, skipped 1, failed 0", "exported 0, skipped 4, failed 0"):
        # A slow machine shows progress on stderr.
        code, out, _ = analyze("export", results, "--to", "mlflow", "--into", address)
        assert code == ExitCode.DONE
        assert out.splitlines()[-1] == f"{counts}: 'rooflaunch' in MLflow at {address}"
    client, found = mlflow_runs(address)
    stored = {run.data.tags["rooflaunch.run_id"]: run for run in found}
    assert len(found) == len(stored) == 4
    for run in contents_of(results):
        data, info = stored[run.run_id].data, stored[run.run_id].info
        last = {name: value for _, _, values in run.steps for name, value in values.items()}
        assert data.metrics == pytest.approx(run.figures | last)
        assert data.params == {exporting._key(name): exporting._text(value) for name, value in run.parameters.items()}
        assert run.tags.items() <= data.tags.items()
        assert data.tags["mlflow.source.git.commit"] == run.tags["commit"]
        assert info.status == {"completed": "FINISHED", "interrupted": "KILLED"}[run.status]
        assert (info.start_time, info.end_time) == (int(1000 * run.began_s), int(1000 * run.ended_s))
        series = client.get_metric_history(info.run_id, "measured/step_s")
        values = {number: values["measured/step_s"] for number, _, values in run.steps[10:]}
        assert {point.step: point.value for point in series} == values
        assert len(series) == 100
        files = {path.name for path in run.folder.iterdir()}
        assert {Path(each.path).name for each in client.list_artifacts(info.run_id, "bundle")} == files


def test_runs_in_tensorboard(results: Path, analyze: Analyze, tmp_path: Path) -> None:
    """A folder that a killed export has left is replaced."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    contents = contents_of(results)
    folder = tmp_path / "runs"
    left = folder / f".{contents[0].key}.part"
    left.mkdir(parents=True)
    (left / "events.out.tfevents.1.half").write_bytes(b"half")
    for counts in ("exported 4, skipped 0, failed 0", "exported 0, skipped 4, failed 0"):
        code, out, _ = analyze("export", results, "--to", "tensorboard", "--into", folder)
        assert code == ExitCode.DONE
        assert out.splitlines()[-1] == f"{counts}: TensorBoard's folder '{folder}'"
        assert {path.name for path in folder.iterdir()} == {run.key for run in contents}
    for run in contents:
        events = EventAccumulator(str(folder / run.key), size_guidance={TENSORS: 0})
        events.Reload()
        assert set(events.Tags()["scalars"]) == {*run.figures, "warmup/step_s", *run.steps[10][2], *run.steps[0][2]}
        for name, value in run.figures.items():
            assert [point.value for point in events.Scalars(name)] == pytest.approx([value])
        steps = [(point.step, point.value) for point in events.Scalars("measured/step_s")]
        assert [number for number, _ in steps] == list(range(10, 110))
        assert [value for _, value in steps] == pytest.approx([each[2]["measured/step_s"] for each in run.steps[10:]])
        content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        settings = HParamsPluginData.FromString(content).session_start_info
        assert settings.group_name == run.key
        assert settings.hparams["batch_size"].number_value == 32
        text = events.Tensors("tags")[0].tensor_proto.string_val[0].decode()
        assert f"| bundle | {run.folder} |" in text
        # A bar in a value would begin a further cell.
        assert {line.count("|") for line in text.splitlines()} == {3}


def offline_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], list[str]]:
    """Configuration, summary, steps and artifacts in a .wandb file: records of wandb's protocol in LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = folder.glob("*.wandb")
    data, at, parts = path.read_bytes(), 7, list[bytes]()
    config, summary, steps, artifacts = dict[str, Any](), dict[str, Any](), list[dict[str, Any]](), list[str]()

    def values(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):
            record = Record.FromString(b"".join(parts))
            parts.clear()
            config |= values(record.run.config.update) | values(record.config.update)
            summary |= values(record.summary.update)
            steps += [values(record.history.item)] if record.history.item else []
            artifacts += [record.request.log_artifact.artifact.name, record.artifact.name]
    return config, summary, steps, [name for name in artifacts if name]


@pytest.mark.slow
def test_runs_in_wandb_offline(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a run that a killed export has left is replaced."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    run_offline(results, "exported 4, skipped 0, failed 0")
    contents = contents_of(results)
    [half] = tmp_path.glob(f"wandb/offline-run-*-{contents[1].key}")
    (half / "rooflaunch.whole").unlink()
    run_offline(results, "exported 1, skipped 3, failed 0")
    run_offline(results, "exported 0, skipped 4, failed 0")
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 4
    for run in contents:
        [folder] = tmp_path.glob(f"wandb/offline-run-*-{run.key}")
        config, summary, steps, artifacts = offline_run(folder)
        assert {**run.tags, **run.parameters}.items() <= config.items()
        assert run.figures.items() <= summary.items()
        assert [each["step"] for each in steps] == list(range(110))
        assert [each.get("measured/step_s") for each in steps[10:]] == [
            values["measured/step_s"] for _, _, values in run.steps[10:]
        ]
        assert artifacts == [f"bundle-{run.key}"]


def run_offline(results: Path, counts: str) -> None:
    """In a process of its own: wandb keeps the mode that it began with."""
    words = [sys.executable, "-m", "analysis", "export", str(results), "--to", "wandb"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert done.stdout.splitlines()[-1] == f"{counts}: 'rooflaunch' in W&B at {Path('wandb').resolve()}"


# --- bad input


def test_kept_bundles_and_damaged_ones(analyze: Analyze, file_store: str, tmp_path: Path) -> None:
    """Imported runs have no steps. A damaged bundle is a problem, and the others are written."""
    shutil.copytree(BUNDLES / "runs", tmp_path / "runs")
    damaged = next((tmp_path / "runs").glob("*-vgg16-b256-*"))
    (damaged / "log.txt").write_text("changed")
    code, out, err = analyze("export", tmp_path / "runs", "--to", "mlflow", "--into", file_store, "--format", "json")
    assert code == ExitCode.DONE
    states = {row["run_id"]: row["state"] for row in json.loads(out)["runs"]}
    _, found = mlflow_runs(file_store)
    assert set(states.values()) == {"exported"}
    assert {run.data.tags["rooflaunch.run_id"] for run in found} == set(states)
    assert damaged.name not in states
    assert f"problem    {damaged}: " in err
    [imported] = [run for run in found if "-imported-imported-" in run.info.run_name]
    assert not [name for name in imported.data.metrics if name.startswith("measured/")]


def test_a_server_that_is_down(analyze: Analyze, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own limits would take four minutes."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, out, err = analyze("export", results, "--to", "mlflow", "--into", "http://127.0.0.1:9")
    assert (code, out) == (ExitCode.TOOL, "")
    assert err == (
        "error: 'rooflaunch' in MLflow at http://127.0.0.1:9: Connection refused\n"
        "hint: --into with the URI of a server; this starts one: mlflow server\n"
    )


def test_a_server_that_ends_during_the_export(
    analyze: Analyze, results: Path, file_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run that fails is the last, and the runs before it are kept."""
    from mlflow import MlflowClient, MlflowException

    create_run, created = MlflowClient.create_run, list[str]()

    def ended(client: Any, *words: Any) -> Any:
        created.append(words[-1])
        if len(created) == 2:
            raise MlflowException("The store is full. Delete some runs.")
        return create_run(client, *words)

    monkeypatch.setattr(MlflowClient, "create_run", ended)
    code, out, err = analyze("export", results, "--to", "mlflow", "--into", file_store, "--format", "csv")
    assert code == ExitCode.TOOL
    assert out.splitlines() == ["run_id,state", f"{created[0]},exported", f"{created[1]},failed"]
    assert err.startswith(f"error: 'rooflaunch' in MLflow at {file_store}: The store is full\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "'rooflaunch' in W&B at http://127.0.0.1:9: you are not logged in"),
        ({"WANDB_MODE": "disabled"}, "'rooflaunch' in W&B at http://127.0.0.1:9: WANDB_MODE is 'disabled'"),
        ({"WANDB_API_KEY": "short"}, "WANDB_API_KEY invalid: API key must have 40+ characters, has 5."),
    ],
)
def test_wandb_without_an_account(environment: dict[str, str], said: str, results: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    known = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    words = [sys.executable, "-m", "analysis", "export", str(results), "--to", "wandb"]
    paths = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        words, env={**known, **paths, **environment}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.TOOL, "")
    error, hint = done.stderr.splitlines()
    assert error.endswith(said)
    assert hint == "hint: wandb login, unless you are logged in; WANDB_MODE=offline needs neither account nor server"


@pytest.mark.parametrize("tool", exporting.TOOLS)
def test_a_missing_package(tool: str, analyze: Analyze, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == tool]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    code, out, err = analyze("export", results, "--to", tool)
    assert (code, out) == (ExitCode.TOOL, "")
    error, hint = err.splitlines()
    assert error == f"error: the package {tool} is missing"
    assert f"[{tool}]" in hint


def test_refused_words(analyze: Analyze, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code, _, err = analyze("export", tmp_path, "--to", "mlflo")
    assert code == ExitCode.USAGE
    assert err.startswith("error: Invalid value for '--to': 'mlflo' is not one of 'mlflow', 'wandb', 'tensorboard'.")
    code, _, err = analyze("export", tmp_path, "--to", "tensorboard")
    assert code == ExitCode.NOTHING_TO_DO
    assert err.startswith(f"error: no bundle in '{tmp_path}'\n")
    file = tmp_path / "file"
    file.touch()
    make(tmp_path / "results")
    code, _, err = analyze("export", tmp_path / "results", "--to", "tensorboard", "--into", file)
    assert code == ExitCode.TOOL
    assert err.splitlines()[0].startswith(f"error: TensorBoard's folder '{file}': ")

"""Runs for dashboards of other programs: MLflow, Weights & Biases and TensorBoard, each through its own client.

`contents` makes what they all get of a run; a class per tool writes it there. A run that is written whole gets a mark.
A run without the mark was left by an export that was killed, and is written anew.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from analysis.loading import units
from analysis.loading.cases import MEASURED, Case, as_typed, cases
from analysis.loading.configurations import ARGUMENT, CONFIGURATION, PLACE, completed, group
from analysis.loading.run_row import RUN_COLUMNS
from analysis.loading.tables import Tables
from analysis.statistics.samples import over_runs
from workload.contract.errors import RooflaunchError, ToolError
from workload.contract.fields import RANGES, Kind
from workload.contract.record import Status

# Columns of runs by their role in a dashboard, under the same name, which contains the unit: choices, facts that
# identify the run, and figures, which are all other numbers.
PARAMETERS = (*CONFIGURATION, *PLACE, "iterations", "seed")
NUMBERED = {"block", "position", "repeat", "repeats", "cudnn"}
# Columns that say nothing without the bundle on this machine.
LOCAL = {"path", "kernels_file", "ceiling_conditions"}
TAGS = [
    name
    for name, kind in RUN_COLUMNS.items()
    if name not in {*CONFIGURATION, *LOCAL} and (kind in (Kind.TEXT, Kind.FLAG) or name in NUMBERED)
]
FIGURES = [name for name, kind in RUN_COLUMNS.items() if kind in RANGES and name not in {*PARAMETERS, *NUMBERED}]
SERIES = ("step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "loss")
# The mark: a tag of MLflow, a value of W&B's configuration, and a file in its offline folder.
WHOLE, ID, PROJECT = "rooflaunch.whole", "rooflaunch.run_id", "rooflaunch"
# Longest time (s) of a request to a server.
TIMEOUT_S = 15
# Whole commands, because a test looks for each of their extras in pyproject.toml.
INSTALL = {
    "mlflow": "pip install 'rooflaunch[mlflow]'",
    "wandb": "pip install 'rooflaunch[wandb]'",
    "tensorboard": "pip install 'rooflaunch[tensorboard]'",
}


@dataclass(frozen=True, kw_only=True)
class Content:
    """A run as a dashboard shows it. `key`: its id there; `began_s`, `ended_s`: Unix time.

    `steps`: number, end in Unix time, and times (s) and loss by name: `measured/step_s`, `warmup/step_s`.
    """

    run_id: str
    key: str
    status: Status
    began_s: float
    ended_s: float
    parameters: Mapping[str, Any]
    figures: Mapping[str, float]
    tags: Mapping[str, str]
    steps: Sequence[tuple[int, float, Mapping[str, float]]]
    folder: Path


def contents(results: Tables) -> Iterator[Content]:
    """Contents of all runs, one at a time, because their steps may fill the memory.

    For a figure that several completed runs of a configuration have, `…_low` and `…_high` are the ends of its 95 %
    interval over these `configuration_runs` runs.
    """
    ends: dict[str, dict[str, float]] = {}
    for pool in group(completed(results.runs)):
        of_pool = {"configuration_runs": float(len(pool))}
        for name in FIGURES:
            estimate = pool.rate if name == "images_per_s" else over_runs(pool.known(name))
            if estimate.interval:
                of_pool |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
        ends |= dict.fromkeys(pool.texts("run_id"), of_pool)
    yield from (_content(case, ends.get(case.run_id, {})) for case in cases(results))


def _content(case: Case, ends: dict[str, float]) -> Content:
    folder = Path(case["path"])
    # Of an imported run without times: when it was imported.
    began_s = case["started_at"].timestamp() if case["started_at"] is not None else folder.stat().st_mtime
    figures = {name: case[name] for name in FIGURES if case[name] is not None} | ends
    options = [
        (word.lstrip("-"), value or True) for word, value in as_typed(case["script"] or "") if word.startswith("-")
    ]
    # Throughput and work of a step in what the run counted: tokens_per_s.
    counted = {"images": case.unit, "per_image": f"per_{units.singular(case.unit)}"}
    steps = []
    for row, number in enumerate(case.steps["step"]):
        phase = MEASURED if case.is_measured[row] else "warmup"
        values = {name: float(case.steps[name][row]) for name in SERIES if math.isfinite(case.steps[name][row])}
        at_s = began_s + float(np.nan_to_num(case.steps["ended_at_s"][row]))
        steps.append((int(number), at_s, {f"{phase}/{name}": value for name, value in values.items()}))
    return Content(
        run_id=case.run_id,
        key=_key(case.run_id).lstrip("."),
        status=Status(case["status"]),
        began_s=began_s,
        ended_s=max([began_s, *(at_s for _, at_s, _ in steps)]),
        parameters={name: case[name] for name in PARAMETERS if case[name] is not None}
        | {ARGUMENT + name: value for name, value in options},
        figures={re.sub("images|per_image", lambda found: counted[found[0]], name): figures[name] for name in figures},
        tags={name: _text(case[name]) for name in TAGS if case[name] is not None},
        steps=steps,
        folder=folder,
    )


def _key(name: str) -> str:
    """The name with only the characters that every tool allows."""
    return re.sub(r"[^\w.-]", "_", name)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _client(module: str) -> Any:
    tool = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise ToolError(f"the package {tool} is missing", hint=INSTALL[tool]) from error


class Target:
    """A tool's place for runs. `where`: its name; `kinds`, `hint`: its client's errors, and what to do about them."""

    where: str
    kinds: tuple[type[Exception], ...]
    hint: str

    def open(self) -> None:
        """Connect, or make the folder."""

    def has(self, run: Content) -> bool:
        """Whether the run is there, whole."""
        raise NotImplementedError

    def add(self, run: Content) -> None:
        """Write the run, in place of a part of it that is there."""
        raise NotImplementedError

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise `ToolError` in place of a client's error, with its first sentence, or with the refused connection."""
        try:
            yield
        except self.kinds as error:
            cause: BaseException = error
            while (before := cause.__cause__ or cause.__context__) is not None:
                cause = before
            text = cause.strerror if isinstance(cause, ConnectionError) and cause.strerror else str(error)
            said = re.split(r"\n|(?<=\w)\. (?=[A-Z])", text.strip())[0] or type(error).__name__
            raise ToolError(f"{self.where}: {said}", hint=self.hint) from error


class Mlflow(Target):
    """An experiment of MLflow. `into`: the server's URI, else MLFLOW_TRACKING_URI."""

    hint = "--into with the URI of a server; this starts one: mlflow server"

    def __init__(self, into: str | None) -> None:
        # MLflow itself tries for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(TIMEOUT_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        mlflow = _client("mlflow")
        self._made = _client("mlflow.entities")
        self._name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self._address = into or mlflow.get_tracking_uri()
        self.where = f"'{self._name}' in MLflow at {self._address}"
        self.kinds = (mlflow.MlflowException, OSError, ImportError)
        self._connect = mlflow.MlflowClient

    def open(self) -> None:
        self._client = self._connect(tracking_uri=self._address)
        found = self._client.get_experiment_by_name(self._name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(self._name)
        # MLflow's ids of our runs, and whether they are whole. A search for one id could not quote every id.
        self._runs: dict[str, dict[str, bool]] = {}
        token = None
        while token != "":
            page = self._client.search_runs([self._experiment], max_results=1000, page_token=token)
            for run in page:
                self._runs.setdefault(run.data.tags.get(ID, ""), {})[run.info.run_id] = WHOLE in run.data.tags
            token = page.token or ""

    def has(self, run: Content) -> bool:
        return any(self._runs.get(run.run_id, {}).values())

    def add(self, run: Content) -> None:
        end_ms = int(1000 * run.ended_s)
        parameters = [self._made.Param(_key(name), _text(value)) for name, value in run.parameters.items()]
        series = [(0, run.ended_s, run.figures), *run.steps]
        metrics = [
            self._made.Metric(name, value, int(1000 * at_s), number)
            for number, at_s, values in series
            for name, value in values.items()
        ]
        tags = {**run.tags, ID: run.run_id, "mlflow.source.name": run.parameters.get("script") or PROJECT}
        if commit := run.tags.get("script_commit") or run.tags.get("commit"):
            tags["mlflow.source.git.commit"] = commit
        status = {Status.COMPLETED: "FINISHED", Status.INTERRUPTED: "KILLED"}.get(run.status, "FAILED")
        for left in self._runs.get(run.run_id, ()):
            self._client.delete_run(left)
        key = self._client.create_run(self._experiment, int(1000 * run.began_s), tags, run.run_id).info.run_id
        self._client.log_batch(key, metrics=metrics, params=parameters)
        self._client.log_artifacts(key, str(run.folder), "bundle")
        self._client.set_terminated(key, status, end_ms)
        self._client.set_tag(key, WHOLE, "true")


class WandB(Target):
    """A project of Weights & Biases, with WANDB_MODE=offline in a folder. `into`: its name, else WANDB_PROJECT."""

    hint = "wandb login, unless you are logged in; WANDB_MODE=offline needs neither account nor server"

    def __init__(self, into: str | None) -> None:
        self._wandb = _client("wandb")
        chosen = self._wandb.setup(settings=self._wandb.Settings(silent=True)).settings
        self._folder, self._is_offline = Path(chosen.wandb_dir), chosen.mode == "offline"
        self._project = into or chosen.project or PROJECT
        self._path = "/".join(filter(None, (chosen.entity, self._project)))
        self.where = f"'{self._project}' in W&B at {self._folder if self._is_offline else chosen.base_url}"
        self.kinds = (self._wandb.Error, OSError)
        self._is_off = chosen.mode == "disabled"

    def open(self) -> None:
        if self._is_off:
            raise self._wandb.Error("WANDB_MODE is 'disabled'")
        # A prompt for a key would wait for nobody in an unattended export.
        if not self._is_offline and not self._wandb.login(prompt=False, verify=False):
            raise self._wandb.Error("you are not logged in")

    def has(self, run: Content) -> bool:
        if self._is_offline:
            return any((folder / WHOLE).exists() for folder in self._folders(run))
        # An error means that the run is unknown, or that nobody answers, which `add` reports.
        with suppress(self._wandb.Error, ValueError):
            return WHOLE in self._wandb.Api(timeout=TIMEOUT_S).run(f"{self._path}/{run.key}").config
        return False

    def _folders(self, run: Content) -> list[Path]:
        return [path.parent for path in self._folder.glob(f"offline-run-*/run-{run.key}.wandb")]

    def add(self, run: Content) -> None:
        for left in self._folders(run) if self._is_offline else ():
            shutil.rmtree(left)
        # The client's own facts, those of this machine, are left out.
        settings = self._wandb.Settings(
            console="off", init_timeout=TIMEOUT_S, disable_git=True, disable_code=True,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        made = self._wandb.init(
            project=self._project,
            id=run.key,
            name=run.run_id,
            resume=None if self._is_offline else "allow",
            config={**run.tags, **run.parameters, ID: run.run_id},
            settings=settings,
        )
        made.define_metric("*", step_metric="step")
        # A resumed run already has `made.step` steps.
        for row, (number, at_s, values) in enumerate(run.steps):
            if row >= made.step:
                made.log({"step": number, "at_s": at_s, **values}, step=row)
        made.summary.update(dict(run.figures))
        files = self._wandb.Artifact(f"bundle-{run.key}", type="bundle")
        files.add_dir(str(run.folder))
        logged = made.log_artifact(files)
        if not self._is_offline:
            logged.wait()
        made.config.update({WHOLE: True})
        made.finish(exit_code=0 if run.status is Status.COMPLETED else 1)
        if self._is_offline:
            (Path(made.dir).parent / WHOLE).touch()


class TensorBoard(Target):
    """A folder for `tensorboard --logdir`. `into`: its path, else `runs`. Each run has its folder there."""

    hint = "--into with a folder of yours"
    kinds = (OSError,)

    def __init__(self, into: str | None) -> None:
        self._writer = _client("tensorboard.summary.writer.event_file_writer")
        self._event = _client("tensorboard.compat.proto.event_pb2")
        self._summary = _client("tensorboard.compat.proto.summary_pb2")
        self._hparams = _client("tensorboard.plugins.hparams.summary_v2")
        self._text = _client("tensorboard.plugins.text.summary_v2")
        self._folder = Path(into or "runs")
        self.where = f"TensorBoard's folder '{self._folder}'"

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def has(self, run: Content) -> bool:
        return (self._folder / run.key).is_dir()

    def add(self, run: Content) -> None:
        # TensorBoard keeps no files: a text says where the bundle is.
        tags = {**run.tags, "bundle": str(run.folder.resolve())}
        rows = [f"| {name} | {' '.join(text.split()).replace('|', '&#124;')} |" for name, text in tags.items()]
        first = [
            self._hparams.hparams_pb(run.parameters, trial_id=run.key, start_time_secs=run.began_s),
            self._text.text_pb("tags", "\n".join(["| tag | value |", "|---|---|", *rows])),
        ]
        part = self._folder / f".{run.key}.part"
        shutil.rmtree(part, ignore_errors=True)
        writer = self._writer.EventFileWriter(str(part))
        for summary in first:
            writer.add_event(self._event.Event(wall_time=run.began_s, summary=summary))
        for number, at_s, values in [(0, run.ended_s, run.figures), *run.steps]:
            scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            summary = self._summary.Summary(value=scalars)
            writer.add_event(self._event.Event(wall_time=at_s, step=number, summary=summary))
        writer.close()
        # The name is the mark.
        part.rename(self._folder / run.key)


TOOLS: Mapping[str, Callable[[str | None], Target]] = {"mlflow": Mlflow, "wandb": WandB, "tensorboard": TensorBoard}


def export(
    runs: Iterable[Content], target: Target, *, on_progress: Callable[[int], None]
) -> tuple[dict[str, str], RooflaunchError | None]:
    """Write the runs that the target does not have yet. The first run that fails ends the export.

    Returns for each run that was reached `exported`, `skipped` (the target has it) or `failed`, by the run's id, and
    the error of the run that failed, else None. `on_progress` is called with the number of runs that are done.
    """
    outcomes: dict[str, str] = {}
    with target.translated():
        target.open()
    for run in runs:
        on_progress(len(outcomes))
        try:
            with target.translated():
                outcomes[run.run_id] = "skipped" if target.has(run) else "exported"
                if outcomes[run.run_id] == "exported":
                    target.add(run)
        except ToolError as error:
            return {**outcomes, run.run_id: "failed"}, error
    return outcomes, None

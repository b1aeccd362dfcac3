"""`launch` as it is typed, in a world of the test's own: what a command reaches, and what it prints."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
import typer

from launcher.backends.gcp import backend as gcp_backend
from launcher.backends.gcp.backend import ComputeEngine
from launcher.backends.gcp.compute import Compute
from launcher.jobs import commands
from launcher.jobs.session import Session
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Cloud
from tests.workload.storage.gcs_server import BUCKET
from workload.contract.errors import ToolError

AT_HOME = ("--project", "my-project", "--bucket", f"gs://{BUCKET}")
GCP = ("gcp", "--gpu", "t4", "--zone", ZONE, "--image", IMAGE, *AT_HOME)
NAME = re.compile(r"rooflaunch-t4-\d{8}-\d{6}-[0-9a-f]{6}")


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    def output(self, code: int = 0) -> str:
        assert self.code == code, self.err
        return self.out

    def error(self, code: int) -> str:
        assert self.code == code, self.err
        return self.err

    def json(self, code: int = 0) -> Any:
        return json.loads(self.output(code))


Launch = Callable[..., Done]


def forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        pytest.fail(f"it must not ask for {what}")

    return refuse


@dataclass(frozen=True, kw_only=True)
class World:
    """What a command meets: a terminal, a clock, and what the backend reaches out to."""

    compute: Callable[[str], Compute]
    bucket: Callable[[str], Any]
    engine: Callable[[], Any]
    default_project: Callable[[], str | None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    # Answers a question; None where there is no terminal.
    confirm: Callable[[str, bool], bool] | None = None
    busy: Callable[[], AbstractContextManager[None]] = nullcontext

    def backend(self) -> ComputeEngine:
        return ComputeEngine(
            compute=self.compute,
            bucket=self.bucket,
            engine=self.engine,
            default_project=self.default_project,
            sleep=self.sleep,
        )

    def meet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the commands of this process meet this world."""
        monkeypatch.setattr(gcp_backend, "backend", self.backend())
        monkeypatch.setattr(commands, "time", SimpleNamespace(time=self.now))
        monkeypatch.setattr(commands, "Session", partial(Session, sleep=self.sleep))
        monkeypatch.setattr(commands, "is_terminal", lambda: self.confirm is not None)
        monkeypatch.setattr(typer, "confirm", lambda question, default, **_: self.confirm(question, default))


NOWHERE = World(
    compute=forbidden("Compute Engine"),
    bucket=forbidden("the bucket"),
    engine=forbidden("Docker"),
    default_project=forbidden("credentials"),
    now=lambda: 1795262400.0,
    sleep=forbidden("time"),
)


def no_docker() -> NoReturn:
    raise ToolError("no Docker engine: /var/run/docker.sock does not exist", hint="start Docker")


def world_of(cloud: Cloud, **changes: Any) -> World:
    plain = World(
        compute=lambda _: cloud.compute,
        bucket=lambda _: cloud.bucket,
        engine=no_docker,
        default_project=lambda: "my-project",
        now=cloud.clock.now,
        sleep=cloud.clock.sleep,
        busy=cloud.clock.busy,
    )
    return replace(plain, **changes)

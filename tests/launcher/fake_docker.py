"""A Docker engine that exists only as the state below. It stands in for the SDK's client: all of ours is real."""

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import docker.errors

from launcher.docker_engine import Engine

# A piece of a container's output: (stdout, stderr), or something that happens when the stream has come that far.
Piece = tuple[bytes | None, bytes | None] | Callable[[], None]


class FakeDocker:
    """Holds images and containers, replays what is laid down, and remembers what it was asked to build and push."""

    def __init__(self) -> None:
        self.held: dict[str, FakeImage] = {}
        self.registry: dict[str, str] = {}
        # What the registry has an image for; as Docker's distribution endpoint says it.
        self.platforms: dict[str, list[dict[str, str]] | None] = {}
        self.build_messages: list[Mapping[str, Any] | Exception] = []
        self.push_messages: list[Mapping[str, Any]] = []
        self.builds: list[dict[str, Any]] = []
        self.pushed: list[str] = []
        self.architecture = "amd64"
        self.images = FakeImages(self)
        self.containers = FakeContainers()
        self.api = FakeApi(self)

    def engine(self, *, version: str = "28.2.2", gpus: bool = False, **info: Any) -> Engine:
        """Ours, connected to this. `info` is what `docker info` says."""
        runtimes = {"runc": {}, **({"nvidia": {}} if gpus else {})}
        kernel = {"amd64": "x86_64", "arm64": "aarch64"}[self.architecture]
        return Engine(self, {"Runtimes": runtimes, "Architecture": kernel, **info}, version)  # type: ignore[arg-type]

    def hold(self, image_id: str, *tags: str, labels: Mapping[str, str] | None = None, **attributes: Any) -> None:
        """Put an image there."""
        plain = {"Size": 193_000_000, "Created": "2026-11-21T10:00:00Z", "RepoDigests": None}
        plain["Architecture"] = self.architecture
        configured = {"Labels": dict(labels) if labels else None}
        self.held[image_id] = FakeImage({"Id": image_id, "RepoTags": [], "Config": configured, **plain, **attributes})
        for tag in tags:
            self.tag(image_id, tag)

    def tag(self, image_id: str, name: str) -> None:
        """A name belongs to one image."""
        for image in self.held.values():
            image.attrs["RepoTags"] = [each for each in image.attrs["RepoTags"] if each != name]
        self.held[image_id].attrs["RepoTags"].append(name)

    def names(self) -> dict[str, str]:
        """Tag -> image."""
        return {tag: image_id for image_id, image in self.held.items() for tag in image.attrs["RepoTags"]}


class FakeImage:
    def __init__(self, attrs: dict[str, Any]) -> None:
        self.attrs = attrs


class FakeImages:
    def __init__(self, engine: FakeDocker) -> None:
        self._engine = engine

    def get(self, name: str) -> Any:
        image_id = self._engine.names().get(name, name)
        if image_id not in self._engine.held:
            raise docker.errors.ImageNotFound(f"No such image: {name}")
        attrs = self._engine.held[image_id].attrs
        return SimpleNamespace(attrs=attrs, tag=lambda wanted: self._engine.tag(image_id, wanted))

    def list(self, *, filters: Mapping[str, Sequence[str]]) -> list[FakeImage]:
        assert set(filters) == {"label"}
        wanted = dict(each.split("=", 1) for each in filters["label"])
        return [
            image
            for image in self._engine.held.values()
            if wanted.items() <= (image.attrs["Config"]["Labels"] or {}).items()
        ]

    def get_registry_data(self, name: str) -> Any:
        if name not in self._engine.registry:
            raise docker.errors.APIError("500 Server Error", explanation="dial tcp: no route to host")
        attrs = {"Platforms": self._engine.platforms.get(name)}
        return SimpleNamespace(id=self._engine.registry[name], attrs=attrs)


class FakeApi:
    def __init__(self, engine: FakeDocker) -> None:
        self._engine = engine

    def build(
        self,
        *,
        fileobj: Any,
        custom_context: bool,
        dockerfile: str,
        tag: str,
        buildargs: Mapping[str, str],
        labels: Mapping[str, str],
        network_mode: str | None,
        platform: str | None,
        nocache: bool,
        rm: bool,
        forcerm: bool,
        decode: bool,
    ) -> Iterator[Mapping[str, Any]]:
        assert all((custom_context, rm, forcerm, decode))
        asked = {"context": fileobj.read(), "dockerfile": dockerfile, "tag": tag, "nocache": nocache}
        asked |= {"platform": platform} if platform else {}
        self._engine.builds.append(asked | {"network": network_mode, "args": dict(buildargs), "labels": dict(labels)})
        for message in self._engine.build_messages:
            if isinstance(message, Exception):
                raise message
            if "aux" in message:
                architecture = (platform or f"linux/{self._engine.architecture}").partition("/")[2]
                self._engine.hold(message["aux"]["ID"], tag, labels=labels, Architecture=architecture)
            yield message

    def push(self, name: str, *, stream: bool, decode: bool) -> Iterator[Mapping[str, Any]]:
        assert all((stream, decode))
        assert name in self._engine.names(), f"{name} is no image here"
        self._engine.pushed.append(name)
        yield from self._engine.push_messages


class FakeContainers:
    """`pieces`, `exit_code` and `out_of_memory` are what the next container does; `absent`: it does not start."""

    def __init__(self) -> None:
        self.there: dict[str, FakeContainer] = {}
        self.created: list[FakeContainer] = []
        self.pieces: Sequence[Piece] = ()
        self.exit_code = 0
        self.out_of_memory = False
        self.absent: Exception | None = None

    def create(self, **arguments: Any) -> "FakeContainer":
        container = FakeContainer(self, f"fake_{len(self.created)}", arguments)
        self.created.append(container)
        self.there[container.name] = container
        return container

    def list(self, *, all: bool, filters: Mapping[str, str], ignore_removed: bool) -> "list[FakeContainer]":  # noqa: A002 - the SDK's own
        assert (all, ignore_removed) == (True, True)
        return [each for each in self.there.values() if filters["label"] in each.arguments["labels"]]


class FakeContainer:
    def __init__(self, engine: FakeContainers, name: str, arguments: dict[str, Any]) -> None:
        self.name, self.arguments = name, arguments
        self.status, self.attrs = "created", dict[str, Any]()
        self.signals: list[str] = []
        self._engine = engine
        self._pieces, self._exit_code, self._out_of_memory = engine.pieces, engine.exit_code, engine.out_of_memory

    def attach(self, *, stdout: bool, stderr: bool, stream: bool, demux: bool) -> Iterator[Any]:
        assert self.status == "created", "attached too late: lines would be lost"
        assert all((stdout, stderr, stream, demux))
        return self._run()

    def attach_socket(self, *, params: Mapping[str, int]) -> io.BytesIO:
        assert self.status == "created", "attached too late: its standard input would have ended"
        assert self.arguments["stdin_open"], "without this it has no standard input"
        assert params == {"stdin": 1, "stream": 1}
        self.lifeline = io.BytesIO()
        return self.lifeline

    def _run(self) -> Iterator[Any]:
        assert self.status == "running"
        assert not self.lifeline.closed
        # SIGKILL ends the output; SIGTERM leaves the trainer time to seal its bundle.
        for piece in itertools.takewhile(lambda _: "SIGKILL" not in self.signals, self._pieces):
            if callable(piece):
                piece()
            else:
                yield piece

    def start(self) -> None:
        if self._engine.absent is not None:
            raise self._engine.absent
        self.status = "running"

    def wait(self) -> None:
        self.status = "exited"

    def reload(self) -> None:
        code = 137 if "SIGKILL" in self.signals else self._exit_code
        self.attrs = {"State": {"ExitCode": code, "OOMKilled": self._out_of_memory}}

    def kill(self, *, signal: str) -> None:
        if self.status != "running":
            raise docker.errors.APIError(f"container {self.name} is not running")
        self.signals.append(signal)

    def remove(self, *, force: bool, v: bool) -> None:
        assert all((force, v))
        del self._engine.there[self.name]

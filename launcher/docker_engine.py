"""Client for a Docker engine; the engine's failures become `ToolError`s.

Only `connect` imports the SDK. Images and containers are named by id or tag; sizes are bytes.
"""

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.contract.errors import ToolError
from workload.contract.invocation import document
from workload.contract.process import LIFELINE

if TYPE_CHECKING:
    import docker

DEFAULT_SOCKET = Path("/var/run/docker.sock")
# First version of the engine with everything that a run needs; https://docs.docker.com/engine/release-notes/20.10.
MIN_VERSION = (20, 10)
ASK_LIMIT_S = 60
# An engine uses the kernel's names for its own machine, and other names for images.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NO_PLATFORM = {None, "", "unknown"}
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"
INSTALL_PAGE = "docs/containers.md"
START_DOCKER = "start Docker (`sudo systemctl start docker`, or Docker Desktop)"

Line = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in the engine's storage. `id`: identifies the image's content, equal on all machines.

    `architecture`: `amd64` or `arm64`; empty if unknown. `reference`: name and digest in a registry; empty unless the
    image was pushed or pulled.
    """

    id: str
    tags: tuple[str, ...]
    reference: str
    size_bytes: int
    created: str
    labels: Mapping[str, str]
    architecture: str = ""

    @property
    def name(self) -> str:
        """Longest tag, if possible one without `/`; for an image without tags, its reference, else its id."""
        return max(self.tags, key=lambda tag: ("/" not in tag, len(tag)), default=self.reference or self.id)

    @property
    def digest(self) -> str:
        """Digest in the registry, or empty."""
        return self.reference.partition("@")[2]


@dataclass(frozen=True, kw_only=True)
class Container:
    """Description of a container before it exists. Folders have the same path in it as on the host.

    `variables`: the user's own variables, of which only the names are shown. `folder`: working folder; empty for the
    working folder of the image. `gpu_index`: the only GPU for the container, as nvidia-smi counts; None for all GPUs.
    """

    image: str
    command: tuple[str, ...]
    user: str
    entrypoint: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    network: str = "none"
    gpus: bool = False
    gpu_index: int | None = None
    capabilities: tuple[str, ...] = ()
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_words(self) -> list[str]:
        """Equivalent `docker run` command line, to show and to repeat by hand."""
        words = ["docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL"]  # noqa: S108 - in the container
        words += ["--security-opt", "no-new-privileges", "--network", self.network, "--user", self.user]
        words += [word for name in self.capabilities for word in ("--cap-add", name)]
        words += ["--gpus", "all" if self.gpu_index is None else f"device={self.gpu_index}"] if self.gpus else []
        words += [] if self.shm_bytes is None else ["--shm-size", str(self.shm_bytes)]
        if self.memory_bytes is not None:
            words += ["--memory", str(self.memory_bytes), "--memory-swap", str(self.memory_bytes)]
        words += [] if self.cpus is None else ["--cpus", f"{self.cpus:g}"]
        for path in self.writable:
            words += ["--volume", f"{path}:{path}"]
        for path in self.readable:
            words += ["--volume", f"{path}:{path}:ro"]
        words += [word for name, value in self.environment.items() for word in ("--env", f"{name}={value}")]
        words += [word for name in self.variables for word in ("--env", name)]
        words += ["--workdir", self.folder] if self.folder else []
        words += ["--entrypoint", self.entrypoint[0]] if self.entrypoint else []
        return [*words, self.image, *(self.entrypoint or ("",))[1:], *self.command]


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    """End of a container. `out_of_memory`: the kernel killed one of its processes at the memory limit.

    `signal`: the first signal that this process received while the container ran.
    """

    exit_code: int
    out_of_memory: bool
    signal: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineEvent:
    """A message of a build or a push: text of a step, id of an image, digest, or the error that ended it."""

    text: str = ""
    image_id: str = ""
    digest: str = ""
    error: str = ""


class Engine:
    """Connection to a Docker engine that has answered."""

    def __init__(self, client: "docker.DockerClient", info: Mapping[str, Any], version: str) -> None:
        self._client = client
        self.version = version
        self.runtimes = frozenset(info.get("Runtimes") or ())
        self.root_folder = str(info.get("DockerRootDir") or "")
        machine = str(info.get("Architecture") or "")
        self.architecture = ARCHITECTURES.get(machine, machine)
        self.cpus = int(info.get("NCPU") or 0)
        self.memory_bytes = int(info.get("MemTotal") or 0)
        self.rootless = "name=rootless" in (info.get("SecurityOptions") or ())

    @property
    def has_gpus(self) -> bool:
        """Whether containers can get NVIDIA GPUs, by the runtime of NVIDIA's toolkit or by the hook for `--gpus`."""
        return "nvidia" in self.runtimes or shutil.which("nvidia-container-runtime-hook") is not None

    @property
    def caller(self) -> str:
        """`user:group` for a container whose files shall belong to the caller.

        Root (`0:0`) for a rootless engine, which maps root to the caller.
        """
        if sys.platform == "win32" or self.rootless:
            return "0:0"
        return f"{os.getuid()}:{os.getgid()}"

    def free_bytes(self) -> int | None:
        """Free bytes on the disk with the engine's images; None for an engine on another machine."""
        try:
            return shutil.disk_usage(self.root_folder).free
        except OSError:
            return None

    def image(self, name: str) -> Image | None:
        """Image with this id or tag; None if there is none."""
        import docker.errors  # noqa: PLC0415 - see the module

        with translated():
            try:
                return _image(self._client.images.get(name).attrs)
            except docker.errors.ImageNotFound:
                return None

    def images(self, labels: Mapping[str, str]) -> list[Image]:
        """Images with all these labels, newest first."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with translated():
            images = [_image(listed.attrs) for listed in self._client.images.list(filters={"label": wanted})]
        return sorted(images, key=lambda image: image.created, reverse=True)

    def containers(self, label: str) -> list[tuple[str, str]]:
        """(name, state) of every container with this label, running or not."""
        with translated():
            containers = self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
            return [(str(container.name), str(container.status)) for container in containers]

    def tag(self, image: str, name: str) -> None:
        """Add a tag to an image."""
        with translated():
            self._client.images.get(image).tag(name)

    def registry_digest(self, name: str) -> str:
        """Digest that the registry has for `name` today. Raises `ToolError` if the registry cannot be reached."""
        with translated(f"cannot look up '{name}'", "log in with `docker login`, or try from a machine with a network"):
            return str(self._client.images.get_registry_data(name).id)

    def registry_platforms(self, name: str) -> frozenset[str]:
        """Platforms of the image `name` in its registry, as `linux/amd64`; empty if unknown.

        Raises `ToolError` if the registry cannot be reached.
        """
        with translated(f"cannot look up '{name}'", "log in with `docker login`, or try from a machine with a network"):
            listed = self._client.images.get_registry_data(name).attrs.get("Platforms") or ()
        # A registry also lists attestations of an image, which have no platform or an unknown platform.
        pairs = ((item.get("os"), item.get("architecture")) for item in listed)
        return frozenset(
            f"{system}/{machine}" for system, machine in pairs if {system, machine}.isdisjoint(NO_PLATFORM)
        )

    def build(
        self,
        context: bytes,
        *,
        dockerfile: str,
        tag: str,
        build_args: Mapping[str, str],
        labels: Mapping[str, str],
        network: str | None,
        cached: bool,
        platform: str = "",
    ) -> Iterator[EngineEvent]:
        """Build an image for `platform` (`linux/amd64`), or for the engine's own platform; yields messages."""
        with translated("the build was interrupted"):
            stream = self._client.api.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                dockerfile=dockerfile,
                tag=tag,
                buildargs=dict(build_args),
                labels=dict(labels),
                network_mode=network,
                platform=platform or None,
                nocache=not cached,
                rm=True,
                forcerm=True,
                decode=True,
            )
            yield from map(_event, stream)

    def push(self, name: str) -> Iterator[EngineEvent]:
        """Push an image to its registry; one of the events has the digest."""
        with translated(f"'{name}' was not pushed", "docker login, and use a repository to which you may push"):
            yield from map(_event, self._client.api.push(name, stream=True, decode=True))

    @contextmanager
    def started(self, container: Container) -> Iterator["Running"]:
        """Start a container; it is stopped and removed at the end of the block, also after an error."""
        with translated(f"a container of '{container.image}' did not start"):
            # Not shown to users: standard input is open, and its end ends the trainer.
            environment = {**container.environment, **container.variables, LIFELINE: "stdin"}
            settings = {**_creation(container), "stdin_open": True, "environment": environment}
            created = self._client.containers.create(**settings)
        lifeline: Any = None
        try:
            with translated(f"a container of '{container.image}' did not start"):
                # Attach before the start, so that no line is lost.
                stream = created.attach(stdout=True, stderr=True, stream=True, demux=True)
                # Standard input closes when this process ends, even by SIGKILL. The trainer then ends cleanly.
                with suppress(Exception):  # some kinds of connection cannot attach to standard input
                    lifeline = created.attach_socket(params={"stdin": 1, "stream": 1})
                created.start()
            yield Running(created, stream)
        finally:
            if lifeline is not None:
                lifeline.close()
            # The engine may be gone. Then nothing can be removed, and the caller already has an error.
            with suppress(Exception):
                created.remove(force=True, v=True)


class Running:
    """A started container."""

    def __init__(self, container: Any, stream: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        self._container = container
        self._stream = stream
        self.name = str(container.name)

    def follow(self, *, on_stdout: Line, on_stderr: Line) -> ContainerEnd:
        """Pass on every line as it comes, until the container ends."""
        out, err = _Lines(on_stdout), _Lines(on_stderr)
        for stdout, stderr in self._pieces():
            out.feed(stdout)
            err.feed(stderr)
        out.close()
        err.close()
        with self._while_running():
            self._container.wait()
            self._container.reload()
        state = self._container.attrs["State"]
        return ContainerEnd(exit_code=int(state["ExitCode"]), out_of_memory=bool(state["OOMKilled"]))

    def _pieces(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        with self._while_running():
            yield from self._stream

    def _while_running(self) -> AbstractContextManager[None]:
        return translated(f"the Docker engine stopped while container {self.name} ran", START_DOCKER)

    def send_signal(self, number: int) -> None:
        """Send a signal. A container that has already ended is ignored."""
        with suppress(Exception):
            self._container.kill(signal=signal.Signals(number).name)


def connect() -> Engine:
    """Engine that the command `docker` would use. Raises `ToolError` without SDK, engine or permission."""
    if not socket_exists():
        install = f"install Docker: {document(INSTALL_PAGE) or 'https://docs.docker.com/engine/install'}"
        hint = START_DOCKER if shutil.which("docker") else install
        raise ToolError(f"no Docker engine: {DEFAULT_SOCKET} does not exist", hint=hint)
    try:
        import docker  # noqa: PLC0415 - 0.2 s, for those who use it
    except ModuleNotFoundError as error:
        raise ToolError("the package docker is missing", hint="pip install rooflaunch") from error
    with translated("no Docker engine answers", START_DOCKER):
        address = None if os.environ.get("DOCKER_HOST") else _current_context()
        client = docker.DockerClient(base_url=address, timeout=ASK_LIMIT_S) if address else docker.from_env()
        return Engine(client, client.info(), str(client.version()["Version"]))


def socket_exists() -> bool:
    """Whether an engine could exist here: a cheap check before the SDK is loaded."""
    configured = Path("~/.docker/config.json").expanduser()
    return bool(os.environ.get("DOCKER_HOST")) or DEFAULT_SOCKET.exists() or "currentContext" in _text(configured)


@contextmanager
def translated(what: str = "the Docker engine refused", hint: str = "launch doctor docker") -> Iterator[None]:
    """Turn an exception of the SDK or its HTTP libraries into a `ToolError`, with the exception as its cause."""
    import docker.errors  # noqa: PLC0415 - see the module
    import requests  # noqa: PLC0415
    import urllib3  # noqa: PLC0415

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if "Permission denied" in str(error):
            raise ToolError(f"{what}: permission denied", hint=JOIN_GROUP) from error
        raise ToolError(f"{what}: {_reason(error)}", hint=hint) from error


def _reason(error: Exception) -> str:
    explained = getattr(error, "explanation", None)
    text = (explained if isinstance(explained, str) and explained else str(error)).strip()
    # Keep only the operating system's message, without the texts that libraries add.
    if system := re.search(r"\[Errno \d+\] ([^'\")]+)", text):
        return system[1]
    return text.splitlines()[0] if text else type(error).__name__


def _current_context() -> str | None:
    """Address chosen by `docker context use`, which the SDK does not read by itself; None for the default."""
    import docker.context  # noqa: PLC0415 - see the module

    with suppress(Exception):  # a damaged ~/.docker is no reason not to try the default address
        chosen = docker.context.ContextAPI.get_current_context()
        return str(chosen.Host) if chosen is not None and chosen.Host else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _image(attributes: Mapping[str, Any]) -> Image:
    digests: Sequence[str] = attributes.get("RepoDigests") or ()
    return Image(
        id=str(attributes["Id"]),
        tags=tuple(attributes.get("RepoTags") or ()),
        reference=digests[0] if digests else "",
        size_bytes=int(attributes["Size"]),
        created=str(attributes["Created"]),
        labels=attributes["Config"].get("Labels") or {},
        architecture=str(attributes.get("Architecture") or ""),
    )


def _event(message: Mapping[str, Any]) -> EngineEvent:
    aux = message.get("aux") or {}
    status = message.get("status") or ""
    progress = f"{message['id']}: {status}" if status and message.get("id") else status
    return EngineEvent(
        text=str(message.get("stream") or progress),
        image_id=str(aux.get("ID") or ""),
        digest=str(aux.get("Digest") or ""),
        error=str(message.get("error") or ""),
    )


def _creation(container: Container) -> dict[str, Any]:
    import docker.types  # noqa: PLC0415 - see the module

    mounts = [(path, False) for path in container.writable] + [(path, True) for path in container.readable]
    index = container.gpu_index
    which: dict[str, Any] = {"count": -1} if index is None else {"device_ids": [str(index)]}
    return {
        "image": container.image,
        "command": list(container.command),
        "entrypoint": list(container.entrypoint) if container.entrypoint else None,
        "user": container.user,
        "environment": {**container.environment, **container.variables},
        "working_dir": container.folder or None,
        "mounts": [docker.types.Mount(path, path, type="bind", read_only=readonly) for path, readonly in mounts],
        "network_mode": container.network,
        "read_only": True,
        "tmpfs": {"/tmp": "exec"},  # noqa: S108 - in the container; compiled kernels are loaded from there
        "cap_drop": ["ALL"],
        "cap_add": list(container.capabilities),
        "security_opt": ["no-new-privileges"],
        "device_requests": [docker.types.DeviceRequest(**which, capabilities=[["gpu"]])] if container.gpus else None,
        "shm_size": container.shm_bytes,
        "mem_limit": container.memory_bytes,
        # Limit of memory and swap together: equal to the memory limit, so that the container cannot swap.
        "memswap_limit": container.memory_bytes,
        "nano_cpus": None if container.cpus is None else round(container.cpus * 1e9),
        "labels": dict(container.labels),
    }


class _Lines:
    """Splits a stream that comes in pieces into whole lines."""

    def __init__(self, on_line: Line) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, piece: bytes | None) -> None:
        *lines, self._rest = (self._rest + (piece or b"")).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def close(self) -> None:
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))

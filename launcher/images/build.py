"""`launch build`: build an image from a recipe, unless the engine has it; push it, or write it to a file (`--sif`).

A launch on a rented VM has its container image from here too: the one for this code, pushed if needed, or the user's
own, by digest.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from launcher.docker_engine import Engine, EngineEvent, Image
from launcher.images import contents
from launcher.images.contents import Flavour, Recipe
from launcher.values import CPU_FLAVOUR
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.spec import Device, RunSpec
from workload.contract.text import printable, printable_lines

# Number of output lines that a failed build shows.
LAST_LINES = 15
# PyTorch with CUDA is 6 GB in an image, and the builder needs twice the disk space of a layer while committing it.
NEEDED_BYTES = 14 * 10**9
# After a change of our code only the small last layers are built: an earlier image of the flavour has the others.
REBUILD_NEEDED_BYTES = 2 * 10**9
STEP_WIDTH = 100
# Purpose of a step of docker/Dockerfile, by the start of its command. A test covers each step that takes time.
PURPOSES = (
    (r"FROM ", "the base image"),
    (r"RUN apt-get ", "packages of the system"),
    (r"RUN mkdir /opt/ncu", "Nsight Compute"),
    (r"RUN pip install .*--requirement", "Python packages"),
    (r"RUN pip install ", "PyTorch"),
    (r"RUN if \[ -n \"\$NCU_URL\"", "a look at Nsight Compute"),
    (r"RUN python /opt/build/gpu_code.py", "code for the GPUs"),
    (r"RUN python .*compileall", "the trainer"),
    (r"RUN python -m ensurepip", "the script's packages"),
)
# Steps not to show: settings and copies take no time and tell a waiting user nothing.
SILENT = re.compile(r"(ARG|ENV|LABEL|WORKDIR|USER|ENTRYPOINT|CMD|COPY|SHELL|VOLUME|STOPSIGNAL) ")
BAR_WIDTH = 20
# Least width of a terminal, in characters, that shows the progress bar.
BAR_FROM = 60
# Texts of an engine's error if it cannot reach a registry.
UNREACHABLE = (
    "dial tcp",
    "no such host",
    "i/o timeout",
    "TLS handshake timeout",
    "Client.Timeout",
    "connection refused",
)
EMULATION = (
    "to add emulation to an engine: docker run --privileged --rm tonistiigi/binfmt --install amd64, or the "
    "settings of Docker Desktop"
)
STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")


@dataclass(frozen=True, kw_only=True)
class Built:
    """Result of a build. `digest`: the registry's digest; empty until the image is pushed."""

    flavour: str
    tag: str
    image_id: str
    digest: str
    base: str
    base_digest: str
    size_bytes: int
    commit: str
    seconds: float
    cached: bool
    architecture: str = ""

    def text(self) -> str:
        """Result as text, with a line for each fact."""
        base = (
            self.base_digest or "no digest: the image that the tag names on the day of the build (launch build --pin)"
        )
        lines = {
            "image": self.tag + (" (built before; nothing has changed)" if self.cached else ""),
            "id": self.image_id,
            "digest": self.digest or "none until it is pushed",
            "base": f"{self.base}, {base}",
            "size": f"{self.size_bytes / 1e9:.2f} GB",
            "commit": self.commit or "unknown",
            "took": f"{self.seconds:.0f} s",
            "next": f"launch local --runtime docker --image {self.tag}",
        }
        return "\n".join(f"{name:<8} {text}" for name, text in lines.items())


class BuildFailedError(ToolError):
    """Failed build. The message has the last lines of the failing step's output."""

    def report(self) -> str:
        """Text for the user, with the message's line breaks kept."""
        return f"error: {printable_lines(str(self))}\nhint: {printable(as_typed(self.hint))}"


def build(engine: Engine, recipe: Recipe, *, network: str | None = None, cached: bool = True) -> Built:
    """Build the image of a recipe. An image that the engine has under the recipe's tag is not built again."""
    began_s = time.monotonic()
    existing = engine.image(recipe.tag) if cached else None
    if existing is None:
        earlier = engine.images({contents.FLAVOUR_LABEL: recipe.flavour.name}) if cached else []
        _require_space(engine, REBUILD_NEEDED_BYTES if earlier else NEEDED_BYTES)
        events = engine.build(
            recipe.context(),
            dockerfile=contents.DOCKERFILE,
            tag=recipe.tag,
            build_args=recipe.build_args(),
            labels={contents.INPUTS_LABEL: recipe.inputs_hash},
            network=network,
            cached=cached,
            platform=recipe.platform,
        )
        image_id = logged(recipe.tag, events)
        image = engine.image(image_id)
        if image is None:
            raise ToolError(f"the engine lost image {image_id} right after the build", hint="launch doctor docker")
    else:
        image = existing
    if not recipe.platform:
        # The plain name is the newest image of the flavour, for `docker run rooflaunch:cpu` by hand on this machine.
        engine.tag(image.id, f"{contents.REPOSITORY}:{recipe.flavour.name}")
    return built_of(
        image,
        flavour=recipe.flavour.name,
        tag=recipe.tag,
        base=recipe.base,
        base_digest=recipe.base_digest,
        seconds=time.monotonic() - began_s,
        cached=existing is not None,
    )


def logged(tag: str, events: Iterator[EngineEvent]) -> str:
    """Show and log a build of this tag to its end; return the image's id. Raises `ToolError`."""
    log = log_path(tag)
    print(f"building {tag}; log: {log}", file=sys.stderr)
    with _opened(log) as written:
        return _follow(events, written, log)


def existing(recipe: Recipe, image: Image) -> Built:
    """Result for `image`, which the engine already has for this code, so that no build is needed."""
    flavour, base, digest = recipe.flavour.name, recipe.base, recipe.base_digest
    return built_of(image, flavour=flavour, tag=image.name, base=base, base_digest=digest)


def built_of(
    image: Image, *, flavour: str, tag: str, base: str, base_digest: str, seconds: float = 0.0, cached: bool = True
) -> Built:
    """Result for an image of the engine. `seconds`, `cached`: by default those of an image that was built before."""
    return Built(
        flavour=flavour,
        tag=tag,
        image_id=image.id,
        digest=image.digest,
        base=base,
        base_digest=base_digest,
        size_bytes=image.size_bytes,
        commit=image.labels.get("org.opencontainers.image.revision", ""),
        seconds=seconds,
        cached=cached,
        architecture=image.architecture,
    )


def platform_of_a_vm(engine: Engine) -> str:
    """Platform of an image for a VM, as in a recipe; empty if the engine builds for that platform by default."""
    return "" if engine.architecture in ("", contents.VM_ARCHITECTURE) else f"linux/{contents.VM_ARCHITECTURE}"


def push(engine: Engine, built: Built, repository: str) -> Built:
    """Push an image to `repository` (`HOST/PROJECT/NAME`, no tag); the result has the registry's digest.

    Raises `ToolError` for an image that no VM could run.
    """
    if built.architecture not in ("", contents.VM_ARCHITECTURE):
        raise ToolError(
            f"'{built.tag}' is an image for {built.architecture}; the VMs are {contents.VM_ARCHITECTURE}",
            hint=f"launch build --push --repository HOST/NAME builds it for linux/amd64; {EMULATION}",
        )
    name = f"{repository}:{built.tag.rpartition(':')[2]}"
    engine.tag(built.image_id, name)
    print(f"pushing {name}", file=sys.stderr)
    digest, shown, again = "", _ProgressLine(sys.stderr), "docker login, then launch build --push again"
    for event in engine.push(name):
        if event.error:
            shown.clear()
            raise ToolError(f"'{name}' was not pushed: {event.error}", hint=again)
        digest = event.digest or digest
        shown.line(event.text)
    shown.clear()
    if not digest:
        raise ToolError(f"the registry gave no digest for '{name}'", hint=again)
    return replace(built, tag=name, digest=digest)


def pin(engine: Engine, flavour: Flavour) -> str:
    """Ask the registry for the digest of the flavour's base, write it into images.toml, and return it."""
    digest = engine.registry_digest(flavour.base)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ToolError(
            f"the registry's digest of '{flavour.base}' is no sha256: '{digest}'", hint="launch doctor docker"
        )
    contents.write_digest(contents.table_path(), flavour.name, digest)
    return digest


def require_repository(repository: str | None) -> str:
    """Repository for `--push`. Raises `UsageError` if it is missing or has a tag."""
    if not repository or ":" in repository.rpartition("/")[2] or "/" not in repository:
        raise UsageError(
            f"--push needs a repository without a tag; got '{repository or ''}'",
            hint="--repository us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer",
        )
    return repository


def log_path(tag: str) -> Path:
    """Path of the log for a build of `tag`, in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "rooflaunch" / f"build-{tag.replace(':', '-')}.log"


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the build's log '{path}' cannot be written: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder you own",
        ) from error


def _require_space(engine: Engine, needed_bytes: int) -> None:
    free = engine.free_bytes()
    if free is not None and free < needed_bytes:
        raise ToolError(
            f"{free / 1e9:.1f} GB are free in {engine.root_folder}; a build needs {needed_bytes / 1e9:.0f} GB",
            hint="docker image prune, or docker system prune",
        )


def _follow(events: Iterator[EngineEvent], log: TextIO, path: Path) -> str:
    """Log and show a build; return the image's id. Raises `ToolError` with the output of the failing step."""
    shown, last, step, image_id = _ProgressLine(sys.stderr), deque[str](maxlen=LAST_LINES), "the start", ""
    hint = f"the whole log: {path}"
    try:
        for event in events:
            log.write(event.text + ("\n" if event.text and not event.text.endswith("\n") else ""))
            image_id = event.image_id or image_id
            for line in filter(str.strip, event.text.splitlines()):
                if match := STEP.match(line):
                    step = f"step {match[1]} of {match[2]}: {_shortened(match[3])}"
                    last.clear()
                    shown.step(int(match[1]), int(match[2]), match[3])
                else:
                    last.append(line.rstrip())
                    shown.line(line)
            if event.error:
                log.write(event.error + "\n")
                output = "".join(f"\n  {line}" for line in last)
                message = f"the build failed at {step}\n  {event.error.strip()}{output}"
                raise BuildFailedError(message, hint=f"{_hint_of(event.error + output)}{hint}")
    except RooflaunchError as error:
        shown.clear()
        raise type(error)(str(error), hint=error.hint if error.hint.endswith(hint) else hint) from error
    shown.clear()
    if not image_id:
        raise ToolError("the build ended without an image", hint=hint)
    return image_id


def _hint_of(error: str) -> str:
    if "exec format error" in error:
        return f"{EMULATION}; "
    if not any(sign in error for sign in UNREACHABLE):
        return ""
    return "launch build --base IMAGE uses a base image that the engine has or can pull; "


def _shortened(command: str) -> str:
    words = " ".join(command.split())
    return words if len(words) <= STEP_WIDTH else words[: STEP_WIDTH - 1] + "…"


def require_apptainer(path: Path) -> str:
    """Check that an image can be written to the `.sif` file `path`; return the path of the program `apptainer`.

    Older versions of Apptainer call their program `singularity`; this name is looked for too.

    A build takes minutes, so call this function before the build.
    Raises `UsageError` for a file that would not be a `.sif` or has no folder, `ToolError` without the program.
    """
    if path.suffix != ".sif":
        raise UsageError(f"--sif makes a file whose name ends in .sif; got '{path}'", hint="--sif rooflaunch.sif")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--sif: there is no folder '{path.parent}'", hint="make the folder, or name another one")
    tool = shutil.which("apptainer") or shutil.which("singularity")
    if tool is None:
        raise ToolError(
            "apptainer, which makes a .sif file of the image, is not installed",
            hint="install Apptainer here; or push the image (--push), so that the cluster's Apptainer can pull it",
        )
    return tool


def write_sif(tool: str, tag: str, path: Path) -> None:
    """Write the engine's image to a file for Apptainer, replacing an existing one. Raises `ToolError` if that fails."""
    command = [tool, "build", "--force", str(path), f"docker-daemon:{tag}"]
    print(shlex.join(command), file=sys.stderr)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ToolError(
            f"apptainer ended with exit code {done.returncode}", hint="Apptainer's messages above give the reason"
        )


class _ProgressLine:
    """Progress on stderr: a line for each step; on a terminal also the newest output, in one line with a bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._bar = ""

    def step(self, number: int, total: int, command: str) -> None:
        done = BAR_WIDTH * (number - 1) // total
        self._bar = f"[{'#' * done}{'.' * (BAR_WIDTH - done)}] "
        purpose = next((purpose for start, purpose in PURPOSES if re.match(start, command)), None)
        if purpose is None and SILENT.match(command):
            return
        text = f"step {number} of {total}: {purpose or _shortened(command)}"
        self.clear()
        width = shutil.get_terminal_size().columns - 1
        print(text[:width] if self._is_terminal else text, file=self._stream, flush=True)

    def line(self, text: str) -> None:
        if self._is_terminal and text.strip():
            columns = shutil.get_terminal_size().columns
            start = "    " + (self._bar if columns >= BAR_FROM else "")
            width = columns - 1 - len(start)
            self._stream.write(f"\r{start}{text.strip()[:width]:<{width}}")
            self._stream.flush()

    def clear(self) -> None:
        if self._is_terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()


# --- packages of a script, as a layer

MOST_BYTES = 1_000_000
HELD = ("torch", "torchvision", "numpy")
# The image has no pip of its own, so ensurepip comes first. Any builder can read this Dockerfile.
DOCKERFILE = f"""ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
USER 0:0
COPY requirements.txt /opt/build/script.txt
RUN python -m ensurepip > /dev/null \\
    && python -c "import importlib.metadata as m; [print(n + '==' + m.version(n)) for n in {HELD}]" \\
       > /opt/build/held.txt \\
    && python -m pip install --no-cache-dir --disable-pip-version-check --progress-bar off --no-color \\
       --requirement /opt/build/script.txt --constraint /opt/build/held.txt \\
    && python -m pip uninstall --quiet --yes pip
USER 1000:1000
"""


def read(path: str) -> bytes:
    """Content of the file that `--requirements` names. Raises `UsageError` if it cannot be read or is too large."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(
            f"the requirements '{path}' cannot be read: {error.strerror}", hint="--requirements requirements.txt"
        ) from error
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"the requirements '{path}' have {len(content)} bytes: this is not a list of packages",
            hint="a list of packages, one per line",
        )
    return content


def layered(engine: Engine, base: Image, requirements: bytes, *, platform: str = "") -> Image:
    """Image `base` with the packages added, built once for the same base and requirements. Raises `ToolError`."""
    key = hashlib.sha256(b"\n".join((base.id.encode(), DOCKERFILE.encode(), requirements))).hexdigest()
    tag = f"{contents.REPOSITORY}:script-{key[: contents.HASH_DIGITS]}"
    if (existing := engine.image(tag)) is not None:
        return existing
    events = engine.build(
        contents.tar_of({"Dockerfile": DOCKERFILE.encode(), "requirements.txt": requirements}),
        dockerfile="Dockerfile",
        tag=tag,
        build_args={"BASE_IMAGE": base.id},
        # A label of its own, so that a search for an image for this code does not find this layer.
        labels={contents.INPUTS_LABEL: f"{base.labels.get(contents.INPUTS_LABEL, '')}+{key[: contents.HASH_DIGITS]}"},
        # Resolve names as on this machine, because only this machine may know pip's index.
        network="host",
        cached=True,
        platform=platform,
    )
    logged(tag, events)
    image = engine.image(tag)
    if image is None:
        raise ToolError(f"the engine lost the image {tag} right after the build", hint="launch doctor docker")
    return image


def pushed(engine: Engine, reference: str, requirements: bytes) -> str:
    """Add the packages to a registry's image, and push the result to the same repository.

    Returns the new image's reference, by digest. Raises `ToolError`.
    """
    base = engine.image(reference)
    if base is None:
        raise ToolError(f"the engine has no image '{reference}'", hint=f"docker pull {reference}")
    image = layered(engine, base, requirements, platform=platform_of_a_vm(engine))
    repository = reference.partition("@")[0]
    # The engine knows which flavour the base has, and nothing else of its recipe.
    flavour = image.labels.get(contents.FLAVOUR_LABEL, "")
    built = built_of(image, flavour=flavour, tag=image.name, base=base.name, base_digest=base.digest)
    return f"{repository}@{push(engine, built, repository).digest}"


def image_to_be(specs: Iterable[RunSpec], flavour: str, repository: str) -> str:
    """Planned reference of the image for this code, by tag: the push gives the digest. `flavour`: for the GPU."""
    on_cpu = all(spec.device is Device.CPU for spec in specs)
    row = contents.require_flavour(CPU_FLAVOUR if on_cpu else flavour)
    recipe = contents.make_recipe(row, commit=contents.current_commit())
    return f"{repository}:{recipe.tag.partition(':')[2]}"


def prepared_image(
    engine: Callable[[], Engine], image: str | None, flavour: str, repository: str, log_in: Callable[[str], str]
) -> tuple[str, tuple[str, ...]]:
    """Image of a launch by digest, and notes on it: the user's `image`, or the one for this code, which is pushed.

    Raises `UsageError` for an image that no VM can run, `ToolError` if an image cannot be found, built or pushed.
    """
    if image is None:
        return pushed_image(engine(), flavour, repository, log_in), ()
    reference = by_digest(engine, image)
    return reference, architecture_notes(engine, reference)


def by_digest(engine: Callable[[], Engine], image: str) -> str:
    """Reference of the image by digest, which never changes. A tag is looked up in its registry.

    Raises `ToolError` if the tag cannot be looked up.
    """
    if "@sha256:" in image:
        return image
    try:
        digest = engine().registry_digest(image)
    except ToolError as error:
        raise ToolError(
            f"--image needs a digest, but the digest of the tag '{image}' cannot be found: {error}",
            hint="--image HOST/NAME@sha256:…, as `launch build --push` prints it",
        ) from error
    head, slash, last = image.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}@{digest}"


def architecture_notes(engine: Callable[[], Engine], reference: str) -> tuple[str, ...]:
    """Notes for an image whose platform cannot be checked. Raises `UsageError` for an image that no VM can run."""
    try:
        platforms = engine().registry_platforms(reference)
    except ToolError as error:
        return (f"could not check that the image is for {contents.VM_PLATFORM}: {error}",)
    if not platforms:
        return (
            f"could not check that the image is for {contents.VM_PLATFORM}: the registry does not report its platform",
        )
    if contents.VM_PLATFORM not in platforms:
        raise UsageError(
            f"'{reference}' is an image for {', '.join(sorted(platforms))}; the VMs are {contents.VM_PLATFORM}",
            hint=f"--image with an image for {contents.VM_PLATFORM}, as `launch build --push` makes it",
        )
    return ()


def pushed_image(engine: Engine, flavour: str, repository: str, log_in: Callable[[str], str]) -> str:
    """Push the image for this code to `repository`, built if the engine lacks it; return its reference by digest.

    `log_in`: command that lets Docker push to a host; empty for a registry that is not the cloud's.
    """
    row = contents.require_flavour(flavour)
    held = engine.image(row.pinned_base)
    platform = platform_of_a_vm(engine)
    recipe = contents.make_recipe(
        row, base_id=held.id if held else "", commit=contents.current_commit(), platform=platform
    )
    labelled = engine.images({contents.FLAVOUR_LABEL: flavour, contents.INPUTS_LABEL: recipe.inputs_hash})
    matching = [image for image in labelled if image.architecture in ("", contents.VM_ARCHITECTURE)]
    # An image on another base, built with `launch build --base`, is also an image for this code.
    built = existing(recipe, matching[0]) if matching else build(engine, recipe)
    try:
        pushed = push(engine, built, repository)
    except ToolError as error:
        if command := log_in(repository.partition("/")[0]):
            raise ToolError(str(error), hint=f"{command}, then run the same command again") from error
        raise
    return f"{repository}@{pushed.digest}"

"""Runs the user's script in this process as Python itself would run it, and ends a script that has been measured.

Standard library only, and no torch.
"""

import hashlib
import importlib.abc
import importlib.metadata
import importlib.util
import io
import os
import runpy
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from workload import log
from workload.contract.errors import ExitCode, InterruptedRunError, RooflaunchError, UsageError
from workload.contract.further import STARTER
from workload.contract.process import allow_quick_end
from workload.contract.record import ScriptFacts
from workload.contract.script_words import DATA, line_of, main_file, redacted
from workload.environment.collect import checked_out
from workload.environment.machine import HostSystem

NAMES = frozenset({"analysis", "launcher", "workload"})
ROOT = Path(__file__).resolve().parents[2]


class _Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of modules with the names of our packages, active while a script runs.

    `_aside`: modules taken out of `sys.modules`, by name: ours while the finder is active, else the user's.
    """

    def __init__(self) -> None:
        self._aside: dict[str, ModuleType] = {}

    @property
    def is_on(self) -> bool:
        """Whether our packages are hidden."""
        return self in sys.meta_path

    def turn(self) -> None:
        """Hide our packages from imports, or show them again."""
        here = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NAMES}
        sys.modules.update(self._aside)
        self._aside = here
        if self.is_on:
            sys.meta_path.remove(self)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's interface
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec of the user's module, else of our loaded module; None leaves the search to Python's own finders."""
        package, _, rest = fullname.partition(".")
        if package not in NAMES:
            return None
        # Search without our own folder: Python prefers our regular packages to a user's folder without `__init__.py`.
        elsewhere = [entry for entry in sys.path if isinstance(entry, str) and Path(entry).resolve() != ROOT]
        if not rest and (theirs := PathFinder.find_spec(fullname, elsewhere, target)):
            return theirs
        ours = self._aside.get(fullname)
        if ours is None or (rest and sys.modules.get(package) is not self._aside.get(package)):
            return None
        return ModuleSpec(fullname, self, loader_state=ours.__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Our module, which was loaded before the script began."""
        return self._aside[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec. The module was executed when it was first loaded, so nothing else is done."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


_names = _Names()


@contextmanager
def hidden() -> Iterator[None]:
    """Hide our packages from imports until the block ends."""
    _names.turn()
    try:
        yield
    finally:
        _names.turn()


def shown() -> AbstractContextManager[None]:
    """Context manager: show our packages for an import of ours while the script waits."""
    # Turned a second time, the names are shown.
    return hidden() if _names.is_on else nullcontext()


# --- the script's process

TORCHRUN = "torchrun --nproc-per-node 2 -m rooflaunch script -- train.py"
STEP_HINT = "mark the end of a step in the script: `import rooflaunch`, then `rooflaunch.step_done()` after each update"
# Time limit in seconds for the script's exit: a last checkpoint, the end of worker processes and a logger's upload take
# seconds.
ENDING_S = 60.0
# The original function: `os._exit` itself is wrapped while a script is measured.
LEAVE = os._exit
# Frames of these packages are left out of tracebacks.
OURS = tuple(f"{ROOT / name}{os.sep}" for name in ("rooflaunch", "workload"))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script or a module with its arguments. `words`: as given; `folder`: location of its own modules."""

    words: tuple[str, ...]
    module: str | None
    path: Path | None
    arguments: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        """Name of the script, `train.py`, or of the module."""
        return self.path.name if self.path else self.module or ""

    def run(self) -> None:
        """Run the program as `__main__`. Its exceptions pass through, including `SystemExit`."""
        with hidden():
            self._run()

    def _run(self) -> None:
        sys.argv = [str(self.words[0]), *self.arguments]
        if self.module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            return
        assert self.path is not None
        sys.path.insert(0, str(self.folder))
        main = ModuleType("__main__")
        main.__file__ = str(Path(self.words[0]).absolute())
        main.__dict__["__builtins__"] = __builtins__
        with io.open_code(str(self.path)) as source:
            code = compile(source.read(), main.__file__, "exec", dont_inherit=True)
        # Not removed later: worker processes, pickles and functions that run at exit look for `__main__`.
        sys.modules["__main__"] = main
        exec(code, main.__dict__)  # noqa: S102 - the user's own script


class EndOfScript(SystemExit):
    """Raised inside the script's optimizer step, as if the script had called `sys.exit(0)` there."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(kw_only=True)
class End:
    """End of the script: its exit code, and the exception that ended the script."""

    code: int = 0
    error: BaseException | None = None


def run_script(script: Program, explain: Callable[[BaseException], RooflaunchError | None] = lambda _: None) -> End:
    """Run the script with Python's own streams and Ctrl-C handling.

    A process that the script has forked exits here with its own exit code. `explain`: returns an error to report in
    place of the script's own traceback, if it knows the cause.
    """
    process = os.getpid()
    end = _ended(script, explain)
    if os.getpid() != process:
        raise SystemExit(end.code)
    return end


def _ended(script: Program, explain: Callable[[BaseException], RooflaunchError | None]) -> End:
    streams = sys.stdout, sys.stderr
    # Ctrl-C raises KeyboardInterrupt, which many training scripts catch.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Our own streams drop output that cannot be written; the script must get the error.
        sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
        script.run()
    except EndOfScript:
        # We have ended the script in the middle of its training, so it has nothing left to do.
        allow_quick_end()
        return End()
    except SystemExit as ended:
        return End(code=code_of(ended), error=ended)
    except InterruptedRunError as error:
        return End(code=ExitCode.INTERRUPTED, error=error)
    except KeyboardInterrupt:
        hint = "run again; an unfinished bundle keeps its steps"
        return End(code=ExitCode.INTERRUPTED, error=InterruptedRunError("interrupted by Ctrl-C", hint=hint))
    except BaseException as error:  # noqa: BLE001 - whatever a script may raise
        explained = explain(error)
        if explained is None:
            # Print a traceback as Python would without us, through the script's own `sys.excepthook` if it has one.
            trace = error.__traceback__
            while trace is not None:
                path = trace.tb_frame.f_code.co_filename
                if not path.startswith(OURS) and "runpy" not in path and "importlib._bootstrap" not in path:
                    break
                trace = trace.tb_next
            try:
                sys.excepthook(type(error), error.with_traceback(trace), trace)
            except Exception:  # noqa: BLE001 - the script's own hook may do anything
                traceback.print_exception(error)
        return End(code=explained.exit_code if explained else ExitCode.BUG, error=explained or error)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = streams
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGINT, before)
    return End()


def end_by_force_after(name: str, code: int, *, last_words: str = "") -> None:
    """End this process with `code` if the script `name` has not ended within `ENDING_S` seconds.

    A script may catch SystemExit, or wait for a thread. `last_words`: an error to log before the forced end.
    """
    limit_s = ENDING_S

    def watch() -> None:
        time.sleep(limit_s)
        if last_words:
            log.LOGGER.error("%s", last_words)
        log.LOGGER.warning(
            "note       %s did not end within %g s after the request to exit (it catches SystemExit, or "
            "waits for a thread or a process): it was killed; the measurements are written",
            name,
            limit_s,
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        LEAVE(code)

    threading.Thread(target=watch, name="end of the script", daemon=True).start()


def resolve(words: Sequence[str], *, data: str | None = None) -> Program:
    """Find the program named by the words after `--`. Raises `UsageError` if there is none.

    `data`: replaces `{data}` in the script's arguments.
    """
    path = main_file(words, Path.cwd(), line_of("python -m rooflaunch", "script"))
    filled = tuple(words if data is None else (word.replace(DATA, data) for word in words))
    if path is None:
        return _module(words, filled)
    path = path.resolve()
    return Program(words=tuple(words), module=None, path=path, arguments=filled[1:], folder=path.parent)


def _module(words: Sequence[str], filled: Sequence[str]) -> Program:
    sys.path.insert(0, str(Path.cwd()))
    try:
        with hidden():
            spec = importlib.util.find_spec(words[1])
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.pop(0)
    if spec is None:
        raise UsageError(f"no module '{words[1]}' for this Python, {sys.executable}", hint="python -m pip list")
    origin = Path(spec.origin).resolve() if spec.origin and spec.origin.endswith(".py") else None
    return Program(
        words=tuple(words),
        module=words[1],
        path=None,
        arguments=tuple(filled[2:]),
        folder=origin.parent if origin else Path.cwd(),
    )


def rank_here() -> tuple[int, int] | None:
    """Number of this process among the ranks that torchrun has started, and their number; None for one process.

    Raises `UsageError` for variables that do not describe ranks on one machine, or ranks that rooflaunch has started.
    """
    names = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE")
    given = [os.environ.get(name, os.environ.get("WORLD_SIZE", "1")) for name in names]
    if given[0] == "1":
        return None
    size, rank, here = (int(text) if text.isdecimal() else -1 for text in given)
    if not 0 <= rank < size or (size != here and STARTER not in os.environ):
        got = ", ".join(f"{name}={text}" for name, text in zip(names, given, strict=True))
        raise UsageError(
            f"only ranks on one machine can be measured, or those of launch slurm --machines and launch ssh; got {got}",
            hint=f"unset WORLD_SIZE, or {TORCHRUN}",
        )
    return rank, size


def several_processes() -> UsageError | None:
    """Error for a script that has joined a group of several processes, else None. torch must be imported."""
    distributed = sys.modules["torch"].distributed
    size = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if size == 1:
        return None
    return UsageError(
        f"the script trains with {size} processes, but only this one is measured",
        hint=f"--devices {size}, for a script that reads RANK, LOCAL_RANK and WORLD_SIZE; or run it as one process",
    )


def no_optimizer(what: str, where: str) -> UsageError:
    """Error for a script that updates its parameters by hand, at the line `where`."""
    return UsageError(
        f"{what}, the last one at {where}, but no step of an optimizer of torch.optim",
        hint=f"`import rooflaunch`, and after the update that follows {where}: `rooflaunch.step_done()`",
    )


def code_of(ended: SystemExit) -> int:
    """Exit code that Python gives for a `SystemExit`; prints its message."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


# --- facts of a script's code

# A repository of thousands of modules is identified by its commit.
MOST_FILES = 500
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


def script_facts(words: Sequence[str], folder: Path, main: Path | None, *, machine: HostSystem) -> ScriptFacts:
    """Facts of the script `main` in `folder`, after its imports; `words`: script and arguments as given."""
    argv = redacted(words)
    files = {name: sha256_of(path) for name, path in sorted(_files(folder, main).items())}
    packages = dict(sorted(_packages()))
    commit, dirty = checked_out(machine, folder, "--untracked-files=no")
    return ScriptFacts(
        argv=argv,
        command=shlex.join(argv),
        files=files,
        sha256=_digest(files),
        commit=commit,
        dirty=dirty,
        packages=packages,
        packages_sha256=_digest(packages),
    )


def _digest(rows: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in rows.items()).encode()).hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(folder: Path, main: Path | None) -> dict[str, Path]:
    """The script and the modules that it imported from its own folder, by relative path."""
    paths = {main} if main else set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        path = Path(name) if isinstance(name, str) and name.endswith(".py") else None
        if path and path.is_absolute() and path.is_relative_to(folder) and not PACKAGE_FOLDERS & set(path.parts):
            paths.add(path)
    ours = ROOT / "rooflaunch", ROOT / "workload"
    kept = sorted(path for path in paths if path.is_file() and not any(map(path.is_relative_to, ours)))[:MOST_FILES]
    return {path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name: path for path in kept}


def _packages() -> Iterator[tuple[str, str]]:
    """Pairs of name and version, one for each installed package that the script has imported."""
    loaded, names = {name.partition(".")[0] for name in list(sys.modules)}, set[str]()
    for distribution in importlib.metadata.distributions():
        # As `importlib.metadata.packages_distributions` does, in a third of its time: 0.2 s beside torch.
        top = (distribution.read_text("top_level.txt") or "").split()
        paths = [] if top else (distribution.read_text("RECORD") or "").splitlines()
        if loaded & {*top, *(path.partition(",")[0].partition("/")[0].removesuffix(".py") for path in paths)}:
            names.add(distribution.name)
    for name in names:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue

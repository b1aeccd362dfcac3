"""Several ranks of our trainer or of a user's script: their start with torchrun's library, and the life of one rank.

The starting process trains nothing. It waits for the ranks, names the one that failed first, and seals the bundle if
rank 0 could not. `notes`: a folder for one run, in which rank 0 leaves the path of its bundle, and each rank its error.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workload import log
from workload.contract import bundle
from workload.contract.errors import (
    BundleError,
    ExitCode,
    InterruptedRunError,
    LostRankError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    ToolError,
    UsageError,
)
from workload.contract.further import listening_at
from workload.contract.invocation import SCRIPTS, TRAINER
from workload.contract.operating_system import SIGNALS, replace_text
from workload.contract.process import (
    ChildEnd,
    handled_by,
    interruption,
    interruption_deferred,
    kill_descendants,
    pending_interruption,
    raise_if_interrupted,
    run_child,
)
from workload.contract.ranks import NOTES_FLAG
from workload.contract.record import Status
from workload.contract.spec import Device, Profile, Resolved, RunSpec, arguments
from workload.contract.trainer import Context
from workload.environment import host
from workload.measure.timing import Timeline
from workload.run import machines, unfinished
from workload.steps.program import LEAVE, Program

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

# Function that runs the trainer or the script once, with the facts of one repeat; returns its end, and the bundles that
# it opened.
RunOnce = Callable[[Context], tuple[ChildEnd, list[Path]]]


def repeat_trainer(resolved: Resolved, context: Context, output: Path) -> int:
    """Train the configuration `repeats` times, as its spec says, then profile it; print the folder of each bundle."""
    spec, alone = resolved.spec, replace(resolved.spec, repeats=1)

    def run_once(context: Context) -> tuple[ChildEnd, list[Path]]:
        opened: list[Path] = []

        def note_and_print(folder: Path | str) -> None:
            opened.append(Path(folder))
            print(folder, flush=True)

        ended = run_child(
            [*TRAINER, "train", *arguments(alone), "-o", str(output), "--context", context.to_argument()],
            on_line=note_and_print,
        )
        known = [*opened]
        settled = unfinished.seal_all(ended.code, ended.error(), known, output=output, spec=alone, context=context)
        for folder in settled[len(known) :]:
            note_and_print(folder)
        return ended, opened

    context = replace(context, spec_origin=context.spec_origin or dict(resolved.origin))
    return _repeated(run_once, spec, context)


def repeat_script(parsed: Namespace, spec: RunSpec, program: Program, context: Context) -> int:
    """Run a user's script as often as requested, each time from its start, then profile it."""
    is_profiled = spec.profile is not Profile.NONE
    log.LOGGER.info(
        "script     %s runs from its start %s to be measured%s: it writes and sends everything %d times",
        program.name,
        "once" if spec.repeats == 1 else f"{spec.repeats} times",
        " and once more for the profile" if is_profiled else "",
        spec.repeats + is_profiled,
    )
    return _repeated(
        lambda context: _script_once(words_of_run(parsed, spec, context), program),
        spec,
        context,
        [*([] if parsed.data is None else ["--data", parsed.data]), "--", *program.words],
    )


def _repeated(run_once: RunOnce, spec: RunSpec, context: Context, words: Sequence[str] = ()) -> int:
    """Run a configuration as often as its spec says, then profile its first bundle; return the exit code.

    The first failure ends the repeats. `words`: of the command `profile`, with a user's own script and its arguments,
    which the bundle keeps without secrets.
    """
    folders: list[Path] = []
    for number in range(1, spec.repeats + 1):
        raise_if_interrupted()
        facts = replace(context, profile_later=True)
        if spec.repeats > 1:  # a single run keeps the repeat's number from the launcher
            log.LOGGER.info("repeat %d of %d", number, spec.repeats)
            facts = replace(facts, repeat=number, repeats=spec.repeats)
        ended, opened = run_once(facts)
        folders += opened
        if failure := ended.error():
            raise failure
        if ended.code != ExitCode.DONE:
            if spec.repeats > 1 and ended.code != ExitCode.INTERRUPTED:
                log.LOGGER.error("repeat %d of %d ended with exit code %d", number, spec.repeats, ended.code)
            return ended.code
    if spec.profile is Profile.NONE or context.profile_later or not folders:
        return ExitCode.DONE
    # Ignore the output: the folder of the bundle has been printed already.
    ended = run_child([*SCRIPTS, "profile", str(folders[0]), *words], on_line=lambda _: None)
    failure = ended.error()
    if isinstance(failure, InterruptedRunError):
        raise failure
    if failure:
        # A failed profile leaves a complete run.
        log.LOGGER.error("note       the run is complete, but without a profile: %s", failure)
    return ExitCode.INTERRUPTED if ended.code == ExitCode.INTERRUPTED else ExitCode.DONE


def words_of_run(parsed: Namespace, spec: RunSpec, context: Context) -> list[str]:
    """Options of `python -m rooflaunch script` for one run."""
    words = ["-o", str(parsed.output), *arguments(spec), "--then", parsed.then]
    words += [] if parsed.data is None else ["--data", parsed.data]
    # With --context, a run prints only its bundle's folder, for a launcher; with --series, a run prints its results.
    return [*words, "--series" if parsed.context is None else "--context", context.to_argument()]


def _script_once(words: Sequence[str], program: Program) -> tuple[ChildEnd, list[Path]]:
    """Run the script once; return its end and the bundles that it opened.

    The script uses this process's input and output.
    """
    signals: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if child is not None and not _comes_from_the_terminal():
            child.send_signal(number)

    with tempfile.TemporaryDirectory() as folder, handled_by(pass_on):
        bundles = Path(folder) / "bundles"
        command = [*SCRIPTS, "script", *words, "--bundles", str(bundles)]
        child = subprocess.Popen([*command, "--", *program.words])
        code = child.wait()
        lines = bundles.read_text(encoding="utf-8").splitlines() if bundles.is_file() else []
    ended = ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=False)
    return ended, [Path(line) for line in lines]


def _comes_from_the_terminal() -> bool:
    """Whether a signal has reached the child too: for Ctrl-C a terminal signals every process in the foreground."""
    if sys.platform == "win32":
        return True
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


# Files in the folder of notes: one with the path of the bundle, and one for the error of each rank.
BUNDLE_NOTE, ERROR_NOTE = "bundle", "error-{}.json"
ERRORS = MappingProxyType(
    {kind.__name__: kind for kind in (UsageError, ToolError, OutOfDeviceMemoryError, InterruptedRunError)}
)
# A rank that was told to end may hang in a collective, which no signal interrupts. torchrun kills after 30 s.
END_LIMIT_S = 10.0
# Longest waits of rank 1 for the ends of rank 0, whose connections may break a moment before, and of other ranks.
RANK_0_LIMIT_S, OTHERS_LIMIT_S = 2.0, 15.0
PARENT_EVERY_S = 0.5
_sealing = threading.Lock()
HOST, LOOPBACK = "127.0.0.1", "lo0" if sys.platform == "darwin" else "lo"


# --- the process that starts the ranks


def start(resolved: Resolved, context: Context, output: Path) -> None:
    """Run one configuration on several ranks, and wait for them. Raises the error of the rank that failed first."""
    spec = resolved.spec
    _require_devices(spec)
    context = replace(context, spec_origin=context.spec_origin or dict(resolved.origin))
    words = ["-m", "workload", "train", *arguments(spec), "-o", str(output), "--context", context.to_argument()]
    _run_ranks(words, (), spec, context, output)


def start_script(words: Sequence[str], spec: RunSpec, context: Context, output: Path, *, is_launched: bool) -> None:
    """Run a user's script on several ranks, and wait for them. Raises the error of the rank that failed first.

    `words`: options of `python -m rooflaunch script` for each rank. `is_launched`: stdout gets the bundle's folder.
    """
    import torch  # noqa: PLC0415 - takes seconds

    # The script chooses its device. A launcher hides the GPUs from a script that has to use the CPU.
    spec = replace(spec, device=Device.CUDA if torch.cuda.is_available() else Device.CPU)
    _require_devices(spec)
    host.limit_threads(max(spec.devices, context.cpu_shares))
    words = ["-m", "rooflaunch", "script", *words]
    _run_ranks(words, ["--", *spec.script], spec, context, output, is_launched=is_launched)


def _run_ranks(
    words: Sequence[str],
    script: Sequence[str],
    spec: RunSpec,
    context: Context,
    output: Path,
    *,
    is_launched: bool = True,
) -> None:
    """Run ranks to their end. `words`: Python's arguments for a rank; `script`: words after them, from `--` on."""
    # Ranks on other machines see the folder of the bundles, not this machine's temporary folder.
    place = output.absolute() if spec.machines > 1 else None
    if place:
        place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".ranks-") as folder:
        notes = Path(folder)
        words = [*words, NOTES_FLAG, folder, *script]
        failure = _ended_there(spec, words, notes) if spec.machines > 1 else _ended(spec.devices, words, notes)
        note = notes / BUNDLE_NOTE
        opened = Path(note.read_text(encoding="utf-8").rstrip("\n")) if note.is_file() else None
        # A sealed bundle is a complete measurement, whatever a script did afterwards.
        if failure is None or (opened and (opened / bundle.MANIFEST).is_file()):
            return
        # A full disk has been reported by rank 0.
        with interruption_deferred(), suppress(BundleError, OSError):
            if opened:
                unfinished.seal(opened, spec, context, failure)
            elif is_launched and not isinstance(failure, UsageError | ToolError | InterruptedRunError):
                print(unfinished.write_new(output, spec, context, failure), flush=True)
    raise failure


def _require_devices(spec: RunSpec) -> None:
    """Raise `UsageError` if this machine has fewer devices than ranks are asked for."""
    if os.name == "nt":
        raise UsageError(
            f"several devices need Linux or macOS; got --devices {spec.devices}", hint="leave --devices out, or use WSL"
        )
    if spec.machines > 1:
        machines.nodes_of_job(spec.machines)
    import torch  # noqa: PLC0415 - takes seconds

    from workload.environment import device  # noqa: PLC0415 - imports torch

    chosen, wanted = device.choose(spec.device), spec.devices
    replace(spec, device=chosen).checked()
    gpus, cpus = torch.cuda.device_count() if chosen is Device.CUDA else 0, int(host.usable_cpus())
    if chosen is Device.CUDA and gpus < wanted:
        raise UsageError(
            f"--devices must be at most the number of GPUs, {gpus}: two ranks cannot share a GPU; got {wanted}",
            hint=f"--devices {gpus}, or --cpu" if gpus > 1 else "leave --devices out, or use --cpu",
        )
    if cpus < wanted:
        raise UsageError(
            f"--devices must be at most the number of usable CPUs, {cpus}: each rank needs one; got {wanted}",
            hint=f"--devices {cpus}" if cpus > 1 else "leave --devices out",
        )


def _store_at(address: str) -> Any:
    """Key-value store by which the ranks find each other, at a free port of this address of this machine."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415 - takes seconds

    # Others may write into the ranks' store, which has no password. Unlike "c10d", a static rendezvous unpickles
    # nothing from it. torch's own server would listen on all interfaces; with `multi_tenant`, torch takes this one.
    listening = listening_at(address)
    return TCPStore(
        address,
        listening.getsockname()[1],
        is_master=True,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
        wait_for_workers=False,
    )


def _ended_there(spec: RunSpec, words: list[str], notes: Path) -> RooflaunchError | None:
    """Run ranks on several machines to their end; return the error that ended them, else None."""
    try:
        nodes = machines.nodes_of_job(spec.machines)
        address = machines.own_address(nodes[1])
        store = _store_at(address)
        # The variables of torchrun, whose store the starting process has too; `machines.join` adds those of a rank.
        variables = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(spec.ranks),
            "ROLE_WORLD_SIZE": str(spec.ranks),
            "LOCAL_WORLD_SIZE": str(spec.devices),
            "GROUP_WORLD_SIZE": str(spec.machines),
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": str(True),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        raise_if_interrupted()
        ended = machines.run(words, nodes, spec.devices, address, variables, notes)
    except RooflaunchError as error:
        return error
    if interrupted := pending_interruption():
        return interrupted
    if ended == 0:
        return None
    if isinstance(ended, int):
        how = f"ended with exit code {ended}" if ended > 0 else f"was killed by {signal.Signals(-ended).name}"
        return RunFailedError(f"{machines.started_by()} {how}; the bundle keeps the steps so far", hint="run again")
    where = f"rank {ended.rank} on {ended.host}"
    if ended.note is None:
        return RunFailedError(
            f"{where} was killed, or its machine or the network was lost; the bundle keeps the steps so far",
            hint=f"if `dmesg` on {ended.host} shows that memory ran out, try a smaller --batch-size; else run again",
        )
    # A signal that reached only a rank did not mean to interrupt the run: the daemon of its step may have died.
    kind = {**ERRORS, InterruptedRunError.__name__: RunFailedError}.get(ended.note["kind"], RunFailedError)
    return kind(f"{ended.note['message']} ({where})", hint=ended.note["hint"])


def _ended(number: int, words: list[str], notes: Path) -> RooflaunchError | None:
    """Run `number` ranks to their end; return the error that ended them, else None."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    # torchrun's warnings and tables of errors would surround our error. Each of its loggers has a level of its own.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # All ranks are on this machine, whose name may have no address.
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    store = _store_at(HOST)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static",
        rdzv_endpoint=f"{HOST}:{store.port}",
        rdzv_configs={"rank": 0},
        local_addr=HOST,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(notes / "torchrun")),
    )
    try:
        # torchrun replaces the handlers of signals.
        with handled_by(signal.getsignal(signal.SIGTERM)):  # type: ignore[arg-type]
            raise_if_interrupted()
            elastic_launch(config, sys.executable)("-P", *words)
    except SignalException as stopped:
        return interruption(stopped.sigval)
    except ChildFailedError as failed:
        return pending_interruption() or _first_error(failed, notes)
    except RooflaunchError as error:
        return error
    return None


def _first_error(failed: "ChildFailedError", notes: Path) -> RooflaunchError:
    """Error of the rank that failed first: the other ranks fail because they lose it."""
    by_signal = {rank: -failure.exitcode for rank, failure in failed.failures.items() if failure.exitcode < 0}
    notes_read = [json.loads(path.read_text(encoding="utf-8")) for path in notes.glob("error-*.json")]
    # The error of a rank that lost another one tells nothing about the cause.
    told = sorted(notes_read, key=lambda note: (note["kind"] == LostRankError.__name__, note["at_s"]))
    # torchrun ends the other ranks with SIGTERM. A rank that loses another one may abort, in a thread of gloo or NCCL.
    has_cause = any(note["kind"] != LostRankError.__name__ for note in told)
    consequences = {*([signal.SIGTERM] if told else []), *([signal.SIGABRT] if has_cause else [])}
    killed = sorted(by_signal.items(), key=lambda item: (item[1] == signal.SIGTERM, item[0]))
    killed = [item for item in killed if item[1] not in consequences]
    if killed:
        rank, number = killed[0]
        return RunFailedError(
            f"rank {rank} was killed by {signal.Signals(number).name}; the bundle keeps the steps so far",
            hint="if `dmesg` shows that memory ran out, try a smaller --batch-size; else run again",
        )
    if not told:
        rank, failure = failed.get_first_failure()
        return RunFailedError(f"rank {rank} ended with exit code {failure.exitcode}", hint="run again")
    first = told[0]
    return ERRORS.get(first["kind"], RunFailedError)(first["message"], hint=first["hint"])


# --- one rank


def run(resolved: Resolved, context: Context, output: Path, timeline: Timeline, notes: Path) -> None:
    """Train as one rank. An error is written to the folder `notes`, and raised again."""
    machines.join(notes)
    if int(os.environ["RANK"]):
        # Errors are in the notes, and rank 0 shows the progress.
        log.LOGGER.handlers.clear()

    def announce(folder: Path) -> None:
        machines.write_hosts(folder)
        replace_text(notes / BUNDLE_NOTE, f"{folder.absolute()}\n", durable=False)
        print(folder, flush=True)

    with noted(notes):
        from workload.environment.collect import SectionsBeside  # noqa: PLC0415 - needs psutil

        # The facts are collected while torch is imported.
        beside = SectionsBeside()
        from workload.run import train  # noqa: PLC0415 - imports torch

        rank = int(os.environ["RANK"])
        train.run(resolved, context, output, timeline, beside=beside, announce=announce, rank=rank)


@contextmanager
def noted(notes: Path | None, last: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Context manager around the work of one rank: write an error to the folder `notes`, if any, and raise it again.

    From now on this process also ends soon after a signal. `last`: called at the end, also after an error.
    """
    rank = int(os.environ["RANK"])
    _end_in_time(last)
    try:
        yield
        machines.tell_end()
    except Exception as error:
        failure = pending_interruption() or error
        known = isinstance(failure, RooflaunchError)
        note = {
            "kind": type(failure).__name__,
            "message": str(failure) if known else f"rank {rank} ended with a traceback: {failure}",
            "hint": failure.hint if isinstance(failure, RooflaunchError) else "run again with --devices 1",
            "at_s": time.time(),
        }
        # torchrun ends this rank with SIGTERM as soon as another one has failed.
        with interruption_deferred(), suppress(OSError):
            machines.tell_error(note)
            if notes:
                replace_text(notes / ERROR_NOTE.format(rank), json.dumps(note), durable=False)
        raise
    finally:
        with interruption_deferred():
            last()


def seal_for_rank_0(folder: Path, processes: Sequence[int]) -> None:
    """Called in rank 1: seal the bundle `folder` if rank 0 was killed, after the other ranks have ended.

    Until then they may write into the bundle. `processes`: process id of each rank.
    """
    import psutil  # noqa: PLC0415 - not every command needs it

    def lives(process: int) -> bool:
        with suppress(psutil.NoSuchProcess):
            # torchrun collects the exit codes of its ranks one by one: a rank that has ended may be a zombie.
            return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
        return False

    def are_gone(those: Sequence[int], within_s: float) -> bool:
        until_s = time.monotonic() + within_s
        while any(map(lives, those)):
            if time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    # The thread that ends a hanging rank may come here while the main thread waits.
    with _sealing, suppress(BundleError, OSError):
        is_open = folder.is_dir() and not (folder / bundle.MANIFEST).exists()
        if is_open and are_gone(processes[:1], RANK_0_LIMIT_S) and are_gone(processes[2:], OTHERS_LIMIT_S):
            error = "rank 0 was killed; the bundle keeps the steps so far"
            # The log of a rank that hangs is still open, and belongs to the bundle.
            log.leave_files()
            bundle.seal_unfinished(folder, Status.FAILED, error)
            log.LOGGER.error("error: %s: %s", error, folder)


def _end_in_time(last: Callable[[], None]) -> None:
    """End this rank soon after a signal, even if it hangs in a call that no signal interrupts, or with its parent.

    `last`: called before a rank that hangs is ended.
    """
    if sys.platform == "win32":
        raise AssertionError("several devices are refused there")
    parent = os.getppid()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            arrived = select.select([reading], [], [], PARENT_EVERY_S)[0]
            if arrived and set(os.read(reading, 64)) & set(SIGNALS):
                break
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                break
        time.sleep(END_LIMIT_S)
        last()
        kill_descendants()
        # Not by SIGKILL, which would look like the cause of the failure.
        LEAVE(ExitCode.INTERRUPTED)

    threading.Thread(target=watch, name="end of the rank", daemon=True).start()

"""Carries out a sweep: its places run side by side, each with its missing runs.

There is no state except the bundles: a process may end at any moment, and the next start does the remaining runs. A
lock lets only one process at a time work on a sweep in a folder of results. The system releases the lock when its
process ends for any reason. The lock also works between machines that share the folder. The content of the lock
file names its process: for messages, and to tell the next process that an earlier process worked on the sweep.
"""

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from launcher import backends
from launcher.machine import local, task
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice
from launcher.machine.task import End, Outcome
from launcher.machine.watcher import Printed, Watcher
from launcher.protocol.backend import Backend
from launcher.protocol.records import Task, TaskRun
from launcher.script import local_script
from launcher.script.options import HereOptions, LocalOptions
from launcher.sweep.places import LOCAL, Place, Sweep, Until
from launcher.sweep.rented import RentedPlace
from launcher.sweep.shared import Budget, Control, LiveTable, Progress, Wish
from launcher.sweep.work import (
    LOG_HINT,
    Ended,
    PlaceWork,
    SweepOutcome,
    configuration_text,
    existing_runs,
    exit_code_of,
    progress_text,
    rate_text,
    too_large_text,
)
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, UsageError
from workload.contract.operating_system import lock
from workload.contract.process import handled_by
from workload.contract.record import Status
from workload.contract.spec import Resolved, RunSpec
from workload.contract.text import printable
from workload.contract.trainer import Context, Forks
from workload.environment import gpu_index
from workload.environment.cloud import outside_facts


class LocalPlaces:
    """All places of this machine, one run at a time: simultaneous runs would disturb each other's measurements."""

    def __init__(self, works: Sequence[PlaceWork], *, output: Path, control: Control, progress: Progress) -> None:
        self._works, self._control, self._progress = works, control, progress
        self._places = {work.name: _LocalPlace(work, output) for work in works}
        self._forks = Forks(lambda text: self._progress.say("this machine", text))

    def run(self) -> None:
        """Run until no run is left, or nothing new may be started."""
        for work in self._works:
            self._show(work, "waits")
        while self._rounds() and not self._control.why_not:
            grown = [(work, work.add_blocks()) for work in self._works]
            for work, count in grown:
                if count and work.decision:
                    self._progress.say(work.name, work.decision.reason)
            if not any(count for _, count in grown):
                break
        for work in self._works:
            self._show(work, self._control.why_not or "done")

    def _rounds(self) -> bool:
        left = [(work, [run for open_task in work.open_tasks() for run in open_task.runs]) for work in self._works]
        for block in sorted({run.block for _, runs in left for run in runs}):
            for work, runs in left:
                of_block = tuple(run for run in runs if run.block == block)
                if self._control.why_not:
                    return False
                if of_block:
                    block_task = Task(job=work.plan.tasks[0].job, devices=work.plan.devices, runs=of_block)
                    self._run_block(work, block_task, block)
        return True

    def _run_block(self, work: PlaceWork, block_task: Task, block: int) -> None:
        place = self._places[work.name]
        # One configuration alone is measured in fresh processes: blocks of one run would need a server each. The plan
        # decides, not how many runs are left, because forked and fresh runs of one configuration are not pooled. With
        # runs of several devices, which are never forked, those of one device are fresh too: they are compared.
        configurations = work.plan.configurations
        has_forks = len(configurations) > 1 and all(each.spec.devices == 1 for each in configurations)
        forks = self._forks if has_forks else None
        # Each block has a server of its own: forks of one server share its memory layout, and so a part of their speed.
        with forks or nullcontext():
            outcomes = task.work_through(
                block_task,
                place.plan_of,
                done=work.statuses(),
                stopped=lambda: self._control.why_not,
                watcher_of=lambda _, run: self._watcher(work, run),
                settle_to_c=place.settle_to_c,
                forks=forks,
            )
            for run in block_task.runs:
                self._show(work, f"block {block}: {configuration_text(run, work.plan)}")
                self._note(work, next(outcomes))

    def _watcher(self, work: PlaceWork, run: TaskRun) -> Watcher:
        printed = self._places[work.name].printed
        printed.clear()
        self._progress.update(work.name, now=f"block {run.block}: {configuration_text(run, work.plan)}")
        return Watcher(
            on_message=printed.append,
            on_started=self._control.trainers.started,
            on_ended=self._control.trainers.ended,
            apart=True,
        )

    def _note(self, work: PlaceWork, outcome: Outcome) -> None:
        run, place = outcome.run, self._places[work.name]
        if outcome.bundle is not None:
            work.take(outcome.bundle.record, outcome.bundle.path, outcome.seconds)
            settling = outcome.bundle.record.settling
            if settling and place.settle_to_c is None:
                place.settle_to_c = settling.target_c
        if outcome.end in (End.SKIPPED, End.NOT_STARTED, End.INTERRUPTED):
            failed_size = work.too_large.get(run.run_key)
            why = too_large_text(failed_size) if failed_size else outcome.why
            if outcome.end is not End.NOT_STARTED:
                name = configuration_text(run, work.plan)
                self._progress.say(work.name, f"block {run.block}, {name}: {outcome.end}: {why}")
            return
        record = outcome.bundle.record if outcome.bundle else None
        rate = record.timing.images_per_s if record else None
        result = f"{outcome.end}"
        if outcome.end is End.FAILED:
            # Without a record only the trainer's own output tells the reason.
            told = "" if record else place.printed.message("error")
            why = told or outcome.why
            hint = (place.printed.message("hint") if told else outcome.hint) or LOG_HINT
            if run.spec.script and place.printed.last:
                why += f"; its last line: {place.printed.last}"
            # Without a bundle a run has failed, even with exit code 0; and a bug in the trainer is none of the sweep.
            code = ExitCode.RUN_FAILED if outcome.code in (ExitCode.DONE, ExitCode.BUG) else outcome.code
            work.fail([run], why=why, hint=hint, code=code)
            result = f"{outcome.end}: {why}"
        elif outcome.end is End.COMPLETED:
            place.seconds.append(outcome.seconds)
            result = rate_text(record) if record and rate else result
        self._show(work, "", rate=rate)
        self._progress.say(work.name, progress_text(work, run, result))

    def _show(self, work: PlaceWork, now: str, rate: float | None = None) -> None:
        seconds = self._places[work.name].seconds
        self._progress.update(
            work.name,
            **work.counts(),
            left_s=fmean(seconds) * work.to_do if seconds and work.to_do else None,
            **({"now": now} if now else {}),
            **({"images_per_s": rate} if rate else {}),
        )


class _LocalPlace:
    """Starts the runs of one place on this machine.

    `printed`: what the trainer of the last run has printed. `seconds`: duration of each completed run.
    """

    def __init__(self, work: PlaceWork, output: Path) -> None:
        self._work, self._output = work, output
        self._choices: dict[RunSpec, Choice] = {}
        self.printed = Printed()
        self.seconds: list[float] = []
        # Temperature of the device before the very first run, in degrees Celsius.
        self.settle_to_c: float | None = None

    def plan_of(self, spec: RunSpec, context: Context) -> LocalPlan:
        """Plan of a run in a process or in a container, depending on its place."""
        options, script = self._work.plan.place.options or LocalOptions(), self._work.plan.place.script
        # The runtime is chosen once for all runs with the same device and `compile`.
        alike = RunSpec(device=spec.device, compile=spec.compile)
        if alike not in self._choices:
            if options.gpu_index is not None:
                gpu_index.require(options.gpu_index, gpu_index.listed(), os.environ)
            of_script = script.options if script else HereOptions()
            folder = script.workplace.folder if script else Path.cwd()
            self._choices[alike] = local_script.choice_of(spec, options, of_script, folder)
        choice = self._choices[alike]
        return local.make_plan(
            Resolved(spec=spec, origin=self._work.plan.origin),
            choice,
            output=self._output,
            limits=options.limits(),
            outside=outside_facts() if choice.engine else None,
            context=context,
            workplace=script.workplace if script else None,
            gpu_index=options.gpu_index,
        )


DRAWN_EVERY_S = 0.25
# Time for a trainer to seal its bundle, and for a rented place to answer a last request. A third Ctrl-C ends the wait.
LEAVING_S = 60.0
# Most characters of a lock file that are read.
MOST_HOLDER = 200
QUESTION = "what should happen with the sweep?"
WISHES = {"f": Wish.FINISH, "l": Wish.LEAVE, "s": Wish.STOP, "c": Wish.GO}


def asked_on_terminal(text: str) -> str | None:
    """Answer that the user types to a question; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return str(typer.prompt(text, default="l", err=True))


def drive(
    sweep: Sweep,
    *,
    output: Path,
    until: Until | None = None,
    max_cost_usd: float | None = None,
    max_time_s: float | None = None,
    damaged: Iterable[str] = (),
    backend_of: Callable[[str], Backend] = backends.load,
    ask: Callable[[str], str | None] = asked_on_terminal,
    sleep: Callable[[float], None] | None = None,
) -> SweepOutcome:
    """Do the missing runs of a sweep and return the outcome; progress goes to stderr.

    `until`: add blocks to each place until this rule is met. `damaged`: ids of damaged bundles in the folder, which are
    set aside, so that their runs count as missing. `sleep`: waits between polls. Raises `UsageError` if another process
    works on the same sweep in the same folder; any other error is part of the outcome.
    """
    with lock_held(output, sweep.name) as earlier:
        for folder in (output / run_id for run_id in damaged):
            try:
                bundle.read(folder)
            except BundleError:  # another process may have fetched it again, or moved it away
                if folder.is_dir():
                    bundle.set_aside(folder)
        driver = _Driver(sweep, output, Control(until_s=max_time_s), until, ask)
        return driver.run(Budget(max_cost_usd), backend_of, sleep, was_killed=bool(earlier))


class _Driver:
    """Threads of a sweep: one for all places of this machine, and one for each rented place."""

    def __init__(
        self, sweep: Sweep, output: Path, control: Control, until: Until | None, ask: Callable[[str], str | None]
    ) -> None:
        self._sweep, self._output, self._control, self._ask = sweep, output, control, ask
        self._progress = Progress()
        keys = {run.run_key for place in sweep.places for run in place.runs}
        known = _known_runs(output, keys, with_figures=until is not None)
        self._works = [PlaceWork(place, known=known, until=until) for place in sweep.places]
        self._rented: list[RentedPlace] = []
        self._bugs: list[BaseException] = []
        self._signals: list[int] = []
        self._is_asking = self._is_impatient = False

    def run(
        self,
        budget: Budget,
        backend_of: Callable[[str], Backend],
        sleep: Callable[[float], None] | None,
        *,
        was_killed: bool,
    ) -> SweepOutcome:
        """Start the runs of all places, wait for their end, and return the outcome."""
        began_s = time.monotonic()
        shared: dict[str, Any] = {"output": self._output, "control": self._control, "progress": self._progress}
        for work in self._works:
            self._progress.update(work.name, **work.counts())
            if (place := work.plan.place).backend != LOCAL:
                rented = RentedPlace(
                    work,
                    backend_of(place.backend),
                    sweep=self._sweep.name,
                    budget=budget,
                    sleep=sleep,
                    is_busy_elsewhere=partial(self._is_busy_elsewhere, place),
                    was_killed=was_killed,
                    **shared,
                )
                self._rented.append(rented)
                budget.expect(work.name, len(work.open_tasks()))
        parts = [rented.run for rented in self._rented]
        if local := [work for work in self._works if work.plan.place.backend == LOCAL]:
            parts.append(LocalPlaces(local, **shared).run)
        threads = [threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in parts]
        live = LiveTable(self._progress, sys.stderr, time.monotonic)
        with handled_by(self._hear):
            for thread in threads:
                thread.start()
            self._wait(threads, live)
        live.draw()
        live.clear()
        if self._bugs:
            raise self._bugs[0]
        for rented in self._rented:
            rented.report()
        return SweepOutcome(
            name=self._sweep.name,
            places=tuple(self._works),
            output=self._output,
            exit_code=exit_code_of(self._works, was_interrupted=self._control.wish is not Wish.GO),
            seconds=time.monotonic() - began_s,
            why_not=self._control.why_not,
        )

    def _is_busy_elsewhere(self, place: Place) -> bool:
        others = (other for other in self._rented if other.place is not place and other.is_busy)
        return any((other.place.backend, other.place.where) == (place.backend, place.where) for other in others)

    def _guarded(self, part: Callable[[], None]) -> None:
        """Run `part`. An unexpected exception ends this part alone; the main thread raises the exception at the end."""
        try:
            part()
        except BaseException as bug:  # noqa: BLE001 - raised again by the main thread
            self._bugs.append(bug)

    def _wait(self, threads: Collection[threading.Thread], live: LiveTable) -> None:
        """Wait until all threads have ended, or until `LEAVING_S` seconds have passed since the user left the sweep."""
        left_at_s: float | None = None
        while alive := [thread for thread in threads if thread.is_alive()]:
            live.draw()
            if self._signals:
                live.clear()
                self._answer(self._signals.pop(0))
            if self._control.is_leaving:
                left_at_s = left_at_s or time.monotonic()
                if time.monotonic() - left_at_s > LEAVING_S or self._is_impatient:
                    return
            alive[0].join(DRAWN_EVERY_S)

    # Ctrl-C.

    def _hear(self, number: int, _: object) -> None:
        if self._is_asking:
            raise KeyboardInterrupt
        self._signals.append(number)

    def _answer(self, number: int) -> None:
        """React to signal `number`.

        On a terminal, the first Ctrl-C asks the user what to do. The second Ctrl-C, or any other signal, lets this
        process end: the run on this machine is interrupted, and rented machines continue. The next signal kills the run
        on this machine, and ends the wait for requests under way.
        """
        if self._control.is_leaving:
            self._control.kill()
            self._is_impatient = True
            return
        answer: str | None = None
        if self._control.wish is not Wish.FINISH and number == signal.SIGINT:
            self._is_asking = True
            try:
                answer = self._ask(self._question())
            except (KeyboardInterrupt, typer.Abort, EOFError):
                answer = "l"
            finally:
                self._is_asking = False
        if answer is None:
            self._progress.say("", f"leaving: {self._left_alone()}")
            answer = "l"
        self._control.ask(WISHES.get(answer.strip().lower()[:1], Wish.GO))

    def _left_alone(self) -> str:
        parts = []
        if any(work.plan.place.backend == LOCAL for work in self._works):
            parts.append("the run on this machine is interrupted")
        if any(place.is_busy for place in self._rented):
            parts.append("rented machines continue and end by themselves")
        return ", ".join(parts) or "nothing runs"

    def _question(self) -> str:
        lines = ["", QUESTION, "  f  finish: complete the current runs, start no others"]
        lines.append(f"  l  leave: {self._left_alone()}")
        if any(place.is_busy for place in self._rented):
            lines.append("  s  stop: end rented machines too")
        return "\n".join([*lines, "  c  continue", "f, l, s or c"])


def _known_runs(output: Path, keys: Collection[str], *, with_figures: bool) -> dict[str, Ended]:
    """How these runs ended, by key, for runs that have a sealed bundle in the folder.

    `with_figures`: also read each record for its images per second and its position in the block.
    """
    known: dict[str, Ended] = {}
    for key, sealed in existing_runs(output).by_key.items():
        if key in keys:
            path = output / sealed.run_id
            known[key] = Ended(status=Status(sealed.status), path=path)
            if with_figures and sealed.status == Status.COMPLETED:
                with suppress(BundleError):
                    known[key] = Ended.of(bundle.read_record(path), path)
    return known


# The lock.


def lock_path(output: Path, sweep: str) -> Path:
    """Path of a sweep's lock: a hidden file in the folder of results."""
    return output / f".sweep-{re.sub(r'[^A-Za-z0-9._-]+', '-', sweep)[:100]}.lock"


@contextmanager
def lock_held(output: Path, sweep: str) -> Iterator[str]:
    """Hold the lock while the context lasts. Yields the earlier holder, which has ended; empty if there was none.

    Raises `UsageError` if another process holds the lock now, or if its file cannot be opened.
    """
    bundle.make_output(output)
    path = lock_path(output, sweep)
    try:
        # Not through a link, which somebody else may have made to a file of this user.
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        why = f"the sweep's lock '{path}' cannot be opened: {error.strerror}"
        raise UsageError(why, hint="-o ANOTHER_FOLDER") from error
    with os.fdopen(number, "r+", encoding="utf-8", errors="replace") as file:
        is_ours, earlier = lock(file), file.read(MOST_HOLDER)
        if not is_ours:
            raise UsageError(
                f"another process works on sweep '{sweep}' in '{output}': {printable(earlier) or 'a process'}",
                hint="wait for it or end it, or -o ANOTHER_FOLDER",
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
        file.flush()
        yield earlier

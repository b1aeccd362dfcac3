"""Places of a sweep that are on this machine. One run at a time: block 1 of each place, then block 2 of each place."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean

from launcher.machine import local, task
from launcher.machine.local import LocalPlan
from launcher.machine.local_options import LocalOptions
from launcher.machine.runtime import Choice
from launcher.machine.task import End, Outcome
from launcher.machine.watcher import Watcher
from launcher.protocol.task import Task, TaskRun
from launcher.script import local_script
from launcher.script.command import HereOptions
from launcher.sweep.shared import Control, Progress
from launcher.sweep.work import LOG_HINT, PlaceWork, configuration_text, progress_text, rate_text, too_large_text
from workload.contract.errors import ExitCode
from workload.contract.spec import Resolved, RunSpec
from workload.contract.trainer import Context, Forks
from workload.environment import gpu_index
from workload.environment.cloud import outside_facts

# Words in the error for a user's script that failed: the line before it tells why.
ENDS_OF_SCRIPT = ("ended with exit code", "failed with")


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
        """Run the missing runs: each block at all places, then the next block. Return False if stopped early."""
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
        messages = self._places[work.name].messages
        messages.clear()
        last = ""

        def keep_message(line: str) -> None:
            nonlocal last
            kind, colon, text = line.partition(": ")
            if colon and kind in ("error", "hint"):
                is_of_script = any(f" {end} " in text for end in ENDS_OF_SCRIPT)
                messages[kind] = f"{text}; its last line: {last}" if is_of_script and last else text
            elif line.strip():
                last = line.strip()

        self._progress.update(work.name, now=f"block {run.block}: {configuration_text(run, work.plan)}")
        return Watcher(
            on_message=keep_message,
            on_bundle=lambda _: None,
            on_started=self._control.trainers.started,
            on_ended=self._control.trainers.ended,
            apart=True,
        )

    def _note(self, work: PlaceWork, outcome: Outcome) -> None:
        """Record the outcome of a run: print a line, and update the counts."""
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
            why = place.messages.get("error") or outcome.why
            hint = place.messages.get("hint") or outcome.hint or LOG_HINT
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

    `messages`: the trainer's last `error: …` and `hint: …`, by kind. `seconds`: duration of each completed run.
    """

    def __init__(self, work: PlaceWork, output: Path) -> None:
        self._work, self._output = work, output
        self._choices: dict[RunSpec, Choice] = {}
        self.messages: dict[str, str] = {}
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

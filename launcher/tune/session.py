"""Runs `launch tune` from start to end: reads the evidence of an earlier session, tunes, writes patch and evidence."""

import hashlib
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.duel.contest import OutOfTimeError
from launcher.duel.referee import Losses
from launcher.machine.watcher import Watcher
from launcher.script.files import module_spec
from launcher.tune import candidates, evidence, report
from launcher.tune.candidates import Candidate
from launcher.tune.duels import LocalDuels, PlanOf, ScriptChangedError, base_of, measure_original, unchanged
from launcher.tune.evidence import Decision, Evidence, Trial
from launcher.tune.tune import Base, Row, Tuning
from workload import __version__
from workload.contract import bundle
from workload.contract.errors import UsageError
from workload.contract.operating_system import lock, replace_text
from workload.contract.process import interruption
from workload.contract.script_words import redacted, script_name
from workload.contract.text import counted, minutes

LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Request of a tuning. `tries`: candidates of `--try`, besides the usual ones.

    `words`: the script, which runs in `folder`. `watcher`, `on_run`: as `launcher.tune.duels.LocalDuels` has them.
    """

    words: tuple[str, ...]
    folder: Path
    output: Path
    plan_of: PlanOf
    margin: float
    max_time_s: float
    losses: Losses
    tries: Sequence[str]
    watcher: Watcher | None = None
    on_run: Callable[[Path], None] = lambda _: None

    def evidence(self) -> Evidence:
        """Make the evidence of a new tuning, without a trial."""
        return Evidence(
            rooflaunch=__version__,
            command=redacted(self.words),
            asked=tuple(self.tries),
            margin=self.margin,
            losses=self.losses,
        )


def tune(asked: Asked, *, tell: Callable[[str], None], show: Callable[[Row], None]) -> report.Tuned:
    """Tune a script. `show` is called with each row of the table as soon as its change is decided.

    Raises `UsageError` if another tuning uses the folder.
    """
    folder = asked.output
    bundle.make_output(folder)
    with (folder / LOCK).open("a") as file:
        if not lock(file):
            raise UsageError(f"another launch tune works in '{folder}'", hint="wait for it, or -o ANOTHER_FOLDER")
        began_s = time.monotonic()
        while True:
            try:
                return _Session(asked, tell, show, began_s).run()
            except ScriptChangedError as error:
                tell(f"{error} during the tuning: it begins anew")
                set_aside(folder)


def set_aside(folder: Path) -> None:
    """Rename `evidence.json` to a name with a number, so that another tuning can begin in this folder."""
    number = sum(1 for _ in folder.glob("evidence*.json"))
    with suppress(FileNotFoundError):
        (folder / evidence.FILE).rename(folder / f"evidence-{number}.json")


class _Session:
    def __init__(self, asked: Asked, tell: Callable[[str], None], show: Callable[[Row], None], began_s: float) -> None:
        self._asked, self._tell, self._show = asked, tell, show
        self._began_s = began_s
        self._root, self._script = home_of(asked.words, asked.folder)
        self._folder = asked.output
        self._evidence = asked.evidence()
        self._duels = LocalDuels(
            words=asked.words,
            output=asked.output,
            plan_of=asked.plan_of,
            watcher=asked.watcher,
            on_run=asked.on_run,
            keep=self._keep,
            evidence=lambda: self._evidence,
            tell=tell,
        )

    def run(self) -> report.Tuned:
        """Measure the script, try the changes, and write patch and evidence."""
        base = self._go_on()
        if base is None:
            max_time_s = self._asked.max_time_s
            try:
                found, base = measure_original(self._duels, self._evidence, left_s=max_time_s)
            except OutOfTimeError as error:
                raise UsageError(
                    f"a run of the script as it is takes longer than --max-time, {minutes(max_time_s)}",
                    hint="a longer --max-time, or fewer steps: --iterations 10",
                ) from error
            self._save(found)
        self._tell(report.headline(base.run))
        tuning = Tuning(
            evidence=self._evidence,
            base=base,
            candidates=self._candidates,
            duels=self._duels,
            max_time_s=self._asked.max_time_s,
            spent_s=time.monotonic() - self._began_s,
            save=self._save,
        )
        rows = []
        try:
            for row in tuning.run():
                rows.append(row)
                self._show(row)
        except KeyboardInterrupt:
            # Ctrl-C between two runs; during a run, the run ends first.
            tuning.interrupted = interruption(signal.SIGINT, "the same command goes on")
        return self._end(rows, tuning)

    def _candidates(self, base: Base) -> list[Candidate]:
        usual = candidates.candidates_of(base.run, self._asked.losses, self._root)
        asked = [candidates.placed(each, base.run) for each in candidates.asked(self._asked.tries)]
        texts = {candidate.text for candidate in asked}
        return [*asked, *(candidate for candidate in usual if candidate.text not in texts)]

    def _save(self, changed: Evidence) -> None:
        self._evidence = changed
        changed.write(self._folder)

    def _keep(self, trial: Trial) -> None:
        self._save(self._evidence.with_trial(trial))

    def _go_on(self) -> Base | None:
        """Base with which the tuning in this folder goes on; None if the folder has none, or one of another script."""
        path = self._folder / evidence.FILE
        if not path.exists():
            return None
        found = evidence.read(path)
        own = self._evidence
        if (found.command, found.asked, found.margin, found.losses) != (own.command, own.asked, own.margin, own.losses):
            why = "it was for another command"
        elif not unchanged(found, self._root):
            why = "the script's files, or the machine, have changed since"
        elif not found.originals:
            return None
        else:
            self._evidence = found
            accepted: tuple[Candidate, ...] = ()
            run_id = next(iter(found.originals))
            original = bundle.read_record(self._folder / run_id)
            for trial in found.trials:
                if trial.decision is Decision.ACCEPTED and not trial.is_final:
                    again = candidates.placed(candidates.candidate_of(trial.change), original)
                    accepted = candidates.with_candidate(accepted, again)
                    run_id = _last_of_b(trial, self._folder)
            decided = sum(each.decision is not Decision.OPEN for each in found.trials if not each.is_final)
            known = f"{counted(decided, 'change')} {'is' if decided == 1 else 'are'} decided"
            self._tell(f"goes on with the tuning in {self._folder}/, in which {known}")
            return base_of(accepted, self._folder / run_id)
        self._tell(f"the earlier tuning in {self._folder}/ is set aside, because {why}")
        set_aside(self._folder)
        return None

    # --- the end

    def _end(self, rows: Sequence[Row], tuning: Tuning) -> report.Tuned:
        accepted = tuning.base.candidates
        patch = report.patch_for(accepted, self._script, self._root, self._asked.folder)
        path = self._folder / f"{script_name(self._asked.words)}.patch"
        path.unlink(missing_ok=True)
        if patch.diff:
            replace_text(path, patch.text)
        hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()} if patch.diff else {}
        self._save(replace(self._evidence, patch=hashes))
        return report.Tuned(
            rows=rows,
            accepted=accepted,
            patch=patch,
            patch_file=path if patch.diff else None,
            evidence=self._folder / evidence.FILE,
            interrupted=tuning.interrupted,
        )


def home_of(words: Sequence[str], folder: Path) -> tuple[Path, Path | None]:
    """Folder to which lines and files of a script's record are relative, and its main file; None if unknown.

    `folder`: working folder of the script.
    """
    if words[0] != "-m":
        path = (folder / words[0]).resolve()
        return path.parent, path
    spec = module_spec(words[1], folder)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return folder, None
    path = Path(spec.origin).resolve()
    return path.parent, path.with_name("__main__.py") if path.name == "__init__.py" else path


def _last_of_b(trial: Trial, folder: Path) -> str:
    jobs = {run_id: bundle.read_record(folder / run_id).job for run_id in trial.bundles}
    return [run_id for run_id, job in jobs.items() if job and job.variant == "B"][-1]

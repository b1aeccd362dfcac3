"""How often does a tuning accept a change that is no gain, and how often does it find one that is?

    python benchmarks/tune.py                      simulated tunings, on all noises and machines of benchmarks/duel.py
    python benchmarks/tune.py --tunings 5 --results build/tune.jsonl     small, and resumed where it was broken off
    python benchmarks/tune.py --real FOLDER --max-time 20m       the planted scripts of benchmarks/tuned/, tuned here,
                                                                 each until its planted gain is proved
    python benchmarks/tune.py --cheats FOLDER      an honest script against cheating versions, in duels with the referee

Simulated: the course of `launcher.tune.tune`, with every duel judged by the product's own rule on the noise of real
logs; only the runs are drawn. A case is a list of true growths of throughput, a change for each. A change is accepted
falsely if its true growth is below the margin; the chance that a tuning has any such change must be at most 5 %. The
accepted changes should reach 95 % of the best combination's throughput, with a third of the runs of a full sweep.
"""

import argparse
import ast
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from analysis.statistics.samples import Floats
from benchmarks.duel import conditions, logs_of
from benchmarks.resumable import Results
from launcher.duel.contest import Limits, Measured, OutOfTimeError, Pair, Work, fight
from launcher.duel.referee import Losses
from launcher.tune.candidates import Candidate
from launcher.tune.evidence import Decision, Evidence, Trial, decide, rule_of
from launcher.tune.tune import ALL, Base, Fought, Tuning

# Seconds of a run, as measured for small scripts on two CPUs, where importing torch takes most of them; and of a
# tuning, the default of --max-time.
RUN_S, TUNING_S = 9.0, 1200.0
MARGIN = 0.02
# Runs of each combination in a sweep over all of them: fewer give no interval.
SWEEP_RUNS = 6
EDGE = 1 / (1 - MARGIN) - 1
# True growths of throughput; the bounds of the changes are 1.5 times as large, and 20 % if there is no gain.
CASES: Mapping[str, tuple[float, ...]] = {
    "A/A": (0.0,) * 5,
    "A/A, 10 changes": (0.0,) * 10,
    "just below the margin": (EDGE - 1e-9,) * 5,
    "one of 10 %": (0.0, 0.0, 0.1, 0.0, 0.0),
    "10 %, 30 % and 4 %": (0.1, 0.0, 0.3, 0.04, 0.0),
}
SCRIPTS = Path(__file__).with_name("tuned")
# Versions of cheats.py that a duel compares with the script without options, and a part of the referee's reason; empty
# for honest ones, which are not refused.
CHEATS: Mapping[str, str] = {
    "--cheat clock": "replaced time.perf_counter",
    "--cheat skipped": "the model gets fewer",
    "--cheat cached": "samples are trained again",
    "--cheat twice": "samples are trained again",
    "--cheat repeated": "samples are trained again",
    "--cheat half": "a step is given 32 samples, and 64",
    "--cheat no-backward": "backward pass is not whole",
    "--cheat no-grad": "backward pass is not whole",
    "--cheat bf16": "in bf16 or a lower precision",
    "--cheat doubled": "the model gets fewer",
    "--workers 1": "",
    "--foreach": "",
}
# Exit code of a duel whose side B the referee refuses.
REFUSED = 10


@dataclass(frozen=True, kw_only=True)
class Simulated(Candidate):
    """A change with a known effect: `growth` of throughput."""

    growth: float

    def bound(self, run: Any, steps: Any) -> float:
        """A bound that is too large, as bounds are."""
        del run, steps
        return 1.5 * self.growth or 0.2


@dataclass(kw_only=True)
class Machine:
    """Duels whose runs are drawn: the noise `name` on a machine of this kind, on a clock of its own."""

    name: str
    kind: str
    rng: np.random.Generator
    evidence: Any = None
    clock_s: float = 0.0
    runs: int = 0
    run_s: float = RUN_S

    def first(self, candidate: Candidate, *, max_time_s: float) -> float:
        """Draw one run with this change; the run without it is the same for all changes."""
        del max_time_s
        self.clock_s += RUN_S
        self.runs += 1
        logs: Floats = logs_of(self.rng, self.name, self.kind, duels=1, segments=1)[0]
        return float(np.exp(-logs[0] - _log_seconds([candidate]))) - 1

    def fight(self, trial: Trial, a: Sequence[Candidate], b: Sequence[Candidate], *, max_time_s: float) -> Fought:
        """Fight on drawn times."""
        begun_s, most = self.clock_s, int(max_time_s / RUN_S) + 4
        logs: Floats = logs_of(self.rng, self.name, self.kind, duels=1, segments=most)[0]
        effects = {"A": _log_seconds(a), "B": _log_seconds(b)}
        segments: list[Measured] = []

        def measure(side: Any, *, name: str, position: int, left_s: float, tell: Any) -> Measured:
            del name, tell
            if left_s < RUN_S:
                raise OutOfTimeError
            self.clock_s += RUN_S
            self.runs += 1
            step_s = float(np.exp(logs[position] + effects[side.variant]))
            times = dict.fromkeys(("step_s", "sample_s", "wall_step_s", "wall_sample_s"), step_s)
            work = Work(samples=1)
            segments.append(
                Measured(position=position, variant=side.variant, work=work, folder=Path(), **cast("Any", times))
            )
            return segments[-1]

        plan = SimpleNamespace(spec=SimpleNamespace(ranks=1))
        a_side, b_side = (SimpleNamespace(variant=variant, plan=plan) for variant in "AB")
        sides = SimpleNamespace(a=a_side, b=b_side, side=lambda variant: a_side if variant == "A" else b_side)
        limits = Limits(same_within=MARGIN, max_time_s=max_time_s)
        outcome = fight(
            cast("Pair", sides),
            limits,
            tell=lambda _: None,
            measure=measure,
            name=trial.name,
            now=lambda: self.clock_s - begun_s,
            rule=rule_of(trial),
        )
        decided = decide(trial, segments, {"A": [], "B": []}, self.evidence(), outcome.state.reason)
        return Fought(trial=decided, base=base(b))


def _log_seconds(candidates: Sequence[Candidate]) -> float:
    return -sum(float(np.log1p(cast("Simulated", each).growth)) for each in candidates)


def base(candidates: Sequence[Candidate]) -> Base:
    return Base(candidates=tuple(candidates), run_id="", run=cast("Any", None), steps=())


def tuning(name: str, kind: str, growths: Sequence[float], rng: np.random.Generator) -> dict[str, Any]:
    """Figures of one simulated tuning."""
    changes = [Simulated(text=f"change {number}", growth=growth) for number, growth in enumerate(growths)]
    start = Evidence(rooflaunch="", command=("train.py",), margin=MARGIN, losses=Losses.ANY)
    duels = Machine(name=name, kind=kind, rng=rng)
    course = Tuning(
        evidence=start,
        base=base(()),
        candidates=lambda _: changes,
        duels=duels,
        max_time_s=TUNING_S,
        save=lambda _: None,
        now=lambda: duels.clock_s,
    )
    duels.evidence = lambda: course.evidence
    rows, needed = [], 0
    for row in course.run():
        rows.append(row)
        if row.trial and row.trial.decision is Decision.ACCEPTED and not row.trial.is_final:
            needed = duels.runs
    accepted = {candidate.text for candidate in course.base.candidates}
    true = {change.text for change in changes if change.growth >= EDGE}
    # The effects multiply, so the best of all combinations has every gain.
    missed = [each for each in changes if each.growth > 0 and each.text not in accepted]
    final = next((row.trial.decision for row in rows if row.trial and row.trial.is_final), None)
    return {
        "false": len(accepted - true),
        "found": len(accepted & true),
        "planted": len(true),
        "of_best": float(np.exp(_log_seconds(missed))),
        "of_sweep": needed / (2 ** len(changes) * SWEEP_RUNS),
        "runs": duels.runs,
        "decided": sum(bool(row.trial and row.trial.decision is not Decision.OPEN) for row in rows),
        "final": final,
    }


def simulate(results: Results, tunings: int, cases: Sequence[str]) -> list[dict[str, Any]]:
    """Figures by case, over all noises and machines; `tunings`: of each."""
    table = []
    for case in cases:
        found = list[dict[str, Any]]()
        for name, kind in conditions():

            def measure(
                rng: np.random.Generator, name: str = name, kind: str = kind, case: str = case
            ) -> dict[str, Any]:
                return {"tunings": [tuning(name, kind, CASES[case], rng) for _ in range(tunings)]}

            found += results.once(f"{case}, {name}, {kind}, {tunings}", measure)["tunings"]
        planted = sum(each["planted"] for each in found)
        table.append(
            {
                "case": case,
                "tunings": len(found),
                "with a false accept": sum(each["false"] > 0 for each in found),
                "planted": planted,
                "found": sum(each["found"] for each in found),
                "95 % of the best": sum(each["of_best"] >= 0.95 for each in found),
                "runs": round(sum(each["runs"] for each in found) / len(found)),
                "runs of a sweep": f"{sum(each['of_sweep'] for each in found) / len(found):.0%} until the last accept",
                "final": dict(Counter(each["final"] for each in found if each["final"])),
            }
        )
        print(json.dumps(table[-1]), flush=True)
    return table


# --- real tunings


def planted(script: Path) -> tuple[str, ...]:
    """Changes of which one cures a script, each a part of a change's text: those in backquotes in the docstring.

    The docstring begins with "Planted" or, if no change should be accepted, with "Nothing to gain".
    """
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return tuple(re.findall(r"`([^`]+)`", text)) if text.startswith("Planted") else ()


def start(place: Path, script: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start `launch` in the folder `place` with a copy of a script; its messages go to `messages` there."""
    place.mkdir(parents=True, exist_ok=True)
    (place / script.name).write_bytes(script.read_bytes())
    command = [sys.executable, "-m", "launcher", *words]
    with (place / "messages").open("w") as messages:
        return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=messages, text=True)


def is_cure(row: Mapping[str, Any], cures: Sequence[str]) -> bool:
    """Is a row of a tuning's output a proved gain by one of these changes?"""
    return row.get("decision") == "accepted" and any(cure in row["change"] for cure in cures)


def real(folder: Path, names: Sequence[str], max_time: str) -> None:
    """Tune each script of `SCRIPTS` here. Print its exit code and what was accepted, and in the end the sums.

    A tuning is interrupted once a planted gain is proved, because the rest of it says nothing about that gain.
    """
    sums = Counter[str]()
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        cures, began_s = planted(script), time.monotonic()
        words = ("tune", "--cpu", "--format", "json", "--max-time", max_time, "--", script.name)
        rows = list[dict[str, Any]]()
        with start(folder / script.stem, script, words) as process:
            for line in process.stdout or ():
                rows.append(json.loads(line))
                if is_cure(rows[-1], cures):
                    process.send_signal(signal.SIGINT)
        kept = [row for row in rows if row.get("decision") == "accepted" and row["change"] != ALL]
        is_found = any(is_cure(row, cures) for row in rows)
        runs = sum(row.get("runs") or 0 for row in rows)
        sums.update(planted=int(bool(cures)), found=int(is_found), runs=runs, other=0 if cures else len(kept))
        figures = {
            "script": script.stem,
            "code": process.returncode,
            "planted": cures,
            "found": is_found,
            "accepted": [(row["change"], row.get("gain"), row.get("at_most")) for row in kept],
            "runs": runs,
            "s": round(time.monotonic() - began_s),
        }
        print(json.dumps(figures), flush=True)
    print(
        f"planted gains found: {sums['found']} of {sums['planted']}; "
        f"changes accepted where there is nothing to gain: {sums['other']}; runs: {sums['runs']}"
    )


def cheats(folder: Path, names: Sequence[str]) -> None:
    """Fight each version in `CHEATS` here, print the referee's reasons, and in the end the number judged rightly."""
    right, script = list[bool](), SCRIPTS / "cheats.py"
    for version, reason in CHEATS.items():
        if names and not any(name in version for name in names):
            continue
        words = ["duel", "--referee", "--cpu", "--min-seconds", "0.2", "--iterations", "40", "--max-runs", "24"]
        words += ["--max-time", "80s", "--format", "json", "--", script.name, "---", script.name, *version.split()]
        place = folder / version.replace(" ", "").strip("-")
        with start(place, script, words) as process:
            output = process.communicate()[0]
        ruling = (json.loads(output) if output else {}).get("referee")
        refusals = ruling["refusals"] if ruling else [(place / "messages").read_text()[-300:]]
        is_refused = process.returncode == REFUSED
        right.append(reason in "; ".join(refusals) and is_refused if reason else not (refusals or is_refused))
        line = {"version": version, "code": process.returncode, "right": right[-1], "refusals": refusals}
        print(json.dumps(line), flush=True)
    print(f"judged rightly: {sum(right)} of {len(right)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=20, help="of each noise and machine (20)")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    parser.add_argument("--cheats", type=Path, metavar="FOLDER")
    parser.add_argument("--scripts", nargs="*", default=[], help="with --real or --cheats: only these")
    parser.add_argument("--max-time", default="20m", help="of each real tuning (20m)")
    options = parser.parse_args()
    if options.real:
        real(options.real, options.scripts, options.max_time)
    elif options.cheats:
        cheats(options.cheats, options.scripts)
    else:
        simulate(Results(options.results), options.tunings, options.cases)


if __name__ == "__main__":
    main()

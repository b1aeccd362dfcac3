"""Campaigns, tests that take too long for every day: `make test-night`, or some with PARTS="kills pages".

    python tests/night.py [PART...]      all parts without words; `--list` says what each is

Each part is a command of its own, whose output goes to build/night/PART.log. What is done of this commit is kept in
build/night/results.json, so that the night can be had in pieces; every call ends in the table of all parts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "build" / "night"
PYTEST = ("-m", "pytest", "-n0", "-m")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the night; `words`: arguments of Python, which runs in the repository's root."""

    what: str
    words: tuple[str, ...]


def marked(part: str, what: str) -> Part:
    return Part(what=what, words=(*PYTEST, f"night(part='{part}')"))


PARTS = {
    "pages": marked("pages", "every line of every page, as its reader types it"),
    "report": marked("report", "every sentence and figure of the report has data of which it is true, and false"),
    "kills": marked("kills", "launchers, agents and machines killed at each moment"),
    "faults": marked("faults", "clocks that are off, answers of stores that break or are damaged"),
    "places": marked("places", "sweeps and tasks on ssh, Slurm and rented machines that are lost or taken back"),
    "trainer": marked("trainer", "every model family, option, signal and failure of the trainer"),
    "scripts": marked("scripts", "training scripts of 40 kinds, measured and profiled"),
    "speed": marked("speed", "what a sample of the telemetry costs, on a machine that does nothing else"),
    "platforms": marked("platforms", "wheels of every package for Windows and macOS; needs a network"),
    "duels": marked("duels", "duels with the real trainer and with scripts; verdicts over all noises"),
    "hypothesis": Part(
        what="random examples instead of the same few",
        words=(*PYTEST, "hypothesis and not night", "--hypothesis-profile=night", "--timeout=0"),
    ),
    "fuzz": Part(what="mutated bundles and logs", words=("benchmarks/fuzz.py", "--cases", "1000")),
    "interruptions": Part(what="Ctrl-C at 60 random moments", words=("benchmarks/interruptions.py", "60")),
    "launch_faults": Part(what="each fault of Compute Engine", words=("benchmarks/launch_faults.py",)),
    "launch_faults_aws": Part(what="each fault of EC2", words=("benchmarks/launch_faults.py", "aws")),
    "steadiness": Part(what="false alarms and power of the audit's rules", words=("benchmarks/false_alarms.py",)),
    "intervals": Part(what="coverage of intervals", words=("benchmarks/coverage.py",)),
    "blocks": Part(what="coverage of intervals over blocks, with stopping", words=("benchmarks/blocks.py",)),
    "duel_errors": Part(what="false verdicts and power of duels", words=("benchmarks/duel.py",)),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a part: its exit code, the last line of its output, and its minutes."""

    code: int
    said: str
    minutes: float


def run(name: str) -> Result:
    """Run a part to its end; its output is in its log."""
    began, log = time.monotonic(), HERE / f"{name}.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("w", encoding="utf-8") as out:
        code = subprocess.run(
            [sys.executable, *PARTS[name].words], cwd=ROOT, env=environment, stdout=out, stderr=out, check=False
        ).returncode
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()] or [""]
    return Result(code=code, said=re.sub(r"^=+ | =+$", "", lines[-1])[:80], minutes=(time.monotonic() - began) / 60)


def table(results: dict[str, Result]) -> str:
    """Markdown table with a row for each part, done or not."""
    rows = ["| part | what | result | minutes | its last line |", "|---|---|---|---|---|"]
    for name, part in PARTS.items():
        done = results.get(name)
        if done is None:
            rows.append(f"| {name} | {part.what} | not run | | |")
        else:
            result = "passed" if done.code == 0 else f"exit code {done.code}: build/night/{name}.log"
            rows.append(f"| {name} | {part.what} | {result} | {done.minutes:.1f} | {done.said} |")
    return "\n".join(rows)


def commit() -> str:
    """Commit, with `-dirty` if files differ from it: results of other code do not count."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return described.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="the parts, without running one")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    HERE.mkdir(parents=True, exist_ok=True)
    kept, code = HERE / "results.json", commit()
    known = json.loads(kept.read_text()) if kept.exists() else {}
    results = {name: Result(**result) for name, result in known.get(code, {}).items()}
    for name in () if options.list else options.parts or [name for name in PARTS if name not in results]:
        print(f"{name}: {PARTS[name].what} ...", file=sys.stderr, flush=True)
        results[name] = run(name)
        kept.write_text(json.dumps({code: {name: asdict(result) for name, result in results.items()}}))
    print(table(results))
    return int(any(result.code for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

"""Mutated bundles and logs for every reader: a fault must be reported, never crash, never count as complete.

python benchmarks/fuzz.py [--cases 1000] [--seed 0] [--only N]      prints failures with their cases, and counts

A case is made from a seed and its number alone, so that `--only N` repeats it.
"""

import argparse
import copy
import io
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import analysis
from analysis.api import Results
from analysis.importing import UserFacts, import_file
from analysis.loading.run_row import RUN_COLUMNS
from benchmarks.synthetic_bundles import make
from workload.contract import bundle
from workload.contract.errors import RooflaunchError
from workload.contract.fields import RANGES

REAL = Path(__file__).parents[1] / "tests" / "analysis" / "bundles"
LOG = "model,batch_size,iter_idx,iter_time_ms,data_time_ms,timestamp,loss\n" + "".join(
    f"resnet50,64,{index},{150 + index % 3},{index % 2},{1763159640 + 0.16 * index:.2f},6.9\n" for index in range(12)
)
NCU = """==PROF== Connected to process 1 (/usr/bin/python3)
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Device","CC",\
"device__attribute_display_name","gpu__time_duration.sum","dram__bytes.sum",\
"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum","smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",\
"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","","","","","ns","byte","inst","inst","inst"
"0","1","python","add","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","2000","4096","100","10","1000"
"1","1","python","cudnn_dgrad","(1, 1, 1)","(1, 1, 1)","0","7.5","Tesla T4","1000","1024","0","50","0"
"""
PROFILE = {
    "status": "completed",
    "kind": "ncu",
    "steps_profiled": 1,
    "flop_per_step": 3.4e11,
    "tensor_flop_per_step": 0.0,
    "dram_bytes_per_step": 6e9,
    "l2_bytes_per_step": 7e9,
    "l1_bytes_per_step": 9e9,
    "flop_is_lower_bound": False,
    "checks": {
        "flop_verified": True,
        "backward": {"present": True},
        "calibration": {"fp32": {"ratio": 1.01, "verified": True}},
        "model_flop": {"ratio": 1.0, "likely_cause": None},
    },
}


def nested(depth: int) -> Any:
    inner: Any = 1
    for number in range(depth):
        inner = [inner] if number % 2 else {"a": inner}
    return inner


ESCAPE = "\x1b[2J\x1b[31m"
# What a field of JSON may be instead of what it should be.
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", " ", "x", "0", "NaN", "1e999", "=1+1", "../../etc/passwd", f"{ESCAPE}evil\r\n\0"),
    *(
        "\ud800",
        "é" * 20_000,
        "\u202eabc",
        "<script>alert(1)</script>",
        0,
        -0.0,
        -1,
        1,
        3,
        1e-300,
        5e-324,
        1e-12,
        1e12,
        1e29,
    ),
    *(1e31, 1e300, 1e308, -1e308, math.nan, math.inf, -math.inf, 2**31, 2**53, 2**63, 10**30, 10**400, -(10**400)),
    *([], {}, [None], [[]], [1, "a", None, {}], {"a": {}}, {"": 1}, {"median": -1}, {"fp32": {"median": 1e308}}),
    *(["x"] * 50, {str(number): number for number in range(50)}, nested(20), nested(60), nested(200)),
    *("2026-11-21", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+14:00", "completed", "running", "out_of_memory"),
    *("cuda", "cpu", "mps", "NVIDIA L4", "Tesla T4", "resnet18", "fp32", "tf32", "amp"),
)
# And a cell of a CSV.
CELLS = (
    *("", " ", "x", "-1", "0", "-0.0", "1e308", "-1e308", "1e999", "nan", "inf", "-inf", "5e-324", "1e-12", "0x4"),
    *("18446744073709551616", "9" * 400, "1,2", '"', '""', "\0", "\r", "\n", "=1+1", ESCAPE, "é", "measured", "warmup"),
    *("mesured", "1.5", "True", "None", "1_000", "x" * 5000, "(1, 1, 1)", "%", "1.2.3", "1e5", "1e30"),
)


@dataclass(kw_only=True)
class Case:
    """Folder of bundles with one mutated, the victim. `done`: its mutations; `broken`: the victim must be refused."""

    number: int
    root: Path
    draw: random.Random
    done: list[str] = field(default_factory=list)
    victim: Path | None = None
    broken: bool = False


# --- mutators


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [above, *(place for key, inner in items for place in places(inner, (*above, key)))]
        if above
        else [place for key, inner in items for place in places(inner, (key,))]
    )


def mutate_json(text: bytes, draw: random.Random, done: list[str]) -> bytes:
    """Replace, remove, scale or swap one to three fields; sometimes mutate the text itself."""
    if draw.random() < 0.1:
        return mutate_bytes(text, draw, done)
    document = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        all_places = places(document)
        if not all_places:
            break
        place = draw.choice(all_places)
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        old, how = parent[place[-1]], draw.random()
        if how < 0.1:
            del parent[place[-1]]
            new: Any = "removed"
        elif how < 0.2 and isinstance(old, int | float) and not isinstance(old, bool):
            new = parent[place[-1]] = old * draw.choice([0.5, 2, -1, 1e3, 1e-3, 1e15])
        elif how < 0.25:
            other = document
            for key in draw.choice(all_places)[:1]:
                other = other.get(key) if isinstance(other, dict) else None
            new = parent[place[-1]] = copy.deepcopy(other)
        else:
            new = parent[place[-1]] = copy.deepcopy(draw.choice(VALUES))
        done.append(f"{'.'.join(map(str, place))} -> {str(new)[:60]!r}")
    return json.dumps(document, indent=1).encode()


def mutate_csv(text: bytes, draw: random.Random, done: list[str]) -> bytes:
    """Replace cells, move, double or drop rows and columns; sometimes mutate the text itself."""
    if draw.random() < 0.1:
        return mutate_bytes(text, draw, done)
    rows = [line.split(",") for line in text.decode("utf-8", "replace").splitlines()]
    for _ in range(draw.randint(1, 3)):
        if not rows:
            break
        row = draw.randrange(len(rows))
        column = draw.randrange(max(1, len(rows[row])))
        how = draw.choice(["cell", "cell", "cell", "header", "row twice", "swap", "drop row", "drop column", "fill"])
        rows = mutate_rows(rows, how, row, column, draw)
        done.append(f"{how} row {row} column {column}")
    return ("\n".join(",".join(line) for line in rows) + "\n").encode("utf-8", "surrogatepass")


def mutate_rows(rows: list[list[str]], how: str, row: int, column: int, draw: random.Random) -> list[list[str]]:
    def with_cell(line: list[str], cell: str) -> list[str]:
        return [*line[:column], cell, *line[column + 1 :]]

    match how:
        case "cell" | "header":
            changed = 0 if how == "header" else row
            return [with_cell(line, draw.choice(CELLS)) if at == changed else line for at, line in enumerate(rows)]
        case "row twice":
            return [*rows[: row + 1], *rows[row:]]
        case "swap":
            other = draw.randrange(len(rows))
            return [rows[{row: other, other: row}.get(at, at)] for at in range(len(rows))]
        case "drop row":
            return [*rows[:row], *rows[row + 1 :]]
        case "drop column":
            return [line[:column] + line[column + 1 :] for line in rows]
        case _:
            cell = draw.choice(CELLS)
            return [rows[0], *(with_cell(line, cell) for line in rows[1:])]


def mutate_bytes(text: bytes, draw: random.Random, done: list[str]) -> bytes:
    at = draw.randrange(len(text) + 1)
    how = draw.choice(["cut", "flip", "insert", "double", "empty", "utf-16", "bom", "deep", "crlf"])
    done.append(f"bytes: {how} at {at}")
    whole = text.decode("utf-8", "replace")
    return {
        "cut": text[:at],
        "flip": text[:at] + bytes([draw.randrange(256)]) + text[at + 1 :],
        "insert": text[:at] + draw.randbytes(draw.randint(1, 8)) + text[at:],
        "double": text + text,
        "empty": b"",
        "utf-16": whole.encode("utf-16"),
        "bom": b"\xef\xbb\xbf" + text,
        "deep": b"[" * 100_000,
        "crlf": text.replace(b"\n", b"\r\n"),
    }[how]


MUTATORS: dict[str, Callable[[bytes, random.Random, list[str]], bytes]] = {
    bundle.RECORD: mutate_json,
    bundle.STEPS: mutate_csv,
    bundle.TELEMETRY: mutate_csv,
    bundle.MANIFEST: mutate_json,
    "ncu/kernels.csv": mutate_csv,
}
WEIGHTS = {bundle.RECORD: 6, bundle.STEPS: 4, bundle.TELEMETRY: 1, bundle.MANIFEST: 1, "ncu/kernels.csv": 2}


def bundles(root: Path) -> Path:
    """Make a bundle of each kind: two runs on a CPU, two on a GPU, one of these profiled, one imported log."""
    shutil.copytree(REAL, root)
    make(root, 0)
    profiled = make(root, 1, profile=PROFILE)
    (profiled / "ncu").mkdir()
    (profiled / "ncu" / "kernels.csv").write_text(NCU)
    bundle.seal(profiled)
    log = root.parent / "log.csv"
    log.write_text(LOG)
    import_file(log, UserFacts(), output=root)
    return root


def mutated(base: Path, root: Path, *, seed: int, number: int) -> Case:
    """Copy some bundles of `base`, and mutate one file of one of them."""
    case = Case(number=number, root=root, draw=random.Random(f"{seed}-{number}"))
    draw = case.draw
    folders = sorted(folder for folder in base.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    case.victim = root / draw.choice(folders).name
    # A case has few bundles, so that there is often none that is whole.
    kept = {case.victim.name, *(folder.name for folder in draw.sample(folders, draw.choice([0, 1, 2])))}
    for name in kept:
        shutil.copytree(base / name, root / name)
    present = [name for name in WEIGHTS if (case.victim / name).is_file()]
    name = draw.choices(present, [WEIGHTS[each] for each in present])[0]
    path = case.victim / name
    before = path.read_bytes()
    after = MUTATORS[name](before, draw, case.done)
    path.write_bytes(after)
    case.done.insert(0, f"{case.victim.name}/{name}")
    if name != bundle.MANIFEST and draw.random() < 0.85:
        bundle.seal(case.victim)
        case.done.append("sealed again")
    else:
        case.broken = name != bundle.MANIFEST and after != before
    return case


# --- what must hold

COMMANDS = (
    ["audit"],
    ["audit"],
    ["summary"],
    ["variance", "--part", "between"],
    ["variance", "--part", "within"],
    ["variance", "--part", "causes"],
    ["roofline"],
    ["compare"],
    ["kernels"],
)


def check(case: Case, *, with_report: bool) -> None:
    """Run readers on the case. Raises their errors, or AssertionError for a fault that they did not report."""
    assert case.victim is not None
    results = loaded(case)
    if results is None:
        return
    check_numbers(results.runs)
    if str(case.victim) not in set(results.runs["path"]):
        problems = [str(problem) for problem in results.problems]
        assert any(case.victim.name in problem for problem in problems), f"refused without a word: {problems}"
    else:
        assert not case.broken, "a file that is not what the manifest says was used"
    # The commands would read the same tables once each.
    with mock.patch.object(analysis, "load", side_effect=lambda *_, **__: results):
        for words in case.draw.sample(COMMANDS, 3):
            command([*words, str(case.root), "--format", case.draw.choice(["table", "json", "csv"])])
        if with_report:
            page, text = (str(case.root.parent / name) for name in ("report.html", "report.md"))
            command(["report", str(case.root), "-o", page, "--markdown", text])


def loaded(case: Case) -> Results | None:
    """Tables of the case; None if no bundle can be read. Then every command ends with the error checked here."""
    assert case.victim is not None
    try:
        return analysis.load(case.root)
    except RooflaunchError as error:
        refusal = str(error)
    assert case.victim.name in refusal, f"refused without a word: {refusal}"
    return None


def check_numbers(runs: pd.DataFrame) -> None:
    for name, kind in RUN_COLUMNS.items():
        if kind in RANGES:
            low, high, _ = RANGES[kind]
            known = runs[name].dropna()
            assert ((known == 0) | known.between(low, high) | (name == "images_per_s") & (known < math.inf)).all(), name


def command(words: Sequence[str]) -> str:
    """Run `analyze` in this process; its output, which must be printable, and valid where it is JSON."""
    import typer  # noqa: PLC0415

    from analysis.app import app  # noqa: PLC0415

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            typer.main.get_command(app).main(list(words), prog_name="analyze", standalone_mode=False)
        except RooflaunchError as error:
            err.write(error.report())
    text = out.getvalue()
    for line in f"{text}\n{err.getvalue()}".splitlines():
        assert "\x1b" not in line, f"{words[0]}: an escape code reaches the terminal"
    if "json" in words and text:
        json.loads(text, parse_constant=lambda name: reject(words[0], name))
    return text


def reject(name: str, constant: str) -> None:
    raise AssertionError(f"{name}: {constant} is no JSON")


def check_import(number: int, root: Path, *, seed: int) -> list[str]:
    """Import a mutated log or profile: it must be refused with an error of ours, or be readable afterwards."""
    draw = random.Random(f"import-{seed}-{number}")
    done: list[str] = []
    text, given = draw.choice([(LOG, UserFacts()), (NCU, UserFacts(model="resnet18", batch_size=4))])
    path = root / draw.choice(["log.csv", "log.csv", "p.ncu-rep"]) if text is NCU else root / "log.csv"
    path.write_bytes(mutate_csv(text.encode(), draw, done))
    try:
        folders = import_file(path, given, output=root / "results")
    except RooflaunchError:
        return done
    results = analysis.load(root / "results")
    assert {Path(path) for path in results.runs["path"]} == set(folders), "imported, and yet not readable"
    assert results.kernels is not None
    command(["audit", str(root / "results")])
    return done


def run_case(base: Path, folder: Path, *, seed: int, number: int, report_every: int = 25) -> list[str]:
    """Run a case and return its mutations. Raises the error of a reader that fails."""
    folder.mkdir()
    if number % 8 == 7:
        return check_import(number, folder, seed=seed)
    (folder / "results").mkdir()
    case = mutated(base, folder / "results", seed=seed, number=number)
    try:
        check(case, with_report=number % report_every == 0)
    except Exception as error:
        error.add_note(f"case {number} of seed {seed}: {'; '.join(case.done)}")
        raise
    return case.done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case, with its traceback")
    given = parser.parse_args()
    numbers = range(given.cases) if given.only is None else [given.only]
    kinds: Counter[str] = Counter()
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        base = bundles(Path(name) / "base")
        for number in numbers:
            folder = Path(name) / f"case-{number}"
            try:
                done = run_case(base, folder, seed=given.seed, number=number)
            except Exception as error:
                if given.only is not None:
                    raise
                last = traceback.extract_tb(error.__traceback__)[-1]
                ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/analysis/" in frame.filename]
                where = ours[-1] if ours else last
                kind = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:100]!r}"
                kinds[kind] += 1
                if kinds[kind] <= 2:
                    print(f"case {number}: {kind}\n  {'; '.join(getattr(error, '__notes__', []))}", flush=True)
            else:
                if given.only is not None:
                    print("; ".join(done))
            shutil.rmtree(folder, ignore_errors=True)
    took_s = time.perf_counter() - begin_s
    failures = f"{sum(kinds.values())} failures of {len(kinds)} kinds"
    print(f"{len(numbers)} cases of seed {given.seed} in {took_s:.0f} s: {failures}")
    for kind, count in kinds.most_common():
        print(f"  {count:5} {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())

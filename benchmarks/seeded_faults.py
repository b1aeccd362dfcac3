"""Small faults seeded into the code, and which of them the tests find.

    python benchmarks/seeded_faults.py list
    python benchmarks/seeded_faults.py run --set everyday --only 1-10 --json faults.jsonl
    python benchmarks/seeded_faults.py table faults.jsonl

The faults are drawn by a seed from the code of one commit, so that they stay the same while tests change. The six
kinds take turns; for each, all lines inside functions that allow this kind are equally likely.

A run clones the checkout into a temporary folder with a virtual environment of its own, in which `launch`, child
processes and tests import the clone; uncommitted changes are not part of it. It merges one fault at a time into the
clone and runs the test files of the fault's room, those closest to the changed module first, up to the first failure.
The room of `launcher/jobs/run.py` is `tests/launcher/jobs`, `tests/launcher/test_jobs_*.py`, and every test file that
imports the module; if there is no such folder, those files of `tests/launcher` whose imports lead to the module.
A fault is found when a test fails twice with the fault and passes without it. No output for 300 s is a failure too.
Results are appended to the file as JSON lines; a later run continues with the faults that have no line of that set.

mutmut and cosmic-ray are not used: both list every mutation of a module and run one command for each; neither draws
by line over all modules, swallows an exception, orders tests by closeness, or tells a failure that has other causes.
"""

import argparse
import ast
import io
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("launcher", "rooflaunch", "workload", "analysis")
SEED = 2026
COUNT = 40
# The commit that the faults are drawn from, and the one whose tests are the set `today`.
DRAWN_FROM = "1f213a5"
# Above the limit that pytest-timeout sets on one test.
SILENCE_S = 300
# A room whose tests fail by themselves is given up after this many different failures.
MOST_UNRELATED = 3


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests of a commit, by an expression of markers in which `{CI}` is that variable of the Makefile; empty for all.

    `includes` names a set whose tests are all part of this one.
    """

    markers: str = ""
    commit: str = "HEAD"
    includes: str | None = None


SETS = {
    "today": Suite(commit=DRAWN_FROM),
    "everyday": Suite(markers="{EVERYDAY}"),
    "ci": Suite(markers="({CI}) or (docker and not night)", includes="everyday"),
    "night": Suite(markers="night", includes="ci"),
}

COMPARISON = "comparison turned"
CONSTANT = "constant changed"
LEFT_OUT = "statement left out"
SWALLOWED = "exception swallowed"
BOOLEAN = "boolean turned"
ARITHMETIC = "arithmetic changed"
KINDS = (COMPARISON, CONSTANT, LEFT_OUT, SWALLOWED, BOOLEAN, ARITHMETIC)

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
CHANGED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One changed node of a file: `original` and `faulty` are the file's whole text without and with the fault."""

    number: int
    path: str
    line: int
    kind: str
    before: str
    after: str
    original: str = field(repr=False)
    faulty: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node of a syntax tree, and the field of its parent that holds it."""

    node: Any
    parent: ast.AST
    name: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def faults_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every kind of fault that `node` allows, with the node that replaces it."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, operator in enumerate(ops):
                turned = [*ops[:index], TURNED[type(operator)](), *ops[index + 1 :]]
                yield COMPARISON, ast.Compare(left=left, ops=turned, comparators=comparators)
        case ast.BoolOp(op=operator, values=values):
            yield BOOLEAN, ast.BoolOp(op=ast.Or() if isinstance(operator, ast.And) else ast.And(), values=values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield BOOLEAN, operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in CHANGED:
            yield ARITHMETIC, ast.BinOp(left=left, op=CHANGED[type(operator)](), right=right)
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in CHANGED:
            yield ARITHMETIC, ast.AugAssign(target=target, op=CHANGED[type(operator)](), value=value)
        case ast.Constant(value=bool() | int() | float() as value):
            yield CONSTANT, ast.Constant(value=other_than(value))
        case ast.Raise():
            yield SWALLOWED, ast.Pass()
    match node:
        case (
            ast.Assign() | ast.AugAssign() | ast.AnnAssign(value=ast.expr()) | ast.Expr(value=ast.Call() | ast.Await())
        ):
            yield LEFT_OUT, ast.Pass()


def other_than(value: float) -> float:
    """Another value: the other truth value, the next integer, or twice the number."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value or 1.0


def places(parent: ast.AST, *, inside: bool = False) -> Iterator[Place]:
    """Nodes of the bodies of functions. Signatures, annotations and the parts of an f-string are left out."""
    function = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
    for name, value in ast.iter_fields(parent):
        if (function and name != "body") or name == "annotation":
            continue
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, ast.arguments | ast.JoinedStr):
                continue
            if (inside or function) and hasattr(child, "lineno"):
                yield Place(node=child, parent=parent, name=name, index=index)
            yield from places(child, inside=inside or function)


def spliced(source: str, node: Any, text: str) -> str:
    """Replace the text of one node of `source`; positions in a syntax tree count bytes."""
    lines = source.encode().splitlines(keepends=True)
    head = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    tail = [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    return b"".join([*head, text.encode(), *tail]).decode()


def with_fault(source: str, tree: ast.AST, place: Place, new: ast.AST) -> str:
    """Text of the file with `new` in its place, in parentheses where the text would be read otherwise."""
    place.put(new)
    wanted = ast.dump(tree)
    place.put(place.node)
    for text in (ast.unparse(new), f"({ast.unparse(new)})"):
        changed = spliced(source, place.node, text)
        if ast.dump(ast.parse(changed)) == wanted:
            return changed
    raise AssertionError(f"line {place.node.lineno} cannot be changed to {ast.unparse(new)}")


def draw(sources: Mapping[str, str], *, seed: int, count: int) -> list[Fault]:
    """`count` faults on different lines of `sources` (text by path), numbered from 1 by path and line."""
    trees = {path: ast.parse(source) for path, source in sorted(sources.items())}
    allowed: dict[str, dict[tuple[str, int], list[tuple[Place, ast.AST]]]] = {kind: {} for kind in KINDS}
    for path, tree in trees.items():
        for place in places(tree):
            for kind, new in faults_of(place.node):
                allowed[kind].setdefault((path, place.node.lineno), []).append((place, new))
    chance = random.Random(seed)
    taken: dict[tuple[str, int], tuple[str, Place, ast.AST]] = {}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        line = chance.choice(sorted(allowed[kind].keys() - taken.keys()))
        taken[line] = (kind, *chance.choice(allowed[kind][line]))
    return [
        Fault(
            number=number,
            path=path,
            line=line,
            kind=kind,
            before=ast.unparse(place.node),
            after=ast.unparse(new),
            original=sources[path],
            faulty=with_fault(sources[path], trees[path], place, new),
        )
        for number, ((path, line), (kind, place, new)) in enumerate(sorted(taken.items()), start=1)
    ]


def git(*words: str, cwd: Path | None = None) -> bytes:
    return subprocess.run(["git", *words], cwd=cwd or ROOT, check=True, capture_output=True).stdout


def drawn(commit: str, *, seed: int, count: int) -> list[Fault]:
    """Faults drawn from a commit of this repository."""
    sources = {}
    there = [package for package in PACKAGES if git("ls-tree", commit, package)]
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *there))) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)):
                sources[member.name] = file.read().decode()
    return draw(sources, seed=seed, count=count)


# Which tests


def imported(source: str, modules: Mapping[str, str]) -> set[str]:
    """Paths of the project's modules that `source` imports anywhere; `modules` has paths by dotted name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {modules.get(name.name) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [modules.get(f"{node.module}.{name.name}", modules.get(node.module or "")) for name in node.names]
            found |= set(names)
    return {path for path in found if path}


@cache
def importers(root: Path) -> Mapping[str, set[str]]:
    """Files of the checkout that import a module, by the module's path."""
    files = [path.relative_to(root) for top in (*PACKAGES, "tests") for path in sorted((root / top).rglob("*.py"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files]
    modules = dict(zip(names, map(str, files), strict=True))
    by_path = defaultdict(set)
    for path in files:
        for other in imported((root / path).read_text(), modules):
            by_path[other].add(str(path))
    return dict(by_path)


def distances(target: str, importers: Mapping[str, set[str]]) -> dict[str, int]:
    """Number of imports between a file and the module `target`, by the file's path."""
    found, queue = {target: 0}, [target]
    for path in queue:
        for importer in importers.get(path, set()) - found.keys():
            found[importer] = found[path] + 1
            queue.append(importer)
    return found


def room(root: Path, target: str) -> list[str]:
    """Test files for the module `target`: those named after it first, then by the number of imports between."""
    away = distances(target, importers(root))
    files = {path for path, imports in away.items() if imports == 1 and Path(path).name.startswith("test_")}
    package = root / "tests" / Path(target).parts[0]
    folder = root / "tests" / Path(target).parent
    if folder != package and any(folder.glob("test_*.py")):
        named = package.glob(f"test_{folder.name}_*.py")
        files |= {str(path.relative_to(root)) for path in (*folder.glob("test_*.py"), *named)}
    else:
        files |= {str(path.relative_to(root)) for path in package.glob("test_*.py")} & away.keys()

    def closeness(path: str) -> tuple[bool, float, str]:
        return not Path(path).stem.endswith(f"_{Path(target).stem}"), away.get(path, float("inf")), path

    return sorted(files, key=closeness)


# The copy


@contextmanager
def clone(commit: str) -> Iterator[Path]:
    """Clone the repository at `commit`, with a virtual environment that imports the clone and borrows our packages."""
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as name:
        root = Path(name).resolve() / "rooflaunch"
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(root))
        git("checkout", "--quiet", "--detach", git("rev-parse", commit).decode().strip(), cwd=root)
        venv.create(root / ".venv", symlinks=True)
        packages = [path for path in sys.path if Path(path).name == "site-packages"]
        [site] = (root / ".venv" / "lib").glob("python*/site-packages")
        (site / "clone.pth").write_text("".join(f"{path}\n" for path in (root, *packages)))
        for program in (Path(sys.prefix) / "bin").iterdir():
            ours = root / ".venv" / "bin" / program.name
            if ours.exists() or program.name.startswith("python") or program.is_dir():
                continue
            if program.read_bytes()[:2] == b"#!":
                ours.write_text(program.read_text().replace(sys.prefix, str(root / ".venv")))
                ours.chmod(0o755)
            else:
                ours.symlink_to(program)
        git("tag", "unchanged", cwd=root)
        check_clone(root)
        yield root


def environment(root: Path) -> dict[str, str]:
    """Our environment without what adds tests, looks elsewhere for modules, or has each process compile them anew."""
    left_out = ("FULL_PAGES", "OVERNIGHT", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    ours = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**ours, "PATH": ours["PATH"].replace(f"{sys.prefix}/bin", f"{root}/.venv/bin")}


def check_clone(root: Path) -> None:
    """Raise if a fault in the clone does not reach tests, child processes in any folder and installed commands."""
    packages = [package for package in PACKAGES if (root / package).is_dir()]
    for package in packages:
        (root / package / "__init__.py").write_text('raise ImportError("seeded")\n')
    python = f"{root}/.venv/bin/python"
    commands = [
        *([python, "-c", f"import {package}"] for package in packages),
        *([f"{root}/.venv/bin/{name}", "--help"] for name in ("launch", "analyze")),
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(root / "tests" / "test_imports.py")],
    ]
    for command in commands:
        cwd = root if "pytest" in command else root.parent
        end = subprocess.run(command, cwd=cwd, env=environment(root), check=False, capture_output=True, text=True)
        if end.returncode == 0 or "seeded" not in end.stdout + end.stderr:
            raise SystemExit(f"error: a fault does not reach `{shlex.join(command)}`\n{end.stdout}{end.stderr}")
    restore(root)


def restore(root: Path) -> None:
    """Undo all changes of the clone."""
    changed = git("diff", "--name-only", "unchanged", cwd=root).decode().splitlines()
    git("reset", "--quiet", "--hard", "unchanged", cwd=root)
    git("clean", "-fdxq", "--exclude", ".venv", "--exclude", "__pycache__", cwd=root)
    for path in changed:
        forget_compiled(root / path)


def forget_compiled(path: Path) -> None:
    """Remove compiled files: Python takes one for current if size and second of the source are the same."""
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def apply(root: Path, fault: Fault) -> bool:
    """Merge a fault into the clone and commit it; False if that line was changed since the fault was drawn."""
    restore(root)
    path = root / fault.path
    if not path.exists():
        return False
    versions = [root.parent / "original.py", root.parent / "faulty.py"]
    for version, text in zip(versions, (fault.original, fault.faulty), strict=True):
        version.write_text(text)
    if subprocess.run(["git", "merge-file", "-q", path, *versions], check=False).returncode != 0:
        return False
    forget_compiled(path)
    # The tests of provenance look at whether the checkout is clean.
    name = ("-c", "user.name=seeded", "-c", "user.email=seeded@example.com")
    git(*name, "commit", "--quiet", "--all", "--message", "seeded", cwd=root)
    return True


# The runs


@dataclass(frozen=True, kw_only=True)
class End:
    """End of pytest: its exit status, None if it was silent too long, and the node ID of the first failure."""

    status: int | None
    test: str = ""
    text: str = field(default="", repr=False)

    @property
    def failed(self) -> bool:
        return self.status not in (0, 5)


def first_failure(text: str) -> str:
    """Node ID, or file that cannot be imported, from what `pytest -v` printed; the last test begun if none failed."""
    failed = re.search(r"^(tests/\S+\.py::.*?) (?:FAILED|ERROR)\b", text, re.MULTILINE)
    broken = re.search(r"^ERROR (tests/\S+\.py)", text, re.MULTILINE)
    begun = re.findall(r"^(tests/\S+\.py::.*?) ?$", text, re.MULTILINE)
    return failed[1] if failed else broken[1] if broken else begun[-1] if begun else ""


def pytest(root: Path, arguments: Sequence[str], targets: Sequence[str]) -> End:
    """Run tests up to the first failure. All processes of the run are killed after `SILENCE_S` without output."""
    words = ["-x", "-v", "-p", "no:cacheprovider", "--color=no", *arguments, *targets]
    process = subprocess.Popen(
        [root / ".venv/bin/python", "-m", "pytest", *words],
        cwd=root,
        env=environment(root),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout
    read = b""
    try:
        while select.select([process.stdout], [], [], SILENCE_S)[0]:
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                text = read.decode(errors="replace")
                return End(status=process.wait(), test=first_failure(text), text=text)
            read += chunk
        text = read.decode(errors="replace")
        return End(status=None, test=first_failure(text), text=text)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def verdict(root: Path, arguments: Sequence[str], fault: Fault, files: Sequence[str]) -> tuple[str, str]:
    """Result of the tests in `files` for a fault, and the first test that fails because of it."""
    unrelated: list[str] = []
    while len(unrelated) < MOST_UNRELATED:
        if not apply(root, fault):
            return "does not apply", ""
        skipped = [word for test in unrelated for word in ("--deselect", test)]
        end = pytest(root, [*arguments, *skipped], files)
        if not end.failed:
            return "not found", ""
        if not end.test:
            return f"pytest exits {end.status}", end.text[-300:]
        again = end.status is None or pytest(root, arguments, [end.test]).failed
        restore(root)
        if again and pytest(root, arguments, [end.test]).status == 0:
            return ("found" if end.status is not None else "found by timeout"), end.test
        unrelated.append(end.test)
        files = files[files.index(end.test.partition("::")[0]) :]
    return "failed anyway", unrelated[-1]


def rows_of(paths: Sequence[Path]) -> dict[tuple[str, int], dict[str, Any]]:
    """Results by set and fault; of several, the last."""
    rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return {(row["set"], row["fault"]): row for row in rows}


def found(rows: Mapping[tuple[str, int], Mapping[str, Any]], name: str | None, number: int) -> Mapping[str, Any] | None:
    """Row of a set, or of a set that it includes, in which a fault is found; None without one."""
    while name:
        if (row := rows.get((name, number))) and row["result"].startswith("found"):
            return row
        name = SETS[name].includes
    return None


def run(options: argparse.Namespace, faults: Sequence[Fault]) -> None:
    suite = SETS[options.set]
    commit = git("rev-parse", "--short", options.commit or suite.commit).decode().strip()
    rows = {} if options.again else rows_of([options.json])
    done = {number for name, number in rows if name == options.set}
    done |= {fault.number for fault in faults if found(rows, suite.includes, fault.number)}
    left = [fault for fault in faults if fault.number not in done]
    if not left:
        return
    # Clean up: pytest runs in a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with clone(commit) as root:
        arguments = shlex.split(options.pytest_args)
        if suite.markers:
            variables = re.findall(r"^([A-Z]+) := (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
            arguments += ["-m", suite.markers.format_map(dict(variables))]
        for fault in left:
            begin_s = time.monotonic()
            files = room(root, fault.path)
            result, test = verdict(root, arguments, fault, files)
            if result == "not found" and options.whole:
                rest = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
                result, test = verdict(root, arguments, fault, [path for path in rest if path not in files])
            row = {"set": options.set, "fault": fault.number, "result": result, "test": test, "commit": commit}
            row["seconds"] = round(time.monotonic() - begin_s, 1)
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{fault.number:2} {fault.path}:{fault.line}: {result}, {row['seconds']} s  {test}", flush=True)


def shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def table(paths: Sequence[Path], faults: Sequence[Fault]) -> Iterator[str]:
    """One Markdown table: a row for each fault, a column for each set that has results."""
    rows = rows_of(paths)
    names = [name for name in SETS if any(row["set"] == name for row in rows.values())]

    def cell(name: str, number: int) -> str:
        row = found(rows, name, number) or rows.get((name, number))
        if not row:
            return ""
        said = f"{row['result']}, {row['seconds']:.0f} s"
        return said if row["set"] == name else f"{said} ({row['set']})"

    yield f"| | fault | change | {' | '.join(names)} | first failing test |"
    yield "|---" * (len(names) + 4) + "|"
    for fault in faults:
        change = " → ".join(f"`{shortened(text)}`" for text in (fault.before, fault.after)).replace("|", "\\|")
        lines = [row for name in names if (row := found(rows, name, fault.number))]
        test = f"`{lines[0]['test']}`".replace("|", "\\|") if lines else ""
        cells = " | ".join(cell(name, fault.number) for name in names)
        yield f"| {fault.number} | {fault.path}:{fault.line} {fault.kind} | {change} | {cells} | {test} |"
    counts = " | ".join(f"{sum(bool(found(rows, name, one.number)) for one in faults)} found" for name in names)
    yield f"| | of {len(faults)} | | {counts} | |"


def numbers(text: str) -> set[int]:
    """`1-3,7` as {1, 2, 3, 7}."""
    parts = [part.split("-") for part in text.split(",")]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--drawn-from", default=DRAWN_FROM, metavar="COMMIT", help=f"default {DRAWN_FROM}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the faults")
    running = commands.add_parser("run", help="run a set of tests against each fault")
    running.add_argument("--set", choices=SETS, required=True)
    running.add_argument("--only", type=numbers, metavar="1-3,7", help="numbers of faults; default all")
    running.add_argument("--json", type=Path, default=Path("seeded_faults.jsonl"), metavar="FILE")
    running.add_argument("--again", action="store_true", help="run faults that have a result as well")
    running.add_argument("--whole", action="store_true", help="after the room, run all other tests too")
    running.add_argument("--commit", help="commit whose tests run; default the set's, which is mostly HEAD")
    running.add_argument("--pytest-args", default="", metavar="'…'", help="more arguments of pytest")
    commands.add_parser("table", help="print results as Markdown").add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(words)
    faults = drawn(options.drawn_from, seed=options.seed, count=options.count)
    if options.command == "run":
        run(options, [fault for fault in faults if not options.only or fault.number in options.only])
    elif options.command == "table":
        print("\n".join(table(options.files, faults)))
    else:
        for fault in faults:
            print(f"{fault.number:2} {fault.path}:{fault.line}  {fault.kind}: {fault.before} -> {fault.after}")


if __name__ == "__main__":
    main()

"""Small faults seeded into the code, and for each of them all test files that find it: the kill map.

    python benchmarks/seeded_faults.py map --json killmap.jsonl
    python benchmarks/seeded_faults.py table killmap.jsonl

The faults are drawn by a seed from the code of one commit. The six kinds take turns; for each, all lines inside
functions that allow this kind are equally likely. The first hundred are an even sample too (`--count 100`). In later
code a fault is looked for by the text of its line: in the same function, in a function of that name elsewhere, or
anywhere if only one line has that text. Otherwise it is gone. So the same faults can be run before and after a change.

A map clones a commit into a temporary folder with a virtual environment of its own, and compiles all faults into the
clone at once; each asks `seeded_plugin.py` whether it is switched on. The everyday tests run once without a fault and
note which tests reach which fault, also in child processes (kept in `killmap.tests.json`). Then one pytest collects
all tests and forks a process for each fault, in which tests run that reach it: many from the files closest to the
changed module, and at least one from each file while there is time. Faults that are reached while modules are imported
need a pytest of their own; they come last. A test finds a fault if it fails with it and passes without it right after,
or if it does not end in time. A later run continues with the faults that have no line in the file.

Not seen: faults in text that other Pythons run, such as `launcher/backends/ssh/keeper.py`. mutmut and cosmic-ray are
not used: neither draws by line over all modules, swallows an exception, or says which of all tests find a fault.
"""

import argparse
import ast
import dataclasses
import importlib.util
import json
import marshal
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("launcher", "rooflaunch", "workload", "analysis")
SEED = 2026
COUNT = 400
DRAWN_FROM = "11f6e199"
# Limits of one test, of the tests of one fault, and of pytest until it has collected all tests (of a few, a quarter).
TEST_S = 20
FAULT_S = 60
COLLECTING_S = 600
# Tests that run for a fault: as many as this, unless they took longer than this without a fault.
MOST_TESTS = 80
MOST_TESTS_S = 5
# As many more of those that reach it, if none of them fails.
MOST_OTHERS = 400
MOST_OTHERS_S = 15
# The closest files run this many tests each before others run one.
CLOSEST_FILES = 4
CLOSEST_TESTS = 10
# Flags of a compiled file: it has a hash of the source, which Python need not compare.
UNCHECKED = (1).to_bytes(4, "little")
# The table lets no file go that met fewer faults.
LEAST_TRIED = 4
RESULTS = ("found", "not found", "not reached", "gone")

COMPARISON = "comparison turned"
CONSTANT = "constant changed"
LEFT_OUT = "statement left out"
SWALLOWED = "exception swallowed"
BOOLEAN = "boolean turned"
ARITHMETIC = "arithmetic changed"
KINDS = (COMPARISON, CONSTANT, LEFT_OUT, SWALLOWED, BOOLEAN, ARITHMETIC)

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    operator: other
    for pair in (
        (ast.Lt, ast.LtE),
        (ast.Gt, ast.GtE),
        (ast.Eq, ast.NotEq),
        (ast.Is, ast.IsNot),
        (ast.In, ast.NotIn),
    )
    for operator, other in (pair, pair[::-1])
}
CHANGED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    **dict.fromkeys((ast.Div, ast.FloorDiv, ast.Mod, ast.Pow), ast.Mult),
}


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A node of a syntax tree, where its parent holds it, and the qualified name of its function."""

    node: Any
    held: Any
    key: Any
    function: str

    def put(self, number: int, which: int) -> None:
        """Run fault `which` of the node instead of it while `seeded_fault(number)` is true."""
        old, new = self.held[self.key], list(faults_of(self.node))[which][1]
        test = ast.Call(ast.Name("seeded_fault", ast.Load()), [ast.Constant(number)], [])
        either = ast.If(test, [new], [old]) if isinstance(old, ast.stmt) else ast.IfExp(test, new, old)
        self.held[self.key] = ast.fix_missing_locations(ast.copy_location(either, self.node))


def places(parent: ast.AST, *, names: tuple[str, ...] = (), inside: bool = False) -> Iterator[Place]:
    """Nodes of the bodies of functions. Signatures, annotations, patterns and the parts of an f-string are left out."""
    function = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = (*names, parent.name)
    for name, value in ast.iter_fields(parent):
        if (function and name != "body") or name == "annotation":
            continue
        held, keys = (value, range(len(value))) if isinstance(value, list) else (parent.__dict__, [name])
        for key in keys:
            child = held[key]
            if not isinstance(child, ast.AST) or isinstance(child, ast.arguments | ast.JoinedStr | ast.pattern):
                continue
            if (inside or function) and hasattr(child, "lineno"):
                yield Place(node=child, held=held, key=key, function=".".join(names))
            yield from places(child, names=names, inside=inside or function)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """A fault that the code allows: `which` counts the faults of the node, `nth` equal changes in the function."""

    path: str
    function: str
    line: int
    text: str
    kind: str
    before: str
    after: str
    which: int
    nth: int

    @property
    def change(self) -> tuple[str, ...]:
        """What a fault is recognized by in later code, beside its function."""
        return self.text, self.kind, self.before, self.after


def sites(path: str, source: str, tree: ast.AST) -> Iterator[tuple[Site, Place]]:
    """All faults that a module allows. Outer nodes come before the nodes in them."""
    lines = source.splitlines()
    before = Counter[tuple[str, ...]]()
    for place in places(tree):
        for which, (kind, new) in enumerate(faults_of(place.node)):
            text = lines[place.node.lineno - 1].strip()
            change = (text, kind, ast.unparse(place.node), ast.unparse(new))
            nth = before[place.function, *change]
            before[place.function, *change] += 1
            names = dict(zip(("text", "kind", "before", "after"), change, strict=True))
            line = place.node.lineno
            yield Site(path=path, function=place.function, line=line, which=which, nth=nth, **names), place


def draw(sources: Mapping[str, str], *, seed: int, count: int) -> dict[int, Site]:
    """`count` faults on different lines of `sources` (text by path), numbered from 1 as they are drawn."""
    allowed: dict[str, dict[tuple[str, int], list[Site]]] = {kind: {} for kind in KINDS}
    for path, source in sorted(sources.items()):
        for site, _ in sites(path, source, ast.parse(source)):
            allowed[site.kind].setdefault((site.path, site.line), []).append(site)
    chance = random.Random(seed)
    taken: dict[tuple[str, int], Site] = {}
    for number in range(count):
        lines = allowed[KINDS[number % len(KINDS)]]
        line = chance.choice(sorted(lines.keys() - taken.keys()))
        taken[line] = chance.choice(lines[line])
    return dict(enumerate(taken.values(), start=1))


def located(fault: Site, equal: Sequence[tuple[Site, Place]]) -> tuple[Site, Place] | None:
    """The same fault among those of other code that make an equal change; None if it is gone."""
    name = fault.function.rpartition(".")[2]
    for near in (
        lambda site: (site.path, site.function) == (fault.path, fault.function),
        lambda site: site.function == fault.function,
        lambda site: site.function.rpartition(".")[2] == name,
    ):
        if here := [(site.path, site.function) for site, _ in equal if near(site)]:
            there = [pair for pair in equal if (pair[0].path, pair[0].function) == here[0]]
            return there[min(fault.nth, len(there) - 1)]
    return equal[0] if len(equal) == 1 else None


def git(*words: str, cwd: Path | None = None) -> bytes:
    return subprocess.run(["git", *words], cwd=cwd or ROOT, check=True, capture_output=True).stdout


def sources_of(commit: str, cwd: Path | None = None) -> dict[str, str]:
    """Text of our modules at a commit, by path."""
    paths = git("ls-tree", "-r", "--name-only", commit, *PACKAGES, cwd=cwd).decode().split()
    return {path: git("show", f"{commit}:{path}", cwd=cwd).decode() for path in paths if path.endswith(".py")}


# Which tests


def imports(text: str, path: str) -> bool:
    """Whether a file with this text imports the module at `path`, anywhere."""
    *parents, name = Path(path.removesuffix("/__init__.py")).with_suffix("").parts
    package = r"\.".join(parents)
    named = rf"from {package} import (?:\([^)]*|.*)\b{name}\b"
    return bool(re.search(rf"^\s*(?:{named}|(?:from|import) {package}\.{name}\b(?!\.))", text, re.MULTILINE))


def closest_first(root: Path, target: str, files: Iterable[str]) -> list[str]:
    """Test files in the order of their closeness to the module `target`: by name, imports and folder."""

    def closeness(path: str) -> tuple[bool, bool, bool, str]:
        named = Path(path).stem.endswith(f"_{Path(target).stem}")
        beside = Path(path).parent == "tests" / Path(target).parent
        return not (named and beside), not imports((root / path).read_text(), target), not beside, path

    return sorted(files, key=closeness)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def chosen(
    files: Sequence[str], times: Mapping[str, float], most: int = MOST_TESTS, most_s: float = MOST_TESTS_S
) -> list[str]:
    """Tests to run for a fault, of those with a time: the fastest of each file; `files` are in order of closeness."""
    by_file = defaultdict(list)
    for test in sorted(times, key=lambda test: (times[test], test)):
        by_file[file_of(test)].append(test)
    first = [test for file in files[:CLOSEST_FILES] for test in by_file[file][:CLOSEST_TESTS]]
    rounds = range(max((len(tests) for tests in by_file.values()), default=0))
    others = [by_file[file][place] for place in rounds for file in files if place < len(by_file[file])]
    tests: list[str] = []
    seconds = 0.0
    for test in dict.fromkeys([*first, *others]):
        if not tests or (len(tests) < most and seconds + times[test] <= most_s):
            tests.append(test)
            seconds += times[test]
    return tests


# The copy


@contextmanager
def clone(commit: str) -> Iterator[Path]:
    """Clone the repository at `commit`, with a virtual environment that imports the clone and borrows our packages."""
    with tempfile.TemporaryDirectory(prefix="seeded-faults-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve() / "rooflaunch"
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(root))
        git("checkout", "--quiet", "--detach", git("rev-parse", commit).decode().strip(), cwd=root)
        venv.create(root / ".venv", symlinks=True)
        packages = [path for path in sys.path if Path(path).name == "site-packages"]
        site = site_of(root)
        (site / "clone.pth").write_text("".join(f"{path}\n" for path in (root, *packages)) + "import seeded_plugin\n")
        (site / "seeded_plugin.py").write_bytes(Path(__file__).with_name("seeded_plugin.py").read_bytes())
        for program in (Path(sys.prefix) / "bin").iterdir():
            ours = root / ".venv" / "bin" / program.name
            if ours.exists() or program.name.startswith("python") or program.is_dir():
                continue
            if program.read_bytes()[:2] == b"#!":
                ours.write_text(program.read_text().replace(sys.prefix, str(root / ".venv")))
                ours.chmod(0o755)
            else:
                ours.symlink_to(program)
        yield root


def site_of(root: Path) -> Path:
    [site] = (root / ".venv" / "lib").glob("python*/site-packages")
    return site


def environment(root: Path) -> dict[str, str]:
    """Our environment without what adds tests, looks elsewhere for modules, or has each process compile them anew."""
    left_out = ("FULL_PAGES", "OVERNIGHT", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    ours = {name: value for name, value in os.environ.items() if name not in left_out}
    # A process that was forked cannot use the OpenMP threads of its parent.
    ours["OMP_NUM_THREADS"] = "1"
    return {**ours, "PATH": ours["PATH"].replace(f"{sys.prefix}/bin", f"{root}/.venv/bin")}


def compile_faults(root: Path, faults: Mapping[int, Site]) -> dict[int, Site]:
    """Compile all faults into the clone's modules; those that are not gone, where they are now.

    Python takes compiled files that are marked as unchecked, whatever the source says.
    """
    sources = sources_of("HEAD", cwd=root)
    trees = {path: ast.parse(source) for path, source in sources.items()}
    found = [pair for path, source in sources.items() for pair in sites(path, source, trees[path])]
    equal = defaultdict(list)
    for pair in found:
        equal[pair[0].change].append(pair)
    there = {number: pair for number, fault in faults.items() if (pair := located(fault, equal[fault.change]))}
    order = {id(place): index for index, (_, place) in enumerate(found)}
    # A node is changed after those in it, so that it holds their faults with and without its own.
    for number, (site, place) in sorted(there.items(), key=lambda row: -order[id(row[1][1])]):
        place.put(number, site.which)
    for path in {site.path for site, _ in there.values()}:
        code = compile(trees[path], str(root / path), "exec", dont_inherit=True)
        cached = Path(importlib.util.cache_from_source(str(root / path)))
        cached.parent.mkdir(exist_ok=True)
        head = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(sources[path].encode())
        cached.write_bytes(head + marshal.dumps(code))
    return {number: site for number, (site, _) in there.items()}


# The runs


def rows_in(text: str) -> list[dict[str, Any]]:
    """JSON lines, without the last one of a run that was killed, and without what a test wrote into any open file."""
    rows = []
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            rows += [json.loads(line)] if line.startswith("{") else []
    return rows


def pytest_words(root: Path, markers: str) -> list[str]:
    # What a failure compares and where it is may take seconds to describe.
    plugins = ["-p", "no:cacheprovider", "-p", "seeded_plugin", "--assert=plain", "--tb=no"]
    words = ["--continue-on-collection-errors", f"--timeout={TEST_S}", f"--basetemp={root.parent}/tmp", "-m", markers]
    return [f"{root}/.venv/bin/python", "-m", "pytest", "-q", *plugins, *words]


def reach(root: Path, markers: str) -> dict[str, Any]:
    """Run all tests without a fault: seconds of those that pass, and names of those that reach each fault.

    Faults in `early` are reached while modules are imported, or by a process that does not know its test.
    """
    notes = site_of(root) / "seeded_notes"
    notes.touch()
    words = [*pytest_words(root, markers), "--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    with (root.parent / "without.log").open("wb") as log:
        subprocess.run(words, cwd=root, env=environment(root), stdout=log, stderr=log, check=False)
    print(*(root.parent / "without.log").read_text().splitlines()[-20:], sep="\n", flush=True)
    rows = rows_in(notes.read_text(errors="replace"))
    notes.unlink()
    failed = {row["part"] for row in rows if row.get("failed")}
    seconds = defaultdict[str, float](float)
    tests = defaultdict[int, set[str]](set)
    for row in rows:
        if "part" in row and row["part"] not in failed:
            # Both a worker and the process that gathers reports note each part.
            seconds[row["part"]] += row["seconds"] / 2
        elif "fault" in row and row["test"] not in failed:
            tests[row["fault"]].add(row["test"])
    return {
        "seconds": {test: round(time, 3) for test, time in seconds.items()},
        "tests": {str(number): sorted(names - {""}) for number, names in tests.items()},
        "early": sorted(number for number, names in tests.items() if "" in names),
    }


class Forks:
    """A pytest that has collected tests, and runs those of a job in a child process of its own."""

    def __init__(self, root: Path, markers: str, files: Sequence[str] = (), *, fault: int = 0) -> None:
        self.root, self.markers = root, markers
        self._on = site_of(root) / "seeded_on"
        self._on.write_text(str(fault))
        jobs, self._jobs = os.pipe()
        self._messages, messages = os.pipe()
        self._process = subprocess.Popen(
            [*pytest_words(root, markers), *files],
            cwd=root,
            env={**environment(root), "SEEDED_PIPES": f"{jobs},{messages}"},
            stdin=subprocess.DEVNULL,
            stdout=(root.parent / "forks.log").open("ab"),
            stderr=subprocess.STDOUT,
            pass_fds=(jobs, messages),
            start_new_session=True,
        )
        os.close(jobs)
        os.close(messages)
        self._read = b""
        self.collected: set[str] = set()
        self.broken: set[str] = set()
        for message in self._until(time.monotonic() + (COLLECTING_S / 4 if fault else COLLECTING_S)):
            if "broken" in message:
                self.broken.add(message["broken"])
            elif "collected" in message:
                self.collected = set(message["collected"])
                return

    def _until(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Messages until the deadline, or until the end of pytest."""
        while True:
            while b"\n" in self._read:
                line, _, self._read = self._read.partition(b"\n")
                yield from rows_in(line.decode(errors="replace"))
            left_s = max(0, deadline - time.monotonic())
            if not select.select([self._messages], [], [], left_s)[0] or not (read := os.read(self._messages, 1 << 16)):
                return
            self._read += read

    def failed(self, number: int, tests: Sequence[str]) -> set[str]:
        """The first of `tests` in each file that fails with a fault (0 for none) or does not end in time."""
        self._on.write_text(str(number))
        os.write(self._jobs, (json.dumps({"fault": number, "tests": list(tests)}) + "\n").encode())
        failed: set[str] = set()
        child, running = None, set[str]()
        for message in self._until(time.monotonic() + FAULT_S):
            child = message.get("child", child)
            running = {message["begun"]} if "begun" in message else running - {message.get("ended")}
            if message.get("failed"):
                failed.add(message["part"])
            if "done" in message:
                break
        else:
            if child:
                os.killpg(child, signal.SIGKILL)
            if not any("done" in message for message in self._until(time.monotonic() + TEST_S)):
                raise SystemExit(f"error: pytest has ended or hangs at fault {number}")
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that its tests left
        return failed | running

    def close(self) -> None:
        os.close(self._jobs)
        os.close(self._messages)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def verdict(forks: Forks, number: int, fault: Site, known: Mapping[str, Any]) -> dict[str, Any]:
    """Result of the tests that reach a fault."""
    times = {test: known["seconds"][test] for test in forks.collected & known["seconds"].keys()}
    reaching = times.keys() & known["tests"].get(str(number), ())
    if early := number in known["early"]:
        files = {file_of(test) for test in times}
        importers = {file for file in files if imports((forks.root / file).read_text(), fault.path)}
        reaching |= {test for test in times if file_of(test) in importers}
    if not reaching:
        return {"result": "not reached"}
    files = closest_first(forks.root, fault.path, {file_of(test) for test in reaching})
    tests = chosen(files, {test: times[test] for test in reaching})
    tried = sorted({file_of(test) for test in tests})
    broken: set[str] = set()
    if early:
        with closing(Forks(forks.root, forks.markers, tried, fault=number)) as own:
            broken = own.broken if own.collected else set(tried)
            # Tests are named after the values of their tables, which a fault may change.
            new = sorted(own.collected - forks.collected)
            failed = own.failed(number, [*tests, *new[:MOST_TESTS]]) if own.collected else set()
    elif not (failed := forks.failed(number, tests)):
        # A fixture or a cache keeps what one test reached for other tests of the file.
        more = chosen(files, {test: times[test] for test in reaching - set(tests)}, MOST_OTHERS, MOST_OTHERS_S)
        beside = {test: s for test, s in times.items() if file_of(test) in files[:CLOSEST_FILES]}
        failed = forks.failed(number, [*more, *chosen(files[:CLOSEST_FILES], beside)])
    if failed:
        failed -= forks.failed(0, sorted(failed & forks.collected))
    tests = sorted(failed | broken)
    return {"result": "found" if tests else "not found", "tried": tried, "tests": tests}


def map_faults(options: argparse.Namespace, faults: Mapping[int, Site]) -> None:
    commit = git("rev-parse", "--short", options.commit).decode().strip()
    rows = rows_in(options.json.read_text()) if options.json.exists() else []
    done = {row["number"] for row in rows if row["commit"] == commit}
    # Clean up: pytest runs in a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with clone(commit) as root:
        there = compile_faults(root, faults)
        [markers] = re.findall(r"^EVERYDAY := (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
        kept = options.json.with_suffix(".tests.json")
        known = json.loads(kept.read_text()) if kept.exists() else {}
        of = {"commit": commit, "drawn_from": options.drawn_from, "seed": options.seed, "count": options.count}
        if known.get("of") != of:
            known = {"of": of, **reach(root, markers)}
            kept.write_text(json.dumps(known))
        left = sorted(faults.keys() - done, key=lambda number: (number in known["early"], number))
        begin_s = time.monotonic()
        with closing(Forks(root, markers)) as forks, options.json.open("a", buffering=1) as file:
            for place, number in enumerate(left, start=1):
                fault, fault_s = there.get(number, faults[number]), time.monotonic()
                row = {"number": number, "commit": commit, **dataclasses.asdict(fault), "tried": [], "tests": []}
                row |= verdict(forks, number, fault, known) if number in there else {"result": "gone"}
                row["seconds"] = round(time.monotonic() - fault_s, 1)
                file.write(json.dumps(row) + "\n")
                left_min = (time.monotonic() - begin_s) / place * (len(left) - place) / 60
                found = f"{row['result']} by {len(files_in(row))} of {len(row['tried'])} files"
                where = f"{fault.path}:{fault.line}"
                print(f"{place}/{len(left)} {where}: {found}, {row['seconds']} s; {left_min:.0f} min left", flush=True)


# The table


def files_in(row: Mapping[str, Any]) -> set[str]:
    """Test files that find a fault."""
    return {file_of(test) for test in row["tests"]}


def counted(rows: Sequence[Mapping[str, Any]], title: str, value: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    """Number of faults by result, for each value."""
    yield f"| {title} | {' | '.join(RESULTS)} |"
    yield "|---" * (len(RESULTS) + 1) + "|"
    counts = Counter((value(row), row["result"]) for row in rows)
    for name in [*sorted({name for name, _ in counts}), "all"]:
        numbers = (sum(n for (one, said), n in counts.items() if name in (one, "all") and said == r) for r in RESULTS)
        yield f"| {name} | {' | '.join(map(str, numbers))} |"
    yield ""


def table(rows: Sequence[Mapping[str, Any]], lines: Mapping[str, int]) -> Iterator[str]:
    """Counts by kind and room; test files (by their number of lines) that find no fault alone; and the others."""
    yield from counted(rows, "kind", lambda row: row["kind"])
    yield from counted(rows, "room", lambda row: str(Path(row["path"]).parent))
    finders = {row["number"]: files_in(row) for row in rows if row["result"] == "found"}
    needed = {file for files in finders.values() if len(files) == 1 for file in files}
    finds = Counter(file for files in finders.values() for file in files)
    tried = Counter(file for row in rows for file in row["tried"])
    without = sorted(lines.keys() - needed, key=lambda file: (-lines[file], file))
    # A file can go with those before it while each fault is found by a file that stays. That says little of a file with
    # few faults: without all such files, other faults would be lost (a third, where 200 decided on 200 others).
    gone: set[str] = set()
    for file in without:
        if tried[file] >= LEAST_TRIED and all(files - gone - {file} for files in finders.values() if file in files):
            gone.add(file)
    total, together = (sum(lines[file] for file in files) for files in (without, gone))
    yield f"Test files without a fault of their own: {len(without)} with {total} lines. Those marked * were"
    yield f"tried on at least {LEAST_TRIED} faults, and without them the others find all:"
    yield f"{len(gone)} files with {together} lines."
    yield ""
    yield "| file | lines | faults tried | found, as by others |"
    yield "|---|---|---|---|"
    for file in without:
        yield f"| {file}{' *' * (file in gone)} | {lines[file]} | {tried[file]} | {finds[file]} |"
    yield ""
    yield "| fault that one file finds | file |"
    yield "|---|---|"
    alone = [(row, *finders[row["number"]]) for row in rows if len(finders.get(row["number"], ())) == 1]
    yield from (f"| {described(row)} | {file} |" for row, file in sorted(alone, key=lambda pair: pair[1]))
    yield ""
    yield "| fault that no test finds | |"
    yield "|---|---|"
    yield from (f"| {described(row)} | {row['result']} |" for row in rows if row["result"].startswith("not"))


def described(row: Mapping[str, Any]) -> str:
    texts = (textwrap.shorten(row[name], 70, placeholder="…").replace("|", "\\|") for name in ("before", "after"))
    return f"{row['number']} {row['path']}:{row['line']} {row['kind']}: `{'` → `'.join(texts)}`"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--drawn-from", default=DRAWN_FROM, metavar="COMMIT", help=f"default {DRAWN_FROM}")
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="which test files find which fault")
    mapping.add_argument("--json", type=Path, default=Path("killmap.jsonl"), metavar="FILE")
    mapping.add_argument("--commit", default="HEAD", help="code and tests; default HEAD")
    commands.add_parser("table", help="print a map as Markdown").add_argument("file", type=Path)
    options = parser.parse_args(words)
    if options.command == "table":
        tests = json.loads(options.file.with_suffix(".tests.json").read_text())
        commit, files = tests["of"]["commit"], {file_of(test) for test in tests["seconds"]}
        counts = git("grep", "--count", "", commit, "--", *files).decode().splitlines()
        lines = {path: int(count) for _, path, count in (line.split(":") for line in counts)}
        rows = [row for row in rows_in(options.file.read_text()) if row["commit"] == commit]
        print("\n".join(table(rows, lines)))
        return
    map_faults(options, draw(sources_of(options.drawn_from), seed=options.seed, count=options.count))


if __name__ == "__main__":
    main()

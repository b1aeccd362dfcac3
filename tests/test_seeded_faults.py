"""Tests of benchmarks/seeded_faults.py: the faults that it draws, where they are later, the tests that it runs."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import seeded_faults
from benchmarks.seeded_faults import ARITHMETIC, BOOLEAN, COMPARISON, CONSTANT, KINDS, LEFT_OUT, SWALLOWED

ROOT = Path(__file__).parents[1]
# The body of a function without arguments, and its faults of one kind.
BODIES = {
    "comparison, each end": (COMPARISON, "x = 1 < y <= z", ["x = 1 <= y <= z", "x = 1 < y < z"]),
    "comparison, equality": (COMPARISON, "x = y == z", ["x = y != z"]),
    "comparison, identity": (COMPARISON, "x = y is not z", ["x = y is z"]),
    "comparison, membership": (COMPARISON, "x = y not in z", ["x = y in z"]),
    "constant, number": (CONSTANT, "f(1, 0.5, 0.0)", ["f(2, 0.5, 0.0)", "f(1, 1.0, 0.0)", "f(1, 0.5, 1.0)"]),
    "constant, truth": (CONSTANT, "x = True", ["x = False"]),
    "constant, not text or None": (CONSTANT, "x = ('1', None, b'1', ...)", []),
    "call": (LEFT_OUT, "f(x)", ["pass"]),
    "assignments": (LEFT_OUT, "x = 1; y: int = 2", ["pass; y: int = 2", "x = 1; pass"]),
    "assignment in place": (LEFT_OUT, "x |= 1", ["pass"]),
    "not a docstring, a declaration or a return": (LEFT_OUT, "'text'; x: int; return x", []),
    "exception": (SWALLOWED, "raise ValueError(x) from None", ["pass"]),
    "and, or": (BOOLEAN, "x = a and b or c", ["x = (a and b) and c", "x = (a or b) or c"]),
    "not": (BOOLEAN, "x = not y", ["x = y"]),
    "arithmetic": (ARITHMETIC, "x = a + b - c", ["x = a + b + c", "x = a - b - c"]),
    "arithmetic, read as before": (ARITHMETIC, "x = a / b ** c", ["x = a * b ** c", "x = a / (b * c)"]),
    "arithmetic, in place": (ARITHMETIC, "x *= 2", ["x /= 2"]),
    "arithmetic, not of sets": (ARITHMETIC, "x = a | b", []),
}


def changed(source: str) -> list[tuple[str, str]]:
    """Every fault of a file, as its kind and the file's text with the fault."""
    texts = []
    for number, _ in enumerate(seeded_faults.sites("a.py", source, ast.parse(source))):
        tree = ast.parse(source)
        site, place = list(seeded_faults.sites("a.py", source, tree))[number]
        place.put(number, site.which)
        texts.append((site.kind, ast.unparse(Chosen(number).visit(tree))))
    return texts


class Chosen(ast.NodeTransformer):
    """Replaces what is run if a fault is switched on by what is run then."""

    def __init__(self, number: int) -> None:
        self.test = f"seeded_fault({number})"

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return node.body if ast.unparse(node.test) == self.test else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        return node.body if ast.unparse(node.test) == self.test else self.generic_visit(node)


@pytest.mark.parametrize(("kind", "body", "faulty"), BODIES.values(), ids=BODIES)
def test_a_fault_changes_one_node(kind: str, body: str, faulty: list[str]) -> None:
    texts = [text for found, text in changed(f"def f():\n    {body}  # why\n") if found == kind]
    assert texts == [ast.unparse(ast.parse(f"def f():\n    {one}")) for one in faulty]


def test_faults_in_a_fault_stay_with_it_and_without_it() -> None:
    source = "def f(x):\n    return (\n        x > 0\n        and x < 9\n    )\n"
    tree = ast.parse(source)
    pairs = list(seeded_faults.sites("a.py", source, tree))
    chosen = [pair for pair in pairs if pair[0].kind == BOOLEAN or "x < 9" in pair[0].before]
    for number, (site, place) in reversed(list(enumerate(chosen))):
        place.put(number, site.which)
    on: set[int] = set()
    code: dict[str, Any] = {"seeded_fault": on.__contains__}
    exec(compile(tree, "a.py", "exec"), code)
    said = {}
    for numbers in ((), (0,), (1,), (0, 1)):
        on.clear()
        on.update(numbers)
        said[numbers] = [code["f"](x) for x in (0, 9, 10)]
    assert said == {
        (): [False, False, False],
        (0,): [True, True, True],
        (1,): [False, True, False],
        (0, 1): [True, True, True],
    }


def test_only_code_inside_functions_is_changed() -> None:
    source = """
LIMIT = 1 + 1
if LIMIT > 2:
    raise ValueError
@decorated(1)
def f(x: Literal[1] = 1) -> Literal[1]:
    'text'
    y: Literal[1]
    match x:
        case 1: pass
    f'{x + 1}'
    def inner(z=1 + x): return z
class C:
    size = 1
    async def g(self): return await f(2)
"""
    assert [text.strip().splitlines()[-1] for _, text in changed(source)] == ["        return await f(3)"]


def test_a_seed_draws_the_same_faults() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "launcher/script").glob("*.py"))
    }
    first = seeded_faults.draw(sources, seed=2026, count=12)
    again = seeded_faults.draw(dict(reversed(sources.items())), seed=2026, count=12)
    other = seeded_faults.draw(sources, seed=2027, count=12)
    assert first == again != other
    assert list(first) == list(range(1, 13))
    assert len({(fault.path, fault.line) for fault in first.values()}) == 12
    assert [fault.kind for fault in first.values()] == [*KINDS, *KINDS]


MOVED = {
    "the same function, later": ({"a.py": "\n\ndef f(x):\n    y = 1\n    return x < 2\n"}, ("a.py", "f", 5)),
    "the second of two": ({"a.py": "def f(x):\n    return x < 2\n    return x < 2\n"}, ("a.py", "f", 3)),
    "a method elsewhere": ({"b.py": "class C:\n    def f(x):\n        return x < 2\n"}, ("b.py", "C.f", 3)),
    "the only line with its text": ({"b.py": "def g(x):\n    return x < 2\n"}, ("b.py", "g", 2)),
    "gone, one of two lines": ({"b.py": "def g(x):\n    return x < 2\ndef h(x):\n    return x < 2\n"}, None),
    "gone, another line": ({"a.py": "def f(x):\n    return x < 3\n"}, None),
}


@pytest.mark.parametrize(("sources", "place"), MOVED.values(), ids=MOVED)
def test_a_fault_is_found_again_by_the_text_of_its_line(sources: dict[str, str], place: Any) -> None:
    [fault] = seeded_faults.draw({"a.py": "def f(x):\n    return x < 2\n"}, seed=1, count=1).values()
    fault = dataclasses.replace(fault, nth=1)
    equal = [
        pair
        for path, source in sources.items()
        for pair in seeded_faults.sites(path, source, ast.parse(source))
        if pair[0].change == fault.change
    ]
    found = seeded_faults.located(fault, equal)
    assert (found and (found[0].path, found[0].function, found[0].line)) == place


def project(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


IMPORTS = {
    "the module": ("import launcher.jobs.run\n", True),
    "a name of it": ("    from launcher.jobs.run import (\n", True),
    "of its package": ("from launcher.jobs import plan, run\n", True),
    "of its package, on several lines": ("from launcher.jobs import (\n    plan,\n    run,\n)\n", True),
    "another of its package": ("from launcher.jobs import running, plan\nrun = 1\n", False),
    "another, on several lines": ("from launcher.jobs import (\n    plan,\n)\nrun\n", False),
    "one below": ("import launcher.jobs.run.away\n", False),
}


@pytest.mark.parametrize(("text", "is_imported"), IMPORTS.values(), ids=IMPORTS)
def test_a_file_imports_a_module(text: str, *, is_imported: bool) -> None:
    assert seeded_faults.imports(text, "launcher/jobs/run.py") is is_imported
    assert seeded_faults.imports(text, "launcher/jobs/run/__init__.py") is is_imported


def test_files_closest_to_a_module_come_first(tmp_path: Path) -> None:
    files = {
        "tests/launcher/jobs/test_the_run.py": "",
        "tests/analysis/test_run.py": "import launcher.jobs.run\n",
        "tests/launcher/jobs/test_all.py": "",
        "tests/analysis/test_a.py": "",
    }
    project(tmp_path, files)
    assert seeded_faults.closest_first(tmp_path, "launcher/jobs/run.py", sorted(files)) == list(files)


def test_the_closest_files_run_more_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {f"{file}::{test}": s for file in ("a", "b", "c") for test, s in (("x", 1.0), ("y", 0.5), ("z", 0.7))}
    monkeypatch.setattr(seeded_faults, "CLOSEST_FILES", 1)
    monkeypatch.setattr(seeded_faults, "CLOSEST_TESTS", 2)
    assert seeded_faults.chosen(["b", "a", "c"], times, 9, 3) == ["b::y", "b::z", "a::y", "c::y", "a::z"]
    assert seeded_faults.chosen(["b", "a", "c"], times, 3, 3) == ["b::y", "b::z", "a::y"]
    assert seeded_faults.chosen(["a"], {"a::x": 60.0}) == ["a::x"]


def test_the_table_says_which_files_can_go() -> None:
    sources = {"a/b.py": "def f():\n    x = 1 < 2 or 3\n"}
    [fault] = seeded_faults.draw(sources, seed=1, count=1).values()
    row = {**dataclasses.asdict(fault), "result": "found", "tried": ["a.py", "d.py"]}
    rows = [
        {**row, "number": 1, "tests": ["a.py::x", "a.py::y", "b.py::x"]},
        {**row, "number": 2, "tests": ["b.py::x", "c.py::x"]},
        {**row, "number": 3, "tests": ["d.py::x"], "kind": CONSTANT, "before": "x|y"},
        {**row, "number": 4, "tests": [], "result": "not found"},
    ]
    said = list(seeded_faults.table(rows, {"a.py": 30, "b.py": 20, "c.py": 10, "d.py": 5, "e.py": 1}))
    assert said[:6] == [
        "| kind | found | not found | not reached | gone |",
        "|---|---|---|---|---|",
        "| comparison turned | 2 | 1 | 0 | 0 |",
        "| constant changed | 1 | 0 | 0 | 0 |",
        "| all | 3 | 1 | 0 | 0 |",
        "",
    ]
    assert "| a | 3 | 1 | 0 | 0 |" in said
    assert said[said.index("| file | lines | faults tried | found, as by others |") - 4 :] == [
        "Test files without a fault of their own: 4 with 61 lines. Those marked * were",
        "tried on at least 4 faults, and without them the others find all:",
        "1 files with 30 lines.",
        "",
        "| file | lines | faults tried | found, as by others |",
        "|---|---|---|---|",
        "| a.py * | 30 | 4 | 1 |",
        "| b.py | 20 | 0 | 2 |",
        "| c.py | 10 | 0 | 1 |",
        "| e.py | 1 | 0 | 0 |",
        "",
        "| fault that one file finds | file |",
        "|---|---|",
        "| 3 a/b.py:2 constant changed: `x\\|y` → `1 <= 2` | d.py |",
        "",
        "| fault that no test finds | |",
        "|---|---|",
        "| 4 a/b.py:2 comparison turned: `1 < 2` → `1 <= 2` | not found |",
    ]


@pytest.mark.world
@pytest.mark.slow
def test_a_fault_is_found_beside_a_test_that_fails_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commit moves the lines of faults and rewrites that of another."""
    code = "def f(x):\n    return x < y\n\n\ndef g():\n    global y\n    y = z\ndef h():\n    return True\n"
    code += "def i(x):\n    return x + x\nz = 0.5\ng()\n"
    tests = (
        "import pytest\nfrom launcher import sizes\n\n"
        "@pytest.mark.slow\ndef test_a(): assert not sizes.f(0.5)\n"
        "def test_b(): assert False\n"
        "def test_c(): assert not sizes.f(0.5)\n"
    )
    in_child = (
        "import subprocess, sys\nimport launcher.values\n\n"
        "def test_child():\n"
        "    code = 'from launcher import sizes; assert not sizes.f(sizes.y)'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True, env={})\n"
    )
    tests += "@pytest.mark.parametrize('size', [sizes.y])\ndef test_d(size): assert size == 0.5\n"
    root = project(
        tmp_path / "checkout",
        {
            **{f"{name}/__init__.py": "" for name in seeded_faults.PACKAGES},
            ".gitignore": ".venv\n__pycache__\n",
            "Makefile": "EVERYDAY := not (slow or night)\n",
            "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['slow', 'night']\n",
            "launcher/values.py": code,
            "tests/launcher/test_child.py": in_child,
            "tests/launcher/test_sizes.py": tests,
        },
    )
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--all", "--message", "text"]
    for words in (["init", "--quiet"], ["add", "."], commit):
        seeded_faults.git(*words, cwd=root)
    (root / "launcher/values.py").write_text("LIMIT = 1\n\n\n" + code.replace("True", "1 == 1"))
    seeded_faults.git(*commit, cwd=root)
    monkeypatch.setattr(seeded_faults, "ROOT", root)
    rows = tmp_path / "rows.jsonl"
    words = ["--drawn-from", "HEAD~1", "--count", "4", "map", "--json", str(rows)]
    monkeypatch.setattr(seeded_faults, "KINDS", (COMPARISON, CONSTANT, LEFT_OUT, ARITHMETIC))
    seeded_faults.main(words)
    said = [json.loads(line) for line in rows.read_text().splitlines()]
    tests = [f"tests/launcher/test_{name}" for name in ("child.py::test_child", "sizes.py::test_c")]
    assert {row["kind"]: (row["result"], row["tests"]) for row in said} == {
        COMPARISON: ("found", tests),
        CONSTANT: ("gone", []),
        LEFT_OUT: ("found", [tests[0], "tests/launcher/test_sizes.py"]),
        ARITHMETIC: ("not reached", []),
    }
    seeded_faults.main(words)
    assert len(rows.read_text().splitlines()) == 4

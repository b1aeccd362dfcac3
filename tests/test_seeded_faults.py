"""Tests of benchmarks/seeded_faults.py: the faults that it draws, where they are later, the tests that it runs."""

import ast
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import seeded_faults
from benchmarks.seeded_faults import ARITHMETIC, BOOLEAN, COMPARISON, CONSTANT, KINDS, LEFT_OUT, SWALLOWED

ROOT = Path(__file__).parents[1]
# The body of a function without arguments, and its faults of one kind.
BODIES = {
    "comparison, each end": (COMPARISON, "x = 1 < y <= z", ["x = 1 <= y <= z", "x = 1 < y < z"]),
    "comparison, words": (COMPARISON, "x = y not in z", ["x = y in z"]),
    "constant, number": (CONSTANT, "f(1, 0.5, 0.0)", ["f(2, 0.5, 0.0)", "f(1, 1.0, 0.0)", "f(1, 0.5, 1.0)"]),
    "constant, truth": (CONSTANT, "x = True", ["x = False"]),
    "constant, not text or None": (CONSTANT, "x = ('1', None, b'1', ...)", []),
    "call": (LEFT_OUT, "f(x)", ["pass"]),
    "assignments": (LEFT_OUT, "x |= 1; y: int = 2", ["pass; y: int = 2", "x |= 1; pass"]),
    "not a docstring, a declaration or a return": (LEFT_OUT, "'text'; x: int; return x", []),
    "exception": (SWALLOWED, "raise ValueError(x) from None", ["pass"]),
    "boolean": (
        BOOLEAN,
        "x = a and b or not c",
        ["x = (a and b) and not c", "x = (a or b) or not c", "x = a and b or c"],
    ),
    "arithmetic": (ARITHMETIC, "x = a + b - c", ["x = a + b + c", "x = a - b - c"]),
    "arithmetic, read as before": (ARITHMETIC, "x = a / b ** c", ["x = a * b ** c", "x = a / (b * c)"]),
    "arithmetic, in place and not of sets": (ARITHMETIC, "x *= 2; y = a | b", ["x /= 2; y = a | b"]),
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
    "the second of two, later": ({"a.py": "\ndef f(x):\n    return x < 2\n    return x < 2\n"}, ("a.py", "f", 4)),
    "a method elsewhere": ({"b.py": "class C:\n    def f(x):\n        return x < 2\n"}, ("b.py", "C.f", 3)),
    "the only line with its text": ({"b.py": "def g(x):\n    return x < 2\n"}, ("b.py", "g", 2)),
    "gone, one of two lines": ({"b.py": "def g(x):\n    return x < 2\ndef h(x):\n    return x < 2\n"}, None),
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


def test_the_closest_files_run_more_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {f"{file}::{test}": s for file in ("a", "b", "c") for test, s in (("x", 1.0), ("y", 0.5), ("z", 0.7))}
    monkeypatch.setattr(seeded_faults, "CLOSEST_FILES", 1)
    monkeypatch.setattr(seeded_faults, "CLOSEST_TESTS", 2)
    assert seeded_faults.chosen(["b", "a", "c"], times, 9, 3) == ["b::y", "b::z", "a::y", "c::y", "a::z"]
    assert seeded_faults.chosen(["b", "a", "c"], times, 3, 3) == ["b::y", "b::z", "a::y"]
    assert seeded_faults.chosen(["a"], {"a::x": 60.0}) == ["a::x"]


def test_the_table_says_which_files_can_go(golden: Callable[[str, str], None]) -> None:
    sources = {"a/b.py": "def f():\n    x = 1 < 2 or 3\n"}
    [fault] = seeded_faults.draw(sources, seed=1, count=1).values()
    row = {**dataclasses.asdict(fault), "result": "found", "tried": ["a.py", "d.py"]}
    rows = [
        {**row, "number": 1, "tests": ["a.py::x", "a.py::y", "b.py::x"]},
        {**row, "number": 2, "tests": ["b.py::x", "c.py::x"]},
        {**row, "number": 3, "tests": ["d.py::x"], "kind": CONSTANT, "before": "x|y"},
        {**row, "number": 4, "tests": [], "result": "not found"},
    ]
    said = seeded_faults.table(rows, {"a.py": 30, "b.py": 20, "c.py": 10, "d.py": 5, "e.py": 1})
    golden("table_of_faults.md", "\n".join(said) + "\n")


@pytest.mark.world
@pytest.mark.slow
def test_a_fault_is_found_beside_a_test_that_fails_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commit moves the lines of faults and rewrites that of another."""
    code = "def f(x):\n    return x < y\n\n\ndef g():\n    global y\n    y = z\ndef h():\n    return True\n"
    code += "def i(x):\n    return x + x\nz = 0.5\ng()\n"
    tests = (
        "import pytest\nfrom launcher import values\n\n"
        "@pytest.mark.slow\ndef test_a(): assert not values.f(0.5)\n"
        "def test_b(): assert False\n"
        "def test_c(): assert not values.f(0.5)\n"
    )
    in_child = (
        "import subprocess, sys\nimport launcher.values\n\n"
        "def test_child():\n"
        "    code = 'from launcher import values; assert not values.f(values.y)'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True, env={})\n"
    )
    tests += "@pytest.mark.parametrize('size', [values.y])\ndef test_d(size): assert size == 0.5\n"
    root = project(
        tmp_path / "checkout",
        {
            **{f"{name}/__init__.py": "" for name in seeded_faults.PACKAGES},
            ".gitignore": ".venv\n__pycache__\n",
            "Makefile": "EVERYDAY := not (slow or night)\n",
            "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['slow', 'night']\n",
            "launcher/values.py": code,
            "tests/launcher/test_child.py": in_child,
            "tests/launcher/test_values.py": tests,
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
    tests = [f"tests/launcher/test_{name}" for name in ("child.py::test_child", "values.py::test_c")]
    assert {row["kind"]: (row["result"], row["tests"]) for row in said} == {
        COMPARISON: ("found", tests),
        CONSTANT: ("gone", []),
        LEFT_OUT: ("found", [tests[0], "tests/launcher/test_values.py"]),
        ARITHMETIC: ("not reached", []),
    }
    seeded_faults.main(words)
    assert len(rows.read_text().splitlines()) == 4

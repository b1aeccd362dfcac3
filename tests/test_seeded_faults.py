"""Tests of benchmarks/seeded_faults.py: the faults that it draws, the changed files, the tests that it runs."""

import ast
import json
from pathlib import Path

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
    tree = ast.parse(source)
    return [
        (kind, seeded_faults.with_fault(source, tree, place, new))
        for place in seeded_faults.places(tree)
        for kind, new in seeded_faults.faults_of(place.node)
    ]


@pytest.mark.parametrize(("kind", "body", "faulty"), BODIES.values(), ids=BODIES)
def test_a_fault_changes_one_node(kind: str, body: str, faulty: list[str]) -> None:
    texts = [text for found, text in changed(f"def f():\n    {body}  # why\n") if found == kind]
    assert texts == [f"def f():\n    {one}  # why\n" for one in faulty]


def test_a_fault_leaves_other_lines_and_parentheses() -> None:
    source = 'def f(x):\n    y = "ä", (\n        x\n        or 1\n    )\n    return y\n'
    assert [text for kind, text in changed(source) if kind == BOOLEAN] == [source.replace("x\n        or 1", "x and 1")]


def test_only_code_inside_functions_is_changed() -> None:
    source = """
LIMIT = 1 + 1
if LIMIT > 2:
    raise ValueError
@decorated(1)
def f(x: Literal[1] = 1) -> Literal[1]:
    'text'
    y: Literal[1]
    f'{x + 1}'
    def inner(z=1 + x): return z
class C:
    size = 1
    async def g(self): return await f(2)
"""
    assert [text.strip().splitlines()[-1] for _, text in changed(source)] == [
        "    async def g(self): return await f(3)"
    ]


def test_a_seed_draws_the_same_faults() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "launcher/script").glob("*.py"))
    }
    first = seeded_faults.draw(sources, seed=2026, count=12)
    again = seeded_faults.draw(dict(reversed(sources.items())), seed=2026, count=12)
    other = seeded_faults.draw(sources, seed=2027, count=12)
    assert first == again != other
    assert [fault.number for fault in first] == list(range(1, 13))
    assert len({(fault.path, fault.line) for fault in first}) == 12
    assert sorted(fault.kind for fault in first) == sorted(KINDS * 2)
    assert all(fault.original == sources[fault.path] != fault.faulty for fault in first)


def project(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_room_has_the_closest_tests_first(tmp_path: Path) -> None:
    root = project(
        tmp_path / "checkout",
        {
            "launcher/jobs/run.py": "",
            "launcher/jobs/plan.py": "def f():\n    from launcher.jobs import run\n",
            "launcher/run_table.py": "from launcher.jobs.plan import f\n",
            "tests/helper.py": "import launcher.jobs.run\n",
            "tests/launcher/test_run_table.py": "from tests.rows import f\n",
            "tests/launcher/test_jobs_all.py": "",
            "tests/launcher/test_other.py": "import launcher.jobs.plan\n",
            "tests/rows.py": "import launcher.run_table\n",
            "tests/analysis/test_runs.py": "import launcher.jobs.run\n",
            "tests/launcher/jobs/test_a.py": "",
            "tests/launcher/jobs/test_b.py": "import launcher.jobs.plan\n",
            "tests/launcher/jobs/test_c.py": "from launcher.jobs.run import f\n",
            "tests/launcher/jobs/test_d_run.py": "from tests.helper import f\n",
        },
    )
    assert seeded_faults.room(root, "launcher/jobs/run.py") == [
        "tests/launcher/jobs/test_d_run.py",
        "tests/analysis/test_runs.py",
        "tests/launcher/jobs/test_c.py",
        "tests/launcher/jobs/test_b.py",
        "tests/launcher/jobs/test_a.py",
        "tests/launcher/test_jobs_all.py",
    ]
    assert seeded_faults.room(root, "launcher/run_table.py") == ["tests/launcher/test_run_table.py"]


PRINTED = {
    "a failure": ("tests/a.py::test_a PASSED [ 1%]\ntests/a.py::test_b[x y] FAILED [ 2%]\n", "tests/a.py::test_b[x y]"),
    "a fixture": ("tests/a.py::test_a ERROR    [ 50%]\n", "tests/a.py::test_a"),
    "an import": ("collected 0 items / 1 error\nERROR tests/a.py - ImportError\n", "tests/a.py"),
    "killed": ("tests/a.py::test_a PASSED [ 1%]\ntests/a.py::test_b[x y] ", "tests/a.py::test_b[x y]"),
    "before any": ("ImportError while loading conftest\n", ""),
}


@pytest.mark.parametrize(("text", "test"), PRINTED.values(), ids=PRINTED)
def test_the_first_failure_is_named(text: str, test: str) -> None:
    assert seeded_faults.first_failure(text) == test


def test_the_table_counts_what_a_part_of_a_set_finds(tmp_path: Path) -> None:
    found = {"result": "found", "seconds": 1.4, "test": "a.py::test_a[x|y]"}
    rows = [
        {"set": "today", "fault": 1, **found},
        {"set": "everyday", "fault": 1, "result": "not found", "seconds": 1.0, "test": ""},
        {"set": "everyday", "fault": 1, **found, "seconds": 7.0},
        {"set": "everyday", "fault": 2, "result": "failed anyway", "seconds": 8.0, "test": "tests/a.py::test_b"},
        {"set": "ci", "fault": 2, "result": "found by timeout", "seconds": 9.0, "test": "tests/a.py::test_c"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    faults = seeded_faults.draw({"b.py": "def f():\n    x = 1 < 2\n    return 3\n"}, seed=1, count=2)
    seven, one, two = "found, 7 s", "`a.py::test_a[x\\|y]`", "`tests/a.py::test_c`"
    assert list(seeded_faults.table([path], faults)) == [
        "| | fault | change | today | everyday | ci | first failing test |",
        "|---|---|---|---|---|---|---|",
        f"| 1 | b.py:2 comparison turned | `1 < 2` → `1 <= 2` | found, 1 s | {seven} | {seven} (everyday) | {one} |",
        f"| 2 | b.py:3 constant changed | `3` → `4` |  | failed anyway, 8 s | found by timeout, 9 s | {two} |",
        "| | of 2 | | 1 found | 1 found | 2 found | |",
    ]


def test_numbers_are_typed_as_ranges() -> None:
    assert seeded_faults.numbers("1-3,7") == {1, 2, 3, 7}


@pytest.mark.world
@pytest.mark.slow
def test_a_fault_is_found_beside_a_test_that_fails_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commit moves the line of one fault and rewrites that of another."""
    code = "def f(x):\n    return x < 0.5\n\n\ndef g():\n    pass\n\n\ndef h():\n    return True\n"
    tests = (
        "import pytest\nfrom launcher import sizes\n\n"
        "@pytest.mark.slow\ndef test_a(): assert not sizes.f(0.5)\n"
        "def test_b(): assert False\n"
        "def test_c(): assert not sizes.f(0.5)\n"
    )
    root = project(
        tmp_path / "checkout",
        {
            **{f"{name}/__init__.py": "" for name in seeded_faults.PACKAGES},
            ".gitignore": ".venv\n__pycache__\n",
            "Makefile": "EVERYDAY := not (slow or night)\n",
            "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['slow', 'night']\n",
            "launcher/sizes.py": code,
            "tests/test_imports.py": "import launcher, workload, analysis\ndef test_imports(): pass\n",
            "tests/launcher/test_sizes.py": tests,
        },
    )
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--all", "--message", "text"]
    for words in (["init", "--quiet"], ["add", "."], commit):
        seeded_faults.git(*words, cwd=root)
    (root / "launcher/sizes.py").write_text("LIMIT = 1\n\n\n" + code.replace("True", "1 == 1"))
    seeded_faults.git(*commit, cwd=root)
    monkeypatch.setattr(seeded_faults, "ROOT", root)
    rows = tmp_path / "rows.jsonl"
    words = ["--drawn-from", "HEAD~1", "--count", "2", "run", "--set", "everyday", "--json", str(rows)]
    monkeypatch.setattr(seeded_faults, "KINDS", (COMPARISON, CONSTANT))
    seeded_faults.main(words)
    said = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["fault"], row["result"], row["test"]) for row in said] == [
        (1, "found", "tests/launcher/test_sizes.py::test_c"),
        (2, "does not apply", ""),
    ]
    seeded_faults.main(words)
    assert len(rows.read_text().splitlines()) == 2

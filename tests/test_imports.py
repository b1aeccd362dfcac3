"""What a door may load, and which modules may cross from one package to another."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The run's description and the bundle's format belong to the one who writes them, and so does the way of bundles to a
# bucket and home; the rest is what both doors share. Facts about a container's host can be read by its launcher alone.
CROSSING = {
    "workload.spec",
    "workload.bundle",
    "workload.errors",
    "workload.interrupt",
    "workload.invocation",
    "workload.program",
    "workload.tables",
    "workload.text",
    "workload.environment.machine",
    "workload.environment.outside",
    "workload.storage.bucket",
    "workload.storage.fetch",
    "workload.storage.upload",
}
# The libraries of the border to Cloud Storage, which its functions import when they are called.
BORDER = {"google", "google_crc32c", "requests", "urllib3"}
# Of the two doors that are programs of typer.
DOOR = {"typer"}

LAUNCH_BANS = {"torch", "torchvision", "pandas", "numpy", "docker", "google", "rich"}


def launch(*words: str) -> str:
    return f"import sys; sys.argv = {['launch', *words]}; from launcher.__main__ import main; main()"


@pytest.mark.world
@pytest.mark.parametrize(
    ("code", "banned"),
    [
        (launch("--help"), LAUNCH_BANS),
        (launch("local", "--dry-run", "--runtime", "process"), LAUNCH_BANS),
        (launch("gcp", "--gpu", "t4", "--project", "my-project", "--dry-run"), LAUNCH_BANS),
        # Without an engine, auto is as light.
        (
            f"from launcher import engine; engine.socket_exists = lambda: False; {launch('local', '--dry-run')}",
            LAUNCH_BANS,
        ),
        (
            "from workload.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            {"torch", "torchvision", "numpy", "typer", "docker"},
        ),
        ("import workload.train", {"pandas", "docker", "google", "typer", "fvcore", "launcher", "analysis"}),
    ],
)
def test_doors_stay_light(code: str, banned: set[str]) -> None:
    show = "import sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "workload" in loaded
    assert not loaded & banned


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def crossings(package: str, others: set[str]) -> set[str]:
    return {
        name for path in (ROOT / package).rglob("*.py") for name in imports_of(path) if name.partition(".")[0] in others
    }


def test_only_the_shared_modules_cross() -> None:
    used = crossings("launcher", {"workload", "analysis"}) | crossings("analysis", {"workload", "launcher"})
    assert used, "the launcher reads bundles"
    used.discard("workload.__version__")
    assert {name for name in used if not any(name == ok or name.startswith(f"{ok}.") for ok in CROSSING)} == set()
    assert crossings("workload", {"launcher", "analysis"}) == set()


def reached_from(module: str) -> set[str]:
    """Every module of `workload` that importing `module` loads, with itself."""
    reached, waiting = set[str](), {module}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        found = imports_of(file_of(name))
        parents = {each.rpartition(".")[0] for each in found}
        waiting |= {each for each in found | parents if each.startswith("workload.") and is_module(each)} - reached
    return reached


def file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_module(name: str) -> bool:
    return file_of(name).is_file()


@pytest.mark.world
@pytest.mark.parametrize("module", sorted(CROSSING))
def test_crossing_modules_are_standard_library_only(module: str) -> None:
    found = {name.partition(".")[0] for each in reached_from(module) for name in imports_of(file_of(each))}
    allowed = BORDER if module.startswith("workload.storage.") else DOOR if module == "workload.program" else set()
    assert found - sys.stdlib_module_names - {"workload", "_typeshed"} - allowed == set()
    loading = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stdout.split()) & BORDER

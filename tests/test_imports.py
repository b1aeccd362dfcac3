"""Libraries that a program may load, and modules that the packages may import from each other."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import sources
from tests.sources import imported

ROOT = Path(__file__).parents[1]
# What all three packages share has one home; besides it only the way of bundles to a store and home, and facts about a
# container's host, which its launcher alone can read.
CROSSING = {
    *(f"workload.contract.{path.stem}" for path in (ROOT / "workload/contract").glob("[!_]*.py")),
    *(f"workload.stats.{path.stem}" for path in (ROOT / "workload/stats").glob("[!_]*.py")),
    "workload.run.unfinished",
    "workload.environment.cloud",
    "workload.environment.gpu_index",
    "workload.environment.machine",
    "workload.storage.address",
    "workload.storage.buckets",
    "workload.storage.folder",
    "workload.storage.gcs",
    "workload.storage.fetch",
    "workload.storage.inventory",
    "workload.storage.s3",
    "workload.storage.s3_errors",
    "workload.storage.ssh",
    "workload.storage.store",
}
# The libraries of the borders to Cloud Storage and S3, which their functions import when they are called.
BORDER = {"google", "google_crc32c", "requests", "urllib3", "boto3", "botocore"}
# Used where it is installed.
OPTIONAL = {"google_crc32c"}
# Library of the programs `launch` and `analyze`.
COMMAND_LINE = {"typer"}
# Libraries of statistics, which `launch` and `analyze` have and the trainer and rented machines may lack.
NUMERIC = {"numpy", "scipy"}

CLOUDS = {"google", "boto3", "botocore", "s3transfer", "moto"}
LAUNCH_BANS = {"torch", "torchvision", "pandas", *NUMERIC, "docker", "requests", "rich", *CLOUDS}


def loaded(code: str, **variables: str) -> set[str]:
    """Modules that a process has loaded after `code`; `variables`: added to its environment."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print('LOADED', *sys.modules)"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return set(done.stdout.rpartition("LOADED")[2].split())


def libraries_of(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def launch(*words: str) -> str:
    return f"import sys; sys.argv = {['launch', *words]}; from launcher.__main__ import main; main()"


def analyze(*words: str) -> str:
    return f"import sys; sys.argv = {['analyze', *words]}; from analysis.__main__ import main; main()"


@pytest.mark.world
@pytest.mark.parametrize(
    ("code", "banned"),
    [
        (launch("--help"), LAUNCH_BANS),
        (analyze("--help"), {"torch", "torchvision", "pandas", *NUMERIC, *CLOUDS}),
        (analyze("fetch", "--help"), {"torch", "torchvision", "pandas", *NUMERIC, *CLOUDS}),
        (analyze("export", "--help"), {"pandas", "mlflow", "wandb", "tensorboard", *NUMERIC, *CLOUDS}),
        (launch("local", "--dry-run", "--runtime", "process"), LAUNCH_BANS),
        (launch("gcp", "--gpu", "t4", "--project", "my-project", "--dry-run"), LAUNCH_BANS),
        (launch("aws", "--gpu", "t4", "--dry-run", "--request"), LAUNCH_BANS),
        # Without an engine, auto is as light.
        (
            f"import launcher.docker_engine as e; e.socket_exists = lambda: False; {launch('local', '--dry-run')}",
            LAUNCH_BANS,
        ),
        (
            "from workload.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            {"torch", "torchvision", "numpy", "typer", "docker"},
        ),
        # These facts are collected while torch is imported.
        ("import workload.environment.collect", {"torch", "torchvision", "numpy", "typer", "docker"}),
        # The process that starts a profile holds no GPU.
        ("import workload.profile.profile_bundle", {"torch", "numpy"}),
        pytest.param(
            "import workload.run.train",
            {"pandas", "docker", "google", "typer", "fvcore", "launcher", "analysis"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import benchmarks.gpu_truth.collect, benchmarks.gpu_truth.probes",
            {"pandas", "docker", "google", "typer", "fvcore", "launcher", "analysis", "pytest"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_programs_load_little(code: str, banned: set[str]) -> None:
    libraries = libraries_of(loaded(code))
    assert "workload" in libraries
    assert not libraries & banned


# What declares options may be loaded for a help text, and nothing that a command is made of.
DECLARING = {
    *("launcher", "launcher.__main__", "launcher.typer_options", "launcher.values"),
    *("launcher.cli", "launcher.cli.app", "launcher.cli.launches", "launcher.cli.sweep", "launcher.cli.tune"),
    *("launcher.backends", "launcher.backends.gcp"),
    *("launcher.backends.gcp.options", "launcher.backends.rented_options", "launcher.jobs", "launcher.jobs.places"),
    *("launcher.backends.ssh", "launcher.backends.ssh.options"),
    *("launcher.backends.batch", "launcher.backends.batch.options"),
    *("launcher.backends.slurm", "launcher.backends.slurm.options"),
    *("launcher.backends.aws", "launcher.backends.aws.options"),
    *("launcher.duel", "launcher.script", "launcher.script.options"),
    *("workload", "workload.contract"),
    *(
        f"workload.contract.{name}"
        for name in (
            "changes",
            "errors",
            "invocation",
            "process",
            "program",
            "script_words",
            "spec",
            "vocabulary",
        )
    ),
    "workload.contract.operating_system",
    *("workload.contract.tables", "workload.contract.text"),
}


def modules_of_ours(code: str, **variables: str) -> set[str]:
    modules = loaded(code, **variables)
    assert not libraries_of(modules) & LAUNCH_BANS
    return {name for name in modules if name.partition(".")[0] in ("launcher", "workload", "analysis")}


@pytest.mark.world
@pytest.mark.parametrize("words", [("--help",), (), ("gcp", "--help"), ("local", "-h"), ("--version",), ("nonsense",)])
def test_help_loads_no_backend_engine_or_image(words: tuple[str, ...]) -> None:
    assert modules_of_ours(launch(*words)) - DECLARING == set()


GPUS = {
    "launcher.backends.gcp.gpus",
    "launcher.backends.shared_plan",
    "launcher.protocol",
    "launcher.protocol.records",
    "workload.contract.prices",
}


@pytest.mark.world
@pytest.mark.parametrize(
    ("typed", "offered", "also"),
    [
        ("launch gcp --precision ", "bf16", set()),
        ("launch bu", "build", set()),
        ("launch gcp --gpu ", "v100", GPUS),
        ("launch gcp --gpu v100 --zone us-e", "us-east1-b", GPUS),
    ],
)
def test_completion_works_and_is_as_light(typed: str, offered: str, also: set[str]) -> None:
    code = (
        "import sys, io\nsys.argv = ['launch']\nfrom launcher.__main__ import main\n"
        "out, sys.stdout = sys.stdout, io.StringIO()\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        f"said, sys.stdout = sys.stdout.getvalue(), out\nassert {offered!r} in said.split(), said"
    )
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_LAUNCH_COMPLETE": "complete_bash"}
    assert modules_of_ours(code, **words) - DECLARING - also == set()


def crossings(package: str, others: set[str]) -> set[str]:
    return {
        name for path in (ROOT / package).rglob("*.py") for name in imported(path) if name.partition(".")[0] in others
    }


def test_only_the_shared_modules_cross() -> None:
    used = crossings("launcher", {"workload", "analysis"}) | crossings("analysis", {"workload", "launcher"})
    assert used, "the launcher reads bundles"
    used.discard("workload.__version__")
    assert {name for name in used if not any(name == ok or name.startswith(f"{ok}.") for ok in CROSSING)} == set()
    assert crossings("workload", {"launcher", "analysis"}) == set()


@cache
def files() -> dict[str, Path]:
    """Files of the packages by module."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources.modules()
    }


@cache
def imports() -> dict[str, set[str]]:
    """Each module of the packages, and those that it imports, wherever the import stands."""
    names = files()
    return {
        name: {each if each in names else each.rpartition(".")[0] for each in imported(path)} & (names.keys() - {name})
        for name, path in names.items()
    }


def rooms(page: str) -> list[list[str]]:
    """Rooms of each package from the top down, as the tables of ARCHITECTURE.md list them."""
    found = []
    for table in re.split(r"^\| `(\w+)/` \| contents \|$", page, flags=re.MULTILINE)[1:]:
        if re.fullmatch(r"\w+", table):
            found.append([table])
        else:
            lines = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
            found[-1] += [name for line in lines for name in re.findall(r"`(\w+)(?:/|\.py)`", line)]
    return found


def test_imports_point_downwards() -> None:
    graph = imports()
    TopologicalSorter(graph).prepare()  # raises if modules import each other
    tables = rooms((ROOT / "ARCHITECTURE.md").read_text())
    assert [package for package, *_ in tables] == ["launcher", "workload", "analysis"]
    for package, *names in tables:
        folders = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
        listed = {name for name in names if not (ROOT / package / f"{name}.py").is_file()}
        assert folders - {"commands"} == listed, "the page lists every folder"
        rank = {f"{package}.{name}": place for place, name in enumerate(names)}
        upwards = [
            f"{module} imports {other}"
            for module, others in graph.items()
            for other in others
            if rank.get(".".join(module.split(".")[:2]), -1) > rank.get(".".join(other.split(".")[:2]), len(rank))
        ]
        assert upwards == []


def reached_from(module: str) -> set[str]:
    """Every module of ours that importing `module` loads, with itself."""
    reached, waiting = set[str](), {module}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        loads = imports()[name] | {name.rpartition(".")[0]}
        waiting |= (loads & files().keys()) - reached
    return reached


@pytest.mark.parametrize("module", sorted(CROSSING))
def test_crossing_modules_are_standard_library_only(module: str) -> None:
    libraries = libraries_of(name for each in reached_from(module) for name in imported(files()[each]))
    allowed = (
        BORDER
        if module.startswith("workload.storage.")
        else COMMAND_LINE
        if module == "workload.contract.program"
        else NUMERIC
        if module.startswith("workload.stats.")
        else set()
    )
    assert libraries - sys.stdlib_module_names - {"workload", "rooflaunch", "_typeshed"} - OPTIONAL - allowed == set()


@pytest.mark.parametrize("module", ["launcher.agent.__main__", "workload.__main__", "workload.run.train"])
def test_trainer_and_rented_machines_need_no_statistics(module: str) -> None:
    assert not {name for name in reached_from(module) if name.startswith("workload.stats")}


@pytest.mark.world
def test_crossing_modules_load_no_library_of_a_cloud() -> None:
    """One process imports all of them."""
    assert not libraries_of(loaded(f"import {', '.join(sorted(CROSSING))}")) & BORDER


def test_no_pattern_is_possessive() -> None:
    """Python 3.11.2, which is Debian 12's, matches possessive quantifiers and atomic groups wrongly."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources.modules()
        if MAYBE_POSSESSIVE.search(sources.text(path))
        for node in ast.walk(sources.tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PATTERNS
        for pattern in node.args[:1]
        if isinstance(pattern, ast.Constant) and MAYBE_POSSESSIVE.search(re.sub(r"\\.", "", str(pattern.value)))
    ]
    assert found == []


MAYBE_POSSESSIVE = re.compile(r"[*+?}]\+|\(\?>")
PATTERNS = {f"re.{name}" for name in ("compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer")}

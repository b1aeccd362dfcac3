"""Only a cloud's own backend and store name its packages, services and hosts; and no backend imports another."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from launcher.backends import BACKENDS
from tests.sources import ROOT, imported, imports_in, modules, text, tree

HOMES = (
    *("launcher/backends/gcp/", "launcher/backends/batch/", "launcher/backends/aws/"),
    *("workload/storage/gcs.py", "workload/storage/s3.py", "workload/storage/s3_errors.py"),
)
# Cloud Batch is a queue for the VMs of Compute Engine: it takes their prices, images and settings from there.
SAME_CLOUD = {"launcher.backends.gcp": "launcher/backends/batch/"}
PACKAGES = re.compile(r"google|google_crc32c|boto3|botocore")
SERVICES = re.compile(
    r"googleapis|google\.com|metadata\.google|\bgcloud\b|gs://|pkg\.dev|gcr\.io|gserviceaccount|Cloud Storage|"
    r"COMPUTE_ENDPOINT|STORAGE_EMULATOR|GCE_METADATA|s3://|AWS_ENDPOINT_URL|\baws s3\b"
)
# What else says a word of a cloud's, and why it may.
EXCEPTIONS = {
    "analysis/commands/fetch.py": "the addresses of stores, in its help",
    "launcher/cli/app.py": "an example of a registry, in the help of launch build",
    "launcher/images/build.py": "an example of a registry, in a hint",
    "workload/contract/operating_system.py": "google-crc32c is a checksum's fast form, for every store",
    "workload/contract/script_words.py": "the address of a script's data, in help and hints",
    "workload/contract/spec.py": "which ROOFLAUNCH_ variables are none of a run's settings",
    "workload/environment/cloud.py": "facts about a host: who its metadata server is",
    "workload/storage/address.py": "the addresses of stores",
}


def docstrings(tree: ast.Module) -> set[int]:
    """Ids of the constants that are docstrings, which may name the source of a fact."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, owners) and node.body)
    return {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}


def words_of_a_cloud(tree: ast.Module) -> Iterator[str]:
    prose = docstrings(tree)
    yield from (name for name in imports_in(tree) if PACKAGES.fullmatch(name.partition(".")[0]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from SERVICES.findall(node.value)


@cache
def naming() -> dict[str, list[str]]:
    """Words of the clouds by file. A file whose text has none is not parsed."""
    found = {
        path.relative_to(ROOT).as_posix(): sorted(set(words_of_a_cloud(tree(path))))
        for path in modules()
        if PACKAGES.search(text(path)) or SERVICES.search(text(path))
    }
    return {name: words for name, words in found.items() if words and not name.startswith(HOMES)}


def test_nothing_outside_its_backend_and_its_store_names_a_cloud() -> None:
    assert {name: words for name, words in naming().items() if name not in EXCEPTIONS} == {}


def test_every_exception_is_one() -> None:
    assert set(EXCEPTIONS) - set(naming()) == set(), "no longer needed"


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=list(BACKENDS))
def test_a_backend_is_known_by_name_alone(backend: str) -> None:
    folder = backend.replace(".", "/") + "/"
    own = (folder, SAME_CLOUD.get(backend, folder))
    importers = {
        name
        for path in modules()
        if not (name := path.relative_to(ROOT).as_posix()).startswith(own)
        and backend.rpartition(".")[2] in text(path)
        and any(module.startswith(f"{backend}.") for module in imported(path))
    }
    assert importers == set()


def test_the_search_finds_what_it_looks_for() -> None:
    tree = ast.parse('"""gs://"""\nimport google.auth\nx = "https://compute.googleapis.com"')
    assert list(words_of_a_cloud(tree)) == ["google.auth", "googleapis"]

"""docs/errors.md has every error that the code can make."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from docs import errors
from tests import sources

pytestmark = pytest.mark.slow  # seconds, to read all sources
# Places in the code whose message is made by another program or error, so that the page knows only what is around it.
RELAYED = {
    "launcher/backends/aws/gpus.py": "reasons in gpus.toml",
    "launcher/backends/aws/refusals.py": "an answer of AWS",
    "launcher/backends/gcp/refusals.py": "an answer of Compute Engine",
    "launcher/backends/gcp/services.py": "an answer of Google Cloud",
    "launcher/backends/vm_container.py": "an error of docker",
    "launcher/jobs/commands.py": "the error of a place",
    "launcher/sweep/matrix.py": "a place that is not filled in",
    "launcher/sweep/script.py": "the error of a place",
    "analysis/importing/log.py": "the error of a row",
    "workload/arguments.py": "a message of argparse",
    "workload/contract/prices.py": "contradictions in prices.toml",
    "workload/contract/program.py": "a message of typer",
    "workload/contract/record.py": "rules of fields",
    "workload/contract/spec.py": "the error of an option",
    "workload/profile/ncu_pass.py": "the error of a pass",
    "workload/profile/profile_bundle.py": "the error of a pass",
    "workload/run/ranks.py": "the error of a rank",
}


@cache
def made() -> errors.Errors:
    return errors.Errors()


@cache
def entries() -> frozenset[errors.Entry]:
    return frozenset(made().entries())


def test_the_page_is_that_of_the_code() -> None:
    """New messages are named where they are made, other changes by the first line that differs."""
    text = errors.TARGET.read_text(encoding="utf-8")
    named = {entry for entry in entries() if errors.has_words(entry)}
    absent = sorted(f"{entry.at}: {entry.message}" for entry in named if entry.message.replace("|", "\\|") not in text)
    assert not absent, "run python -m docs.errors:\n" + "\n".join(absent)
    written = text.splitlines()
    expected = errors.page(entries()).splitlines()
    for number, (line, wanted) in enumerate(zip(written, expected, strict=False), start=1):
        assert line == wanted, f"docs/errors.md:{number}: run python -m docs.errors"
    assert len(written) == len(expected), "docs/errors.md: run python -m docs.errors"


def test_every_place_that_makes_an_error_is_on_the_page_with_its_words() -> None:
    told = {entry.at for entry in entries() if errors.has_words(entry)}
    silent = {f"{site.scope.module.name}:{site.node.lineno}" for site, _ in made().sites()} - told
    unexpected = {place for place in silent if place.partition(":")[0] not in RELAYED}
    assert not unexpected, "no words of these messages are known: see docs/source_texts.py"
    assert RELAYED.keys() == {place.partition(":")[0] for place in silent}


# Errors that tests expect and the page cannot have: of typer and Google, and made up by a test.
NOT_OURS = (
    "No such command",
    "Missing option",
    "bucket 'bucket': Invalid",
    "the store is away",
    "no image",
    "no ncu",
    "not det",
)


def expected() -> Iterator[tuple[str, str]]:
    """Whole errors that tests expect, and where: path and line."""
    for path in sorted((sources.ROOT / "tests").rglob("*.py")):
        for node in ast.walk(sources.tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for text in re.findall(r"\Aerror: (?:profile \w+: )?(.+)\nhint: .+\n?\Z", node.value):
                    several = re.sub(r"(?<=; )1 (\w+)", r"1 \1s", text)
                    yield f"{path.relative_to(sources.ROOT)}:{node.lineno}", several


def test_errors_that_other_tests_expect_are_on_the_page() -> None:
    messages = {entry.message for entry in entries() if errors.has_words(entry)}
    patterns = [re.compile(".*".join(map(re.escape, re.split("<[^<>]*>", message)))) for message in messages]
    absent = [
        f"{where}: {text}"
        for where, text in expected()
        if not text.startswith(NOT_OURS) and not any(pattern.fullmatch(text) for pattern in patterns)
    ]
    assert not absent, "\n".join(absent)

"""Every line of a console block in README, docs/ and infra/ is run as its reader would run it.

Here against stand-ins for what costs money or needs a cloud. What cannot run is listed below with its reason. Every day
all lines are given to their programs' parsers, CI runs those of README without training, and the campaign `pages` of
`make test-night` runs all of them, which takes minutes.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs import grammar, pages, printed
from tests.docs.pages import Command
from tests.docs.stage import Stage, staged

# Labels of figures that need a measured ceiling: where other work has the CPUs, as other tests have, there is none.
FROM_CEILINGS = ("in theory",)
LIMIT_S = 600  # of a line, on a machine that is busy with other tests
pytestmark = [pytest.mark.world, pytest.mark.timeout(LIMIT_S + 60)]


@dataclass(frozen=True, kw_only=True)
class Instead:
    """Command that runs in place of the lines that match `match`, and the reason. `{0}` in `run`: the line itself.

    `run` None: nothing runs.
    """

    match: str
    run: str | None
    why: str


# Not on the reader's other machine, which the line of `launch ssh` means.
FOR_ENGINE = re.compile(r"^(?!.*me@box).*(launch build|--runtime docker|docker run|launch doctor docker)")
# The first row that matches counts.
INSTEAD = (
    Instead(
        match=r"launch (gcp|slurm) .* -- .*(train|shapes)",
        run=None,
        why="it sends a git repository's files: tests/docker_engine/test_gcp_end_to_end.py does",
    ),
    Instead(match="launch ssh --host .* --host", run=None, why="tests/launcher/backends/ssh/test_ssh_beside.py does"),
    Instead(match=r"sudo apt-get|sudo usermod|ssh-keygen", run=None, why="for the reader's own machine"),
    Instead(match=FOR_ENGINE.pattern, run=None, why="tests/docker_engine/test_pages_for_real.py runs it"),
    Instead(match=r"launch gcp (?!.*--dry-run)", run="{0} --dry-run", why="it costs money"),
    Instead(match=r"launch doctor aws|s3://|--backend aws|docker login", run=None, why="it needs an account of AWS"),
    Instead(match=r"launch aws (?!.*--dry-run)", run="{0} --dry-run", why="it costs money"),
    Instead(match=r"launch batch (?!.*--dry-run)", run="{0} --dry-run", why="it costs money"),
    Instead(match=r"launch (doctor|status|logs|down) .*--region", run=None, why="it needs a project of Google Cloud"),
    Instead(match=r"pip (install|wheel)", run=None, why="for the reader's own machine"),
    Instead(match=r"-m build$|-m pytest tests/test_packaging.py", run=None, why="CI runs tests/test_packaging.py"),
    Instead(match=r"colab|kaggle", run=None, why="it needs an account: test_ssh_proxy.py plays Colab's program"),
    Instead(match=r"me@box", run=None, why="it needs a machine: tests/launcher/backends/ssh runs such lines"),
    Instead(
        match=r"slurm|me@login|sweep sweep.toml",
        run=None,
        why="it needs a cluster: tests/launcher/backends/slurm/test_slurm_page.py runs it",
    ),
    Instead(match=r"--to mlflow", run=None, why="it needs a server: test_export_command.py starts one"),
    Instead(
        match=r"launch local -- (run_glue|fit|references|-m trl|accelerate|yolo|train.py (--data-dir|config))",
        run=None,
        why="it needs packages and data: tests/frameworks/test_frameworks.py has them",
    ),
    Instead(match=r"launch duel --commit", run=None, why="it needs a checkout: test_ci_page.py has one"),
    Instead(match=r"launch duel (?!.*--dry-run)", run="{0} --dry-run", why="its exit code is its verdict"),
    Instead(match=r"launch tune", run=None, why="it takes 20 minutes: tests/launcher/tune has small ones"),
    Instead(match=r"launch local .*--profile ncu", run=None, why="even its plan needs an NVIDIA GPU"),
    Instead(match=r"--cuda|launch local --mps", run="{0} --dry-run", why="it needs a GPU of NVIDIA or Apple"),
)
IT_TRAINS = "it trains: the campaign `pages` runs it"
IN_CI = (
    Instead(match=r"launch local(?!.*--dry-run)", run="{0} --dry-run", why=IT_TRAINS),
    Instead(match=r"launch sweep first.toml$", run="{0} --dry-run", why=IT_TRAINS),
    Instead(match=r"analyze report", run=None, why="seconds, as analyze example: the campaign `pages` runs it"),
    Instead(match=r"python -m (rooflaunch|workload) (train|script|profile|ceilings)", run=None, why=IT_TRAINS),
)
# What stands for a name that only the reader's own folder or project has.
NAMES = {
    "gs://BUCKET/PREFIX": "gs://rooflaunch-test",
    "gs://my-project-rooflaunch/batch": "gs://rooflaunch-test",
    "gs://my-project-rooflaunch": "gs://rooflaunch-test",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("reader")) as stage:
        yield stage


def _instead(text: str, rows: Iterable[Instead]) -> Instead | None:
    return next((row for row in rows if re.search(row.match, text)), None)


@pytest.mark.parametrize("command", pages.distinct_commands(), ids=lambda command: command.where)
def test_the_commands_of_a_line_are_accepted(command: Command) -> None:
    for part in re.split(r"&&|;|\|| do ", command.text):
        words = re.split(r"\s*>>?\s", part.strip())[0]
        if not re.match(r"(for|done|printf|mkdir|make|cd)\b|$", words):
            grammar.check(words)


@pytest.mark.parametrize("page", pages.names())
def test_commands_in_sentences_are_accepted(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (pages.ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    refused = []
    for code in re.findall(r"`([^`]+)`", text):
        for command in printed.commands(" ".join(code.split())):
            try:
                grammar.check_in_prose(command)
            except grammar.RefusedError as error:
                refused.append(f"{command}: {error}")
    # `launch gcp --no-external-ip` names an option, and is no whole command.
    assert not [line for line in refused if "Missing option" not in line]


README = [command for command in pages.distinct_commands() if command.page == "README.md"]


@pytest.mark.slow
@pytest.mark.parametrize("command", README, ids=lambda command: command.where)
def test_a_line_of_readme_runs(command: Command, stage: Stage) -> None:
    _assert_runs(command, stage, _instead(command.text, (*INSTEAD, *IN_CI)))


@pytest.mark.night(part="pages")
@pytest.mark.parametrize("command", pages.distinct_commands(), ids=lambda command: command.where)
def test_a_line_of_a_page_runs(command: Command, stage: Stage) -> None:
    _assert_runs(command, stage, _instead(command.text, INSTEAD))


def _assert_runs(command: Command, stage: Stage, row: Instead | None) -> None:
    line = command.text
    if row:
        if row.run is None:
            pytest.skip(f"{command.text}: {row.why}")
        ours, dashes, scripts = line.partition(" -- ")
        line = row.run.format(ours) + dashes + scripts
    for name, value in NAMES.items():
        line = line.replace(name, value)
    done = stage.run(line, limit_s=LIMIT_S)
    said = f"{command.where}: {line}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr, said
    if row is None:
        _assert_shown(command, done.stdout + done.stderr)


def _assert_shown(command: Command, output: str) -> None:
    """Assert that every label that the page shows is printed, in this order; figures may differ."""
    printed = iter(_labels(output.splitlines()))
    absent = FROM_CEILINGS if "the machine was busy" in output else ()
    for label in (label for label in _labels(command.shown) if label not in absent):
        assert label in printed, f"{command.where}: '{label}' is shown, not printed:\n{output}"


def _labels(lines: Iterable[str]) -> list[str]:
    """First words of each line, without figures."""
    firsts = [re.split(r"\s{2,}", line.strip())[0] for line in lines if line.strip() and line.strip() != "…"]
    return [re.sub(r"\d+", "0", first) for first in firsts]


def test_every_row_is_needed() -> None:
    texts = [command.text for command in pages.distinct_commands()]
    unused = [row.match for row in (*INSTEAD, *IN_CI) if not any(re.search(row.match, text) for text in texts)]
    assert not unused


@pytest.mark.parametrize("page", pages.names())
def test_other_blocks_are_what_they_say(page: str) -> None:
    for block in pages.blocks(page):
        assert block.language in ("", "console", "python", "toml", "yaml"), f"{page}:{block.line}"
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.slow
def test_the_python_of_the_pages_runs(stage: Stage) -> None:
    for page in pages.names():
        for block in pages.blocks(page):
            if block.language == "python":
                Path(stage.folder / "notebook.py").write_text(block.text)
                done = stage.run(".venv/bin/python notebook.py", limit_s=LIMIT_S)
                assert done.returncode == 0, f"{page}:{block.line}\n{done.stderr}"


@pytest.mark.parametrize("page", pages.names())
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    dead = []
    for number, line in enumerate((pages.ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        targets = re.findall(r"\]\((?!https?:)([^)]+)\)|(?:srcset|src)=\"(?!https?:)([^\"]+)\"", line)
        dead += [f"{page}:{number}: {target}" for pair in targets for target in pair if not _exists(page, target)]
    assert not dead, "\n".join(dead)


def _exists(page: str, target: str) -> bool:
    """Whether a file exists, and the heading in it if the target names one."""
    path, _, anchor = target.partition("#")
    file = (pages.ROOT / page).parent / path if path else pages.ROOT / page
    return file.exists() and (not anchor or anchor in _anchors(file))


def _anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of the headings of a page, and those that the page sets itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r"<a id=\"([^\"]+)\"", text))

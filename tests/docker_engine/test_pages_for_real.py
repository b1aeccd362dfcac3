"""The lines of our pages that need a Docker engine, run in a real one."""

from collections.abc import Iterator

import pytest

from tests.docker_engine.commands import BUILD
from tests.docs import pages
from tests.docs.pages import Command
from tests.docs.stage import SMALL, Stage, staged
from tests.docs.test_pages import FOR_ENGINE, LIMIT_S

pytestmark = [
    pytest.mark.world,
    pytest.mark.docker,
    pytest.mark.timeout(LIMIT_S + 60),
    pytest.mark.usefixtures("image"),
]
# Built on the tests' own base image; runs by hand as small as the others.
CHANGED = {
    "launch build": f"launch build {' '.join(BUILD)}",
    "docker run": f"docker run {' '.join(f'--env ROOFLAUNCH_{name}={value}' for name, value in SMALL.items())}",
}
COMMANDS = [command for command in pages.distinct_commands() if FOR_ENGINE.search(command.text)]


@pytest.fixture(scope="module")
def engine_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("reader"), engine=True) as stage:
        yield stage


@pytest.mark.night(part="pages")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.where)
def test_a_line_runs_in_a_real_engine(command: Command, engine_stage: Stage) -> None:
    line = command.text
    for words, changed in CHANGED.items():
        line = line.replace(words, changed)
    done = engine_stage.run(line, limit_s=LIMIT_S)
    assert done.returncode == 0, f"{command.where}: {line}\n{done.stdout}\n{done.stderr}"

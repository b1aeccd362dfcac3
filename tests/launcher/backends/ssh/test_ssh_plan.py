"""The plan of `launch ssh` while nobody has asked the machine."""

from datetime import UTC, datetime

import pytest

from launcher.backends.door import Job
from launcher.backends.ssh.backend import backend
from launcher.backends.ssh.options import Options, Where
from launcher.kinds import Runtime
from workload.contract.spec import resolve


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (
            Options(),
            (
                "auto: an image that is built there, else its Python, else a build; decided when it is asked\n"
                "limit      60 min, kept there whatever becomes of this command\n"
            ),
        ),
        (Options(python="/opt/python"), "runtime    process: asked for; by /opt/python\n"),
        (Options(runtime=Runtime.PROCESS), "runtime    process: asked for; by its python3\n"),
        (Options(runtime=Runtime.DOCKER), "runtime    docker: asked for; with the image for this code\n"),
        (Options(image="own:1", max_run_time_s=90), "docker: asked for; with own:1\nlimit      1.5 min, kept there"),
    ],
    ids=["auto", "python", "process", "docker", "image"],
)
def test_a_plan_says_what_was_asked_for_before_the_machine_is(options: Options, shown: str) -> None:
    job = Job(resolved=resolve({}, {}, None), token="abcdef")
    text = backend.plan(job, options, backend.settings(Where(host="box")), now=datetime.now(UTC)).text()
    assert shown in text
    assert "\nset by     all defaults\n" in text

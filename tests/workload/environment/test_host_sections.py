import threading
from dataclasses import replace

import pytest

from tests.workload.conftest import SILENT, LayOut
from workload.environment.collect import SectionsBeside, collect, host_sections

FILES = {"/proc/sys/kernel/hostname": "lab7\n", "/.dockerenv": ""}


def test_a_thread_collects_the_same(lay_out: LayOut) -> None:
    machine = lay_out(FILES, environ={"SLURM_JOB_ID": "7"}, tools=SILENT)
    sections = SectionsBeside(machine).wait()
    assert sections == host_sections(machine)
    assert sections["host"] is not None
    assert sections["host"]["hostname"] == "lab7"
    assert "environment" not in {thread.name for thread in threading.enumerate()}


def test_what_is_known_is_not_collected_again(lay_out: LayOut) -> None:
    known = SectionsBeside(lay_out(FILES, tools=SILENT)).wait()
    # Without `known`, this machine's tools would be asked, which is an error.
    facts = collect(device="cpu", machine=lay_out(), known=known)
    assert facts["host"] == {**(known["host"] or {}), "dataset_storage": None}
    assert facts["container"] == known["container"]
    assert facts["software"]["commit"] == known["software"]["commit"]  # type: ignore[index]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_thread_that_failed_is_replaced_by_its_caller(lay_out: LayOut, failures: int) -> None:
    machine, asked = lay_out(FILES, tools=SILENT), list[str]()

    def tool(*argv: str) -> str | None:
        asked.append(argv[0])
        if len(asked) <= failures:
            raise RuntimeError("no memory for a process")
        return None

    beside = SectionsBeside(replace(machine, tool=tool))
    if failures == 1:
        assert beside.wait() == host_sections(machine)
    else:
        with pytest.raises(RuntimeError, match="no memory for a process"):
            beside.wait()

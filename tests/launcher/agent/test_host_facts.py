"""Who lets the machine: nobody, or what a launch brings with it as guest.py."""

from pathlib import Path

import pytest

from launcher.agent import home
from launcher.agent.home import OwnMachine, host_facts_of
from tests.launcher.backends.gcp.fake_vm import make_request
from workload.contract.errors import ToolError

REQUEST = make_request("rooflaunch-tower-20261121-100000-0000aa", "", {})


def test_a_machine_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / home.REQUEST).write_bytes(REQUEST.to_bytes())
    nobody = host_facts_of(tmp_path)
    assert isinstance(nobody, OwnMachine)
    assert (nobody.zone, nobody.request()) == ("", REQUEST.to_bytes())
    assert nobody.is_preempted() is False
    assert nobody.comes_back() is False
    assert nobody.await_preemption(lambda _: False) is False
    assert nobody.facts(REQUEST) == {}
    nobody.report("heartbeat", "now")


def test_a_machine_without_a_request(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        host_facts_of(tmp_path).request()
    assert str(caught.value) == f"no request in '{tmp_path}': No such file or directory"
    assert caught.value.hint == "launch again"


def test_a_cloud_travels_with_the_launch(tmp_path: Path) -> None:
    (tmp_path / home.FILE).write_text("def this_machine():\n    return 'the host'\n")
    assert str(host_facts_of(tmp_path)) == "the host"

"""Many runs on many machines, of which some are lost: all complete, none twice, no machine left."""

import pytest

from launcher.protocol.records import LaunchPhase
from tests.launcher.backends.gcp.canned_cloud import QUICK, Clouds
from tests.launcher.sweep.crowd import TIMES, Crowd, simulate

pytestmark = pytest.mark.world


def check(crowd: Crowd) -> None:
    assert crowd.outcome.exit_code == 0, crowd.outcome.text()
    assert len(crowd.at_home) == crowd.runs
    assert set(crowd.at_home.values()) == {1}
    assert crowd.measured == {1: crowd.runs}
    assert crowd.left == 0
    # One list of machines a look, and few questions for a machine by itself: when it is asked for and when it is gone.
    assert crowd.calls["compute.instances.get"] <= 10 * crowd.machines


@pytest.mark.slow
def test_a_few_machines_of_which_many_are_lost(clouds: Clouds) -> None:
    with clouds(durations={**QUICK, LaunchPhase.RUN_ENDED: 60.0}) as cloud:
        crowd = simulate(cloud, machines=4, runs_each=3, preempted=0.2, lost=0.1, name="a-few")
        check(crowd)
        assert crowd.machines > 4


@pytest.mark.timeout(1800)
@pytest.mark.night(part="thousand")
def test_a_thousand_runs_on_a_hundred_machines(clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    with clouds(scale=4, durations=TIMES) as cloud:
        crowd = simulate(cloud, machines=100, runs_each=10, preempted=0.05, lost=0.01, name="crowd")
        with capsys.disabled():
            print("", *crowd.lines(), sep="\n")
        check(crowd)
        assert crowd.happened["preempted"] >= 20
        assert crowd.happened["vanishes"] >= 1

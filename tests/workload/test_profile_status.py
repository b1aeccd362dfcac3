import pytest

from workload.contract.errors import ExitCode
from workload.contract.fields import from_facts
from workload.contract.profile_record import ProfileResult
from workload.contract.spec import Profile
from workload.profile.status import ProfileStatus, before_the_pass, unavailable, was_interrupted


@pytest.mark.parametrize(
    ("profile", "repeat", "repeats", "expected"),
    [
        (Profile.NONE, 1, 1, {"status": "not requested"}),
        (Profile.NONE, 2, 3, {"status": "not requested"}),
        (
            Profile.NCU,
            1,
            3,
            {"status": "not profiled", "kind": "ncu", "reason": "the profile pass has not run yet"},
        ),
        (
            Profile.TORCH,
            2,
            3,
            {"status": "not profiled", "kind": "torch", "reason": "repeat 1 of 3 holds the profile"},
        ),
    ],
)
def test_before_the_pass(profile: Profile, repeat: int, repeats: int, expected: dict[str, str]) -> None:
    assert before_the_pass(profile, repeat=repeat, repeats=repeats) == ProfileResult(**expected)


def test_error_is_two_lines_and_a_record() -> None:
    error = unavailable("no ncu", hint="install it")
    assert error.report() == "error: profile unavailable: no ncu\nhint: install it"
    assert error.recorded() == ProfileResult(status="unavailable", reason="no ncu", hint="install it")
    assert error.exit_code is ExitCode.TOOL


@pytest.mark.parametrize(
    ("profile", "collected", "interrupted"),
    [
        ({"status": "not requested"}, False, False),
        ({"status": "completed", "files": ["ncu/kernels.csv"]}, True, False),
        ({"status": "interrupted", "files": []}, False, True),
        (
            {"status": "completed", "files": ["x"], "step_bytes": {"status": ProfileStatus.INTERRUPTED}},
            True,
            True,
        ),
        ({"status": "completed", "files": ["x"], "throughput": {"status": "failed"}}, True, False),
    ],
)
def test_what_a_record_says(profile: dict[str, object], collected: bool, interrupted: bool) -> None:
    recorded = from_facts(ProfileResult, profile)
    assert recorded.is_collected is collected
    assert was_interrupted(recorded) is interrupted

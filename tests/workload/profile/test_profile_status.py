import pytest

from workload.contract.errors import ExitCode
from workload.contract.fields import from_facts
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile
from workload.contract.trainer import Context
from workload.profile.command import ProfileStatus, before_the_pass, unavailable, was_interrupted


@pytest.mark.parametrize(
    ("profile", "context", "expected"),
    [
        (Profile.NONE, Context(), {"status": "not requested"}),
        (Profile.NONE, Context(repeat=2, repeats=3), {"status": "not requested"}),
        (
            Profile.NCU,
            Context(repeat=1, repeats=3),
            {"status": "not profiled", "kind": "ncu", "reason": "the profile pass has not run yet"},
        ),
        (
            Profile.TORCH,
            Context(repeat=2, repeats=3),
            {"status": "not profiled", "kind": "torch", "reason": "the profile is in the bundle of repeat 1 of 3"},
        ),
        (
            Profile.TORCH,
            Context(repeat=2, repeats=3, job={"name": "night", "task": 1, "block": 2, "position": 1}),
            {"status": "not profiled", "kind": "torch", "reason": "the profile pass has not run yet"},
        ),
    ],
    ids=["none", "none of repeats", "the first repeat", "a later repeat", "a later block of a sweep"],
)
def test_before_the_pass(profile: Profile, context: Context, expected: dict[str, str]) -> None:
    assert before_the_pass(profile, context) == ProfileResult(**expected)


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

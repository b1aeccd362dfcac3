"""Status of a profile pass, in the terms of run.json's `profile`."""

from enum import StrEnum

from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Profile
from workload.contract.trainer import Context


class ProfileStatus(StrEnum):
    """Status of a pass. `partial`: `reason` names the missing figures; `unavailable`: not possible on this machine."""

    NOT_REQUESTED = "not requested"
    NOT_PROFILED = "not profiled"
    COMPLETED = "completed"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


class ProfileError(RooflaunchError):
    """Reason why there is no profile; the timing run stays valid."""

    exit_code = ExitCode.TOOL

    def __init__(self, status: ProfileStatus, reason: str, *, hint: str) -> None:
        super().__init__(reason, hint=hint)
        self.status = status

    def headline(self) -> str:
        """Text after `error:`."""
        return f"profile {self.status}: {self}"

    def recorded(self, kind: Profile | None = None) -> ProfileResult:
        """Section `profile` of run.json for a pass that ended with this error; `kind`: the requested profile."""
        return ProfileResult(status=self.status, reason=str(self), hint=self.hint, kind=kind)


def unavailable(reason: str, *, hint: str) -> ProfileError:
    """Error for something that the machine lacks or forbids."""
    return ProfileError(ProfileStatus.UNAVAILABLE, reason, hint=hint)


def before_the_pass(profile: Profile, context: Context) -> ProfileResult:
    """Section `profile` of run.json as the timing run writes it, before the profile pass.

    In a sweep each run has its own profile; among the repeats of a run only the first repeat has a profile.
    """
    if profile is Profile.NONE:
        return ProfileResult(status=ProfileStatus.NOT_REQUESTED)
    has_its_own = context.repeat == 1 or context.job is not None
    reason = (
        "the profile pass has not run yet"
        if has_its_own
        else f"the profile is in the bundle of repeat 1 of {context.repeats}"
    )
    return ProfileResult(status=ProfileStatus.NOT_PROFILED, kind=profile, reason=reason)


def was_interrupted(profile: ProfileResult) -> bool:
    """Whether the user ended the pass, or one of its further runs."""
    parts = (profile, profile.step_bytes, profile.throughput)
    return any(part is not None and part.status == ProfileStatus.INTERRUPTED for part in parts)

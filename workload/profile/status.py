"""How a profile pass ended, as run.json's `profile` says it."""

from enum import StrEnum

from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.profile_record import ProfileResult
from workload.contract.spec import Context, Profile


class ProfileStatus(StrEnum):
    """`partial`: figures are there, and `reason` says which are not; `unavailable`: this machine does not allow it."""

    NOT_REQUESTED = "not requested"
    NOT_PROFILED = "not profiled"
    COMPLETED = "completed"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


class ProfileError(RooflaunchError):
    """Why there is no profile; the timing run stays what it is."""

    exit_code = ExitCode.TOOL

    def __init__(self, status: ProfileStatus, reason: str, *, hint: str) -> None:
        super().__init__(reason, hint=hint)
        self.status = status

    def headline(self) -> str:
        """What stands after `error:`."""
        return f"profile {self.status}: {self}"

    def recorded(self, kind: Profile | None = None) -> ProfileResult:
        """Run.json's `profile` where this is all that came of the pass."""
        return ProfileResult(status=self.status, reason=str(self), hint=self.hint, kind=kind)


def unavailable(reason: str, *, hint: str) -> ProfileError:
    """Something that the machine lacks or forbids."""
    return ProfileError(ProfileStatus.UNAVAILABLE, reason, hint=hint)


def before_the_pass(profile: Profile, context: Context) -> ProfileResult:
    """What the timing run itself writes of its profile; of a sweep each run has its own, of repeats the first."""
    if profile is Profile.NONE:
        return ProfileResult(status=ProfileStatus.NOT_REQUESTED)
    has_its_own = context.repeat == 1 or context.job is not None
    reason = "the profile pass has not run yet" if has_its_own else f"repeat 1 of {context.repeats} holds the profile"
    return ProfileResult(status=ProfileStatus.NOT_PROFILED, kind=profile, reason=reason)


def was_interrupted(profile: ProfileResult) -> bool:
    """Whether the user ended the pass, or one of its further runs."""
    parts = (profile, profile.step_bytes, profile.throughput)
    return any(part is not None and part.status == ProfileStatus.INTERRUPTED for part in parts)

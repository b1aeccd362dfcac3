"""Makes a run's first run.json, for our trainer, for a user's script and for runs that end early.

Standard library only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workload.contract.context import Context
from workload.contract.fields import from_facts
from workload.contract.forks import this_start
from workload.contract.record import ComplexityRecord, JobPlace, Memory, Record, Repeat, Spec, Status, Timing
from workload.contract.record_sections import Environment
from workload.contract.spec import Profile
from workload.profile.status import before_the_pass


def first_record(
    run_id: str,
    context: Context,
    *,
    place: str,
    spec: Spec,
    spec_origin: Mapping[str, str] | None,
    facts: Mapping[str, Any],
    started_at: str,
    complexity: ComplexityRecord | None = None,
    notes: Sequence[str] = (),
) -> Record:
    """Record of a run that begins. `facts`: sections of the environment that `context` does not have."""
    where = {
        "place": place,
        "backend": context.backend,
        "runtime": context.runtime,
        "runtime_reason": context.runtime_reason,
        "start": this_start(),
    }
    return Record(
        run_id=run_id,
        status=Status.RUNNING,
        repeat=Repeat(index=context.repeat, of=context.repeats),
        job=None if context.job is None else JobPlace(**context.job),
        run_key=context.run_key or None,
        spec=spec,
        spec_origin=spec_origin,
        environment=from_facts(Environment, {**where, **facts}),
        timing=Timing(started_at=started_at),
        complexity=complexity,
        memory=Memory(),
        profile=before_the_pass(Profile(spec.profile or Profile.NONE), context),
        notes=list(notes),
    )

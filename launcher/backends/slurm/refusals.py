"""Messages of sbatch when it refuses a job, and their meanings."""

import re
from dataclasses import dataclass

from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError, UsageError
from workload.contract.text import printable

ACCOUNTS = "sacctmgr show assoc user=$USER format=account,partition,qos"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Meaning and cure of a message that matches `pattern`, from Slurm's table of errors (src/common/slurm_errno.c)."""

    pattern: str
    meaning: str
    hint: str
    error: type[RooflaunchError] = UsageError


REFUSALS = (
    Refusal(
        pattern="Invalid account",
        meaning="the account is missing, unknown, or may not use this partition",
        hint=f"--account NAME; on the login node: {ACCOUNTS}",
    ),
    Refusal(
        pattern="Invalid partition name|invalid partition specified",
        meaning="there is no such partition",
        hint="--partition NAME; launch doctor slurm shows the partitions",
    ),
    Refusal(
        pattern="Invalid qos",
        meaning="this quality of service does not exist, or you may not use it",
        hint="--qos NAME",
    ),
    Refusal(
        pattern="time limit is invalid|time limit exceeds|PartitionTimeLimit",
        meaning="the requested time is above the limit of the partition",
        hint="a shorter --time; launch doctor slurm shows the limits",
    ),
    Refusal(
        pattern="Invalid feature",
        meaning="no node has the feature that --constraint asks for",
        hint="--constraint F; launch doctor slurm shows the features",
    ),
    Refusal(
        pattern="Invalid generic resource|Invalid Trackable RESource",
        meaning="the cluster has no resource of the kind in --gres",
        hint="--gres gpu:1; launch doctor slurm shows the GPUs of each partition",
    ),
    Refusal(
        pattern="node configuration is not available|Memory specification can not|More processors requested",
        meaning="no node of the partition has the requested resources",
        hint="another --partition, or less of --gres, --constraint or memory; launch doctor slurm",
    ),
    Refusal(
        pattern="MaxSubmit|job submit limit|QOS policy|Job violates accounting",
        meaning="you have reached your limit of jobs, or ask for more than you may use",
        hint="wait until some jobs have ended (squeue shows them), or use fewer --repeats or a shorter --time",
        error=NoCapacityError,
    ),
    Refusal(
        pattern="Invalid job array",
        meaning="the array has more elements than the cluster allows",
        hint="scontrol show config shows MaxArraySize",
    ),
    Refusal(
        pattern="not permitted|Access/permission denied|User's group",
        meaning="you may not use this partition",
        hint="another --partition, or ask the cluster's administrator",
    ),
    Refusal(
        pattern="Unable to contact slurm controller|Zero Bytes|Socket timed out|Connection refused|no answer within",
        meaning="Slurm's controller does not answer",
        hint="scontrol ping shows whether the controller answers; then run the same command again",
        error=ToolError,
    ),
    Refusal(
        pattern="unrecognized option|invalid option|Invalid directive|Script arguments|Invalid .* specification",
        meaning="sbatch does not know an option, or does not accept its value",
        hint="see --sbatch and the other options; --dry-run --request shows the whole script",
    ),
)


# Line with Slurm's own reason. Other lines are from a job_submit plugin, which a site writes, or match `SLURMS_OWN`.
REASON = re.compile(r"Batch job submission failed: *(.*)")
SLURMS_OWN = re.compile(
    r"invalid partition specified|can ?not be satisfied|More processors requested|\w+Limit$|\w+Per(User|Job)$"
)


def explained(message: str, place: str) -> RooflaunchError:
    """Error for a refusal by sbatch, with sbatch's message quoted.

    If a plugin of the site refused the job, the plugin's messages come before Slurm's own reason, which says less.
    """
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in message.splitlines()]
    lines = list(dict.fromkeys(line for line in lines if line))
    reasons = [match[1] for line in lines if (match := REASON.match(line))]
    quoted = printable("; ".join(lines)) or "no message"
    site_lines = [line for line in lines if not REASON.match(line) and not SLURMS_OWN.search(line)]
    if reasons and site_lines:
        rule = f"a rule of this cluster: {printable('; '.join(site_lines))} ({printable(reasons[0])})"
        hint = "use an option of launch slurm, or --sbatch OPTION, that fulfils the rule; or ask the administrator"
        return UsageError(f"sbatch on {place} refused the job by {rule}", hint=hint)
    for refusal in REFUSALS:
        if re.search(refusal.pattern, message, re.IGNORECASE):
            return refusal.error(f"sbatch on {place} refused the job: {refusal.meaning} ({quoted})", hint=refusal.hint)
    return ToolError(f"sbatch on {place} refused the job: {quoted}", hint="--dry-run --request shows the whole script")

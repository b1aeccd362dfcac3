"""Client for EC2 and its neighbours in one region: all requests of the launcher to AWS, except the store's.

boto3 is imported inside functions only. Its own retries are turned off, since it would ask three times for an instance
that is not free; requests that may be repeated are repeated here, within a limit.
"""

import math
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn

from launcher.backends.aws import answers
from launcher.backends.aws.answers import (
    LABEL,
    LABEL_VALUE,
    NAME_TAG,
    Ami,
    DeniedError,
    Instance,
    RefusedError,
    Volume,
    foreign,
    is_temporary,
    service_in,
    translated,
)
from launcher.backends.zone_by_zone import CloudClock
from launcher.protocol.records import Price
from workload.contract.errors import ToolError, UsageError
from workload.contract.text import counted
from workload.storage.buckets import repeated
from workload.storage.s3_errors import error_code

# Limits for one request, and for repeating a failing request. RunInstances may take longer than a look-up.
ANSWER_S, CONNECT_S, RETRY_S = 20.0, 5.0, 30.0
QUICK_RETRY_S = 5.0
# Some requests do not know an instance for up to minutes after RunInstances has answered.
NEW_INSTANCE_S = 180.0
# How the error codes for an unknown instance begin.
UNKNOWN = "InvalidInstanceID"
CONNECTIONS = 32
# AWS's own images, with driver, Docker and NVIDIA's container toolkit. Their guide prints the second name.
AMI_PARAMETERS = tuple(
    f"/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver{part}-ubuntu-22.04/latest/ami-id"
    for part in ("-gpu", "")
)
# Processors of all machine types in gpus.toml, as DescribeImages calls them.
PROCESSOR = "x86_64"
AMI_OWNER = "898082745236"
AMI_NAME = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"
SCHEDULE_TARGET = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
SCHEDULE = re.compile(r"rooflaunch-(i-[0-9a-f]{8,17})")
# EC2 forgets an instance about an hour after its end. Until then a repeated attempt of the schedule does no harm.
SCHEDULE_RETRY_S = 3600


class Ec2:
    """EC2, EventBridge Scheduler, Service Quotas and SSM in one region. Safe to share between threads.

    `calls` counts requests, including each repetition.
    """

    def __init__(
        self,
        region: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.region = region
        self.service = service_in(region)
        self.calls: Counter[str] = Counter()
        self._sleep, self._monotonic = sleep, monotonic
        self._clock = CloudClock(monotonic)
        self._made: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._zone_ids: dict[str, str] | None = None

    def now_s(self) -> float:
        """Seconds since 1970 by the cloud's clock. Raises `ToolError` if the answers have no date."""
        return self._clock.now_s(self.service, "VMs", self._read_zones)

    # Instances.

    def run_instance(self, body: Mapping[str, Any]) -> Instance:
        """Ask once for the instance that `body` describes.

        Raises `RefusedError` if EC2 answered that it started none, `DoubtfulError` if it may have started one.
        """
        zones = self.zone_ids()
        return answers.instance(self._ask("ec2", "run_instances", retry_s=0.0, **body)["Instances"][0], zones)

    def try_instance(self, body: Mapping[str, Any]) -> None:
        """Ask EC2 whether it would take this request for an instance; nothing is made. Raises its error if not."""
        # EC2 answers with this error code where it would have made the instance.
        self._ask("ec2", "run_instances", missing="DryRunOperation", **body, DryRun=True)

    def instance(self, instance_id: str) -> Instance | None:
        """Instance of this id; None if EC2 does not know it, not yet or not any more."""
        answer = self._ask("ec2", "describe_instances", missing=UNKNOWN, InstanceIds=[instance_id])
        found = [] if answer is None else list(self._instances([answer]))
        return found[0] if found else None

    def instances(self, names: Sequence[str] | None = None) -> list[Instance]:
        """Instances of our launches, ended ones included for about an hour; with `names`, only those of these names."""
        filters = [{"Name": f"tag:{LABEL}", "Values": [LABEL_VALUE]}]
        # EC2 takes at most 200 values in a filter.
        batches = [names[i : i + 200] for i in range(0, len(names), 200)] if names is not None else [None]
        pages: list[Any] = []
        for batch in batches:
            named = [{"Name": f"tag:{NAME_TAG}", "Values": list(batch)}] if batch is not None else []
            pages += self._pages("ec2", "describe_instances", Filters=[*filters, *named])
        return list(self._instances(pages))

    def terminate(self, instance_id: str, *, at_once: bool = False) -> None:
        """Ask for the end of an instance; does nothing if it is gone. `at_once`: without a shutdown of its system."""
        skip: dict[str, Any] = {"SkipOsShutdown": True} if at_once else {}
        self._ask("ec2", "terminate_instances", missing=UNKNOWN, InstanceIds=[instance_id], **skip)

    def tag(self, instance_id: str, key: str, value: str) -> None:
        """Set a tag of an instance, which may be so new that CreateTags does not know it yet."""
        tags = [{"Key": key, "Value": value}]
        self._ask("ec2", "create_tags", awaits=UNKNOWN, retry_s=NEW_INSTANCE_S, Resources=[instance_id], Tags=tags)

    def console(self, instance_id: str) -> str:
        """Latest text of an instance's console, at most 64 KB; empty if the instance is gone or has printed nothing."""
        answer = self._ask("ec2", "get_console_output", missing=UNKNOWN, InstanceId=instance_id, Latest=True)
        return str((answer or {}).get("Output") or "")

    # Schedules.

    def schedule_end(self, instance_id: str, at_s: float, role_arn: str) -> None:
        """Make the one-time schedule that ends an instance; does nothing if it exists."""
        at = datetime.fromtimestamp(at_s, UTC)
        try:
            self._ask(
                "scheduler",
                "create_schedule",
                Name=schedule_name(instance_id),
                ScheduleExpression=f"at({at:%Y-%m-%dT%H:%M:%S})",
                ScheduleExpressionTimezone="UTC",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": SCHEDULE_TARGET,
                    "RoleArn": role_arn,
                    "Input": f'{{"InstanceIds": ["{instance_id}"]}}',
                    "RetryPolicy": {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": SCHEDULE_RETRY_S},
                },
            )
        except RefusedError as error:
            if error.code == "ConflictException":
                return
            if error.code == "ValidationException" and "role" in str(error).lower():
                raise DeniedError(
                    f"the schedule's role cannot be used: {error}",
                    hint="make the role with infra/aws/, or name another one with --schedule-role",
                ) from error
            raise

    def delete_schedule(self, instance_id: str) -> None:
        """Delete the schedule of an instance; does nothing if there is none."""
        name = schedule_name(instance_id)
        self._ask("scheduler", "delete_schedule", missing="ResourceNotFoundException", Name=name)

    def scheduled(self) -> list[str]:
        """Ids of the instances that have a schedule in the region, whether they exist or not."""
        pages = self._pages("scheduler", "list_schedules", NamePrefix="rooflaunch-i-")
        names = [str(item["Name"]) for page in pages for item in page["Schedules"]]
        return [found[1] for name in names if (found := SCHEDULE.fullmatch(name))]

    # Volumes.

    def free_volumes(self) -> list[Volume]:
        """Disks of our launches that no instance uses."""
        filters = [{"Name": f"tag:{LABEL}", "Values": [LABEL_VALUE]}, {"Name": "status", "Values": ["available"]}]
        pages = self._pages("ec2", "describe_volumes", Filters=filters)
        zones = self.zone_ids()
        return [answers.volume(item, zones) for page in pages for item in page["Volumes"]]

    def delete_volume(self, volume_id: str) -> None:
        """Delete a disk; does nothing if it is gone."""
        self._ask("ec2", "delete_volume", missing="InvalidVolume.NotFound", VolumeId=volume_id)

    # Zones, quotas, images, network and account.

    def zone_ids(self) -> Mapping[str, str]:
        """Ids of the region's zones that this account can use, by the zones' names in this account."""
        with self._lock:
            if self._zone_ids is None:
                zones = self._read_zones()
                self._zone_ids = {zone["ZoneName"]: zone["ZoneId"] for zone in zones if zone["State"] == "available"}
            return self._zone_ids

    def _read_zones(self) -> Any:
        return self._ask("ec2", "describe_availability_zones")["AvailabilityZones"]

    def zones_with(self, machine_type: str) -> list[str]:
        """Ids of the region's zones that offer a machine type; says nothing about free machines."""
        filters = [{"Name": "instance-type", "Values": [machine_type]}]
        where = "availability-zone-id"
        pages = self._pages("ec2", "describe_instance_type_offerings", LocationType=where, Filters=filters)
        return sorted(str(item["Location"]) for page in pages for item in page["InstanceTypeOfferings"])

    def spot_price(self, machine_type: str, zones: Sequence[str]) -> Price | None:
        """Highest of the present spot prices in these zones, without disk and address; None if EC2 knows none.

        `zones`: ids or names.
        """
        ids, now = self.zone_ids(), datetime.fromtimestamp(self.now_s(), UTC)
        wanted = {ids.get(zone, zone) for zone in zones}
        asked = {"InstanceTypes": [machine_type], "ProductDescriptions": ["Linux/UNIX"], "StartTime": now}
        pages = self._pages("ec2", "describe_spot_price_history", retry_s=QUICK_RETRY_S, **asked)
        told = [item for page in pages for item in page["SpotPriceHistory"]]
        # The last price of a zone is the one in effect.
        in_order = sorted(told, key=lambda item: item["Timestamp"])
        newest = {answers.zone_id(item, ids): float(item["SpotPrice"]) for item in in_order}
        known = {zone: usd for zone, usd in newest.items() if zone in wanted and 0 < usd < math.inf}
        if not known:
            return None
        dearest = max(known, key=lambda zone: known[zone])
        source = f"EC2's spot price in {dearest}, the highest of {counted(len(known), 'zone')}"
        return Price(usd_per_h=known[dearest], source=source, read=f"{now:%Y-%m-%d}")

    def quota(self, code: str) -> float | None:
        """Quota of EC2 in vCPUs; None if AWS does not tell. The account's own value, else AWS's default."""
        for method in ("get_service_quota", "get_aws_default_service_quota"):
            try:
                answer = self._ask("service-quotas", method, retry_s=QUICK_RETRY_S, ServiceCode="ec2", QuotaCode=code)
            except ToolError:
                continue  # the request for the instance tells it too
            return float(answer["Quota"]["Value"])
        return None

    def newest_ami(self, parameter: str | None) -> str:
        """Id of the AMI that an SSM parameter names; without `parameter`, of AWS's newest image for GPUs.

        Raises `UsageError` if the parameter does not exist, `ToolError` if no image is found.
        """
        for name in (parameter,) if parameter else AMI_PARAMETERS:
            try:
                answer = self._ask("ssm", "get_parameter", missing="ParameterNotFound", Name=name)
            except DeniedError:
                if parameter:
                    raise
                break
            if answer is not None:
                return str(answer["Parameter"]["Value"])
        if parameter:
            raise UsageError(
                f"there is no SSM parameter '{parameter}' in {self.region}",
                hint=f"aws ssm get-parameters-by-path --path /aws/service/deeplearning/ami --recursive "
                f"--region {self.region}; or --ami ami-ID",
            )
        filters = [{"Name": "name", "Values": [AMI_NAME]}, {"Name": "state", "Values": ["available"]}]
        answer = self._ask("ec2", "describe_images", Owners=[AMI_OWNER], Filters=filters)
        if not answer["Images"]:
            raise ToolError(f"no Deep Learning Base AMI was found in {self.region}", hint="--ami ami-ID")
        return str(max(answer["Images"], key=lambda image: image["CreationDate"])["ImageId"])

    def ami(self, ami_id: str) -> Ami:
        """Image of this id. Raises `UsageError` if the region lacks it, or if it is not Linux for x86_64."""
        answer = self._ask("ec2", "describe_images", missing="InvalidAMIID", ImageIds=[ami_id])
        if not answer or not answer["Images"]:
            raise UsageError(
                f"there is no AMI '{ami_id}' in {self.region}", hint="leave --ami out, or name another one"
            )
        [image] = answer["Images"]
        system, processor = image.get("Platform", "Linux"), image.get("Architecture", PROCESSOR)
        if (system, processor) != ("Linux", PROCESSOR):
            raise UsageError(
                f"AMI '{ami_id}' is for {system} on {processor}; the VMs need Linux on {PROCESSOR}",
                hint="leave --ami out, or name another one",
            )
        root = str(image.get("RootDeviceName") or "/dev/sda1")
        disks = {disk.get("DeviceName"): disk.get("Ebs", {}) for disk in image.get("BlockDeviceMappings", ())}
        size = int(disks.get(root, {}).get("VolumeSize") or 0)
        return Ami(id=ami_id, name=str(image.get("Name", "")), root=root, gigabytes=size)

    def security_group(self, name: str, subnet: str | None) -> str:
        """Id of a security group, in the subnet's network or else in the default one. Raises `UsageError`."""
        if name.startswith("sg-"):
            return name
        if subnet:
            network = self._subnet(subnet)["VpcId"]
        else:
            answer = self._ask("ec2", "describe_vpcs", Filters=[{"Name": "is-default", "Values": ["true"]}])
            if not answer["Vpcs"]:
                raise UsageError(f"there is no default VPC in {self.region}", hint="--subnet subnet-ID")
            network = answer["Vpcs"][0]["VpcId"]
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [network]}]
        answer = self._ask("ec2", "describe_security_groups", Filters=filters)
        if not answer["SecurityGroups"]:
            raise _unusable(f"there is no security group '{name}' in {network} of {self.region}", "--security-group")
        return str(answer["SecurityGroups"][0]["GroupId"])

    def zone_of_subnet(self, subnet: str) -> str:
        """Id of the zone of a subnet. Raises `UsageError` if there is no such subnet."""
        return answers.zone_id(self._subnet(subnet), self.zone_ids())

    def _subnet(self, subnet: str) -> Any:
        answer = self._ask("ec2", "describe_subnets", missing="InvalidSubnetID", SubnetIds=[subnet])
        if not answer:
            raise UsageError(f"there is no subnet '{subnet}' in {self.region}", hint="--subnet subnet-ID")
        return answer["Subnets"][0]

    def instance_profile(self, name: str) -> str:
        """Name of the role in an instance profile. Raises `UsageError` if there is none, or no role in it."""
        answer = self._ask("iam", "get_instance_profile", missing="NoSuchEntity", InstanceProfileName=name)
        roles = answer["InstanceProfile"]["Roles"] if answer else []
        if not roles:
            what = f"the instance profile '{name}' has no role" if answer else f"there is no instance profile '{name}'"
            raise _unusable(what, "--instance-profile")
        return str(roles[0]["RoleName"])

    def schedule_role(self, name: str) -> str:
        """ARN of a role that schedules can use. Raises `UsageError` if there is none, or if it trusts others only."""
        answer = self._ask("iam", "get_role", missing="NoSuchEntity", RoleName=name)
        if answer is None:
            raise _unusable(f"there is no role '{name}'", "--schedule-role")
        if "scheduler." not in str(answer["Role"].get("AssumeRolePolicyDocument")):
            raise _unusable(f"role '{name}' does not trust EventBridge Scheduler", "--schedule-role")
        return str(answer["Role"]["Arn"])

    def repository(self, name: str) -> str:
        """Address of a repository of this account's registry in the region. Raises `UsageError` if there is none."""
        missing = "RepositoryNotFoundException"
        answer = self._ask("ecr", "describe_repositories", missing=missing, repositoryNames=[name])
        if answer is None:
            raise _unusable(f"there is no repository '{name}' in {self.region}", "--repository")
        return str(answer["repositories"][0]["repositoryUri"])

    def account(self) -> str:
        """Number of the credentials' account."""
        return str(self._ask("sts", "get_caller_identity")["Account"])

    # Requests.

    def _instances(self, pages: Sequence[Any]) -> Iterator[Instance]:
        reservations = [item for page in pages for item in page["Reservations"]]
        zones = self.zone_ids() if reservations else {}
        for reservation in reservations:
            yield from (answers.instance(item, zones) for item in reservation["Instances"])

    def _pages(self, kind: str, method: str, **fields: Any) -> list[Any]:
        pages = [self._ask(kind, method, **fields)]
        while token := pages[-1].get("NextToken"):
            pages.append(self._ask(kind, method, **fields, NextToken=token))
        return pages

    def _ask(
        self, kind: str, method: str, *, missing: str = "", awaits: str = "", retry_s: float = RETRY_S, **fields: Any
    ) -> Any:
        """Send a request; return the answer, None if AWS answers with an error code that starts with `missing`.

        `awaits`: start of a further error code after which the request is repeated.
        """

        def call() -> Any:
            with self._lock:
                self.calls[f"{kind}.{method}"] += 1
                client = self._client(kind)
            return getattr(client, method)(**fields)

        def may_repeat(error: Exception) -> bool:
            return is_temporary(error) or bool(awaits and error_code(error).startswith(awaits))

        try:
            with self._boto():
                answer = repeated(call, retry_s, may_repeat, sleep=self._sleep, monotonic=self._monotonic)
        except RefusedError as error:
            if missing and error.code.startswith(missing):
                return None
            raise

        def lacks() -> NoReturn:
            raise foreign(self.service)

        # A key that an answer of AWS always has is missing only in an answer of another server.
        return defaultdict(lacks, answer)

    def _boto(self) -> Any:
        try:
            import boto3  # noqa: F401, PLC0415 - see the module
        except ModuleNotFoundError as error:
            raise ToolError("the package boto3 is missing", hint="pip install 'rooflaunch[aws]'") from error
        return translated(self.service, self.region)

    def _client(self, kind: str) -> Any:
        from botocore.config import Config  # noqa: PLC0415 - see the module

        if kind not in self._made:
            limits = Config(
                connect_timeout=CONNECT_S,
                read_timeout=ANSWER_S,
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": 1},
            )
            client = _session().client(kind, region_name=self.region, config=limits)
            client.meta.events.register("after-call.*.*", self._read_date)
            self._made[kind] = client
        return self._made[kind]

    def _read_date(self, http_response: Any = None, **_: object) -> None:
        if http_response is not None and http_response.status_code == 200:  # noqa: PLR2004 - HTTP
            self._clock.set(http_response.headers.get("Date"))


def _session() -> Any:
    """A session with the credentials of now. Sessions share the descriptions of services: that of EC2 takes 0.2 s."""
    import boto3  # noqa: PLC0415 - see the module
    import botocore.session  # noqa: PLC0415

    core = botocore.session.Session()
    core.register_component("data_loader", _descriptions())
    return boto3.session.Session(botocore_session=core)


@cache
def _descriptions() -> Any:
    from botocore.loaders import create_loader  # noqa: PLC0415 - see the module

    return create_loader()


def _unusable(message: str, option: str) -> UsageError:
    """Error for a part of the account that infra/aws/ makes, if missing or wrong. `option`: names another one."""
    return UsageError(message, hint=f"make it with infra/aws/, or name another one with {option}")


def schedule_name(instance_id: str) -> str:
    """Name of the schedule that ends an instance."""
    return f"rooflaunch-{instance_id}"

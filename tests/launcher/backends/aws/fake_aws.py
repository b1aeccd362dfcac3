"""A small AWS for tests: EC2 with its quotas, tokens and errors, EventBridge Scheduler, Service Quotas, SSM and STS.

It speaks the wire protocols to the real boto3, keeps state, and answers an unknown request with an error. It knows what
moto does not: a repeated ClientToken, quotas in vCPUs, the size of user data, types that a zone lacks, lost answers,
and time: a schedule and the timer of a guest end an instance when the clock passes them.
"""

import base64
import gzip
import itertools
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.ports import Answering, Fake

REGION, ACCOUNT = "us-east-1", "111122223333"
# Names of zones differ between accounts: this account's `a` is az4.
ZONES = {"us-east-1a": "use1-az4", "us-east-1b": "use1-az6", "us-east-1c": "use1-az1", "us-east-1d": "use1-az2"}
TYPES = {"g4dn.xlarge": 4, "g4dn.2xlarge": 8, "g6.xlarge": 4, "g5.xlarge": 4, "p4d.24xlarge": 96}
QUOTAS = {"L-DB2E81BA": 8.0, "L-3819A6DF": 8.0, "L-417A185B": 0.0, "L-7212CCBC": 0.0, "L-C4BD4855": 0.0}
AMI = "ami-0123456789abcdef0"
PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
USER_DATA_BYTES, CONSOLE_BYTES = 16_384, 65_536
# Machine type, id of the zone, USD per hour, and since when.
SpotPrice = tuple[str, str, float, float]


class AwsError(Exception):
    """An error answer: code, HTTP status, message. `body`: the whole answer instead."""

    def __init__(self, code: str, status: int = 400, message: str = "", *, body: str = "") -> None:
        super().__init__(code)
        self.code, self.status, self.message, self.body = code, status, message or f"{code} happened", body


class Lost(Exception):  # noqa: N818 - no error of ours
    """The work is done, and the connection breaks before the answer."""


@dataclass
class Vm:
    """An instance."""

    id: str
    zone: str
    type: str
    spot: bool
    tags: dict[str, str]
    created_s: float
    asked: Mapping[str, Any]
    user_data: bytes
    on_shutdown: str
    state: str = "pending"
    reason: tuple[str, str] = ("", "")
    hidden: int = 0
    dies_of: str = ""
    hangs: bool = False
    console: str = ""
    has_notice: bool = False

    @property
    def timer_s(self) -> float | None:
        """Time at which the guest powers off, by the first timer in its user data."""
        text = (gzip.decompress(self.user_data) if self.user_data[:2] == b"\x1f\x8b" else self.user_data).decode()
        found = re.search(r"shutdown -P \+(\d+)", text)
        return self.created_s + 60 * int(found[1]) if found else None


@dataclass
class FakeAws(Fake):
    """`clock`: the time in seconds since 1970. `with FakeAws(...) as fake:` serves at `fake.url`."""

    clock: Callable[[], float]
    quotas: dict[str, float] = field(default_factory=lambda: dict(QUOTAS))
    parameters: dict[str, str] = field(default_factory=lambda: {PARAMETER: AMI})
    vms: dict[str, Vm] = field(default_factory=dict)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    # Errors in turn, by action or by `RunInstances ZONE`.
    errors: dict[str, list[AwsError]] = field(default_factory=lambda: defaultdict(list))
    outage: AwsError | None = None
    lost_answers: int = 0
    hides: int = 0
    dies_of: dict[str, str] = field(default_factory=dict)
    ends_refused: bool = False
    hangs: bool = False
    profiles: set[str] = field(default_factory=lambda: {"rooflaunch-vm"})
    roles: set[str] = field(default_factory=lambda: {f"arn:aws:iam::{ACCOUNT}:role/rooflaunch-schedule"})
    groups: dict[str, str] = field(default_factory=lambda: {"rooflaunch": "sg-0123456789abcdef0"})
    spot_prices: list[SpotPrice] = field(default_factory=list)
    repositories: set[str] = field(default_factory=lambda: {"rooflaunch/trainer"})
    # Service that roles trust.
    trusted: str = "scheduler.amazonaws.com"
    # What DescribeImages tells of the image's processor, and of its system if that is Windows.
    image: dict[str, str] = field(default_factory=lambda: {"architecture": "x86_64"})
    # What goes on inside of an instance, in a thread of its own from the moment that it runs.
    inside: Callable[[Vm], None] | None = None

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        super().__init__(_Handler)

    @property
    def live(self) -> list[Vm]:
        """Instances that exist, by the knowledge of the cloud."""
        with self._lock:
            self.pass_time()
            return [vm for vm in self.vms.values() if vm.state != "terminated"]

    def named(self, name: str) -> Vm:
        return next(vm for vm in self.vms.values() if vm.tags.get("rooflaunch-name") == name)

    # Events.

    def end(self, vm: Vm, code: str, message: str = "") -> None:
        """An instance ends, and its disk with it; or it only stops, if its owner forgot to ask for more."""
        stops = code == "Client.InstanceInitiatedShutdown" and vm.on_shutdown == "stop"
        vm.state, vm.reason = ("stopped" if stops else "terminated"), (code, message or code)
        if not stops:
            self.volumes.pop(f"vol-{vm.id[2:]}", None)

    def preempt(self, vm: Vm, *, notice: bool) -> None:
        """EC2 takes an instance back; with a `notice` its guest has the time to end by itself."""
        vm.has_notice = True
        if not notice:
            self.end(vm, "Server.SpotInstanceTermination")

    def pass_time(self) -> None:
        """What the clock has brought about: timers of guests, then schedules."""
        for vm in self.vms.values():
            due_s = vm.timer_s
            if vm.state == "running" and not vm.hangs and due_s is not None and self.clock() >= due_s:
                self.end(vm, "Client.InstanceInitiatedShutdown")
        for name, schedule in list(self.schedules.items()):
            if self.clock() >= schedule["at_s"]:
                for instance_id in json.loads(schedule["Target"]["Input"])["InstanceIds"]:
                    if (found := self.vms.get(instance_id)) and found.state != "terminated":
                        self.end(found, "Client.UserInitiatedShutdown")
                del self.schedules[name]

    # Requests.

    def answer(self, service: str, action: str, fields: dict[str, Any]) -> Any:
        with self._lock:
            self.calls[action] += 1
            if self.outage:
                raise self.outage
            where = f"{action} {self._zone(fields)}" if action == "RunInstances" else action
            for key in (where, action):
                if self.errors[key]:
                    raise self.errors[key].pop(0)
            self.pass_time()
            words = re.sub("(?<!^)(?=[A-Z])", "_", action.replace("AWS", "Aws")).lower()
            work = getattr(self, f"_{service}_{words}", None)
            if work is None:
                raise AwsError("InvalidAction", 400, f"the fake does not know {service} {action}")
            return work(fields)

    def _zone(self, fields: Mapping[str, Any]) -> str:
        place = fields.get("Placement", {})
        return str(place.get("AvailabilityZoneId") or ZONES.get(place.get("AvailabilityZone", ""), "use1-az4"))

    def _sts_get_caller_identity(self, _: Any) -> Any:
        return {"Account": ACCOUNT, "UserId": "U", "Arn": f"arn:aws:iam::{ACCOUNT}:user/me"}

    def _ec2_describe_availability_zones(self, _: Any) -> Any:
        return {
            "availabilityZoneInfo": [
                {"zoneName": name, "zoneId": zone, "zoneState": "available", "regionName": REGION}
                for name, zone in ZONES.items()
            ]
        }

    def _ec2_describe_instance_type_offerings(self, fields: Any) -> Any:
        wanted = fields["Filter"][0]["Value"][0]
        zones = ZONES.values() if wanted in TYPES else ()
        rows = [{"instanceType": wanted, "location": zone, "locationType": fields["LocationType"]} for zone in zones]
        return {"instanceTypeOfferingSet": [row for row in rows if row["location"] not in self.without(wanted)]}

    def _ec2_describe_spot_price_history(self, fields: Any) -> Any:
        """Prices since `StartTime`, and of each zone the one that was in effect then; in no order."""
        [kind], [product] = fields["InstanceType"], fields["ProductDescription"]
        if product != "Linux/UNIX":
            raise AwsError("InvalidParameterValue", 400, f"no product {product}")
        start_s = datetime.fromisoformat(fields["StartTime"]).timestamp()
        rows = [row for row in self.spot_prices if row[0] == kind]
        before: dict[str, SpotPrice] = {}
        for row in sorted(rows, key=lambda row: row[3]):
            if row[3] <= start_s:
                before[row[1]] = row
        there = [row for row in rows if row[3] > start_s] + list(before.values())
        names = {zone: name for name, zone in ZONES.items()}
        return {
            "spotPriceHistorySet": [
                {
                    "instanceType": kind,
                    "availabilityZone": names[zone],
                    "productDescription": product,
                    "spotPrice": f"{usd:.6f}",
                    "timestamp": datetime.fromtimestamp(at_s, UTC).isoformat(),
                }
                for _, zone, usd, at_s in there
            ],
            "nextToken": "",
        }

    def without(self, machine_type: str) -> set[str]:
        """Zones that do not offer a type."""
        return {"use1-az2"} if machine_type.startswith("g6") else set()

    def _ec2_describe_images(self, fields: Any) -> Any:
        if fields.get("ImageId", [AMI]) != [AMI]:
            raise AwsError("InvalidAMIID.NotFound")
        disks = [{"deviceName": "/dev/sda1", "ebs": {"volumeSize": 75}}]
        return {
            "imagesSet": [
                {
                    "imageId": AMI,
                    "name": "Deep Learning Base 20261120",
                    "rootDeviceName": "/dev/sda1",
                    "creationDate": "2026-11-20T00:00:00.000Z",
                    "blockDeviceMapping": disks,
                    **self.image,
                }
            ]
        }

    def _ec2_describe_vpcs(self, _: Any) -> Any:
        return {"vpcSet": [{"vpcId": "vpc-1", "isDefault": True}]}

    def _ec2_describe_subnets(self, fields: Any) -> Any:
        if fields["SubnetId"][0] != "subnet-0123456789abcdef0":
            raise AwsError("InvalidSubnetID.NotFound")
        zone = {"availabilityZone": "us-east-1b", "availabilityZoneId": "use1-az6"}
        return {"subnetSet": [{"subnetId": fields["SubnetId"][0], "vpcId": "vpc-1", **zone}]}

    def _ec2_describe_security_groups(self, fields: Any) -> Any:
        name = fields["Filter"][0]["Value"][0]
        return {"securityGroupInfo": [{"groupId": self.groups[name], "groupName": name}] if name in self.groups else []}

    def _ec2_run_instances(self, fields: Any) -> Any:
        data = base64.b64decode(fields.get("UserData", ""))
        if len(data) > USER_DATA_BYTES:
            raise AwsError("InvalidParameterValue", 400, "User data is limited to 16384 bytes")
        zone, kind, token = self._zone(fields), fields["InstanceType"], fields["ClientToken"]
        if len(token) > 64:
            raise AwsError("InvalidParameterValue", 400, "ClientToken is too long")
        repeated = [vm for vm in self.vms.values() if vm.asked["ClientToken"] == token]
        if repeated:
            if repeated[0].asked != fields:
                raise AwsError("IdempotentParameterMismatch")
        else:
            self._check(fields, zone, kind)
            if fields.get("DryRun") == "true":
                raise AwsError("DryRunOperation", 412, "Request would have succeeded, but DryRun flag is set.")
            repeated = [self._make(fields, zone, data)]
        if self.lost_answers:
            self.lost_answers -= 1
            raise Lost
        return self._reservations(repeated)

    def _check(self, fields: Any, zone: str, kind: str) -> None:
        if kind not in TYPES or zone in self.without(kind):
            raise AwsError("Unsupported", 400, f"{kind} is not supported in {zone}")
        if (profile := fields["IamInstanceProfile"]["Name"]) not in self.profiles:
            raise AwsError("InvalidParameterValue", 400, f"Value ({profile}) for iamInstanceProfile.name is invalid")
        if fields["ImageId"] != AMI:
            raise AwsError("InvalidAMIID.NotFound")
        spot = "InstanceMarketOptions" in fields
        family = ("L-3819A6DF" if spot else "L-DB2E81BA") if kind.startswith("g") else "L-417A185B"
        used = sum(TYPES[vm.type] for vm in self.vms.values() if vm.spot == spot and vm.state != "terminated")
        if used + TYPES[kind] > self.quotas[family]:
            raise AwsError("MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded")

    def _make(self, fields: Any, zone: str, data: bytes) -> Vm:
        number = f"{next(self._numbers):017x}"
        specs = {spec["ResourceType"]: spec["Tag"] for spec in fields.get("TagSpecification", ())}
        tags = {kind: {tag["Key"]: tag["Value"] for tag in tags} for kind, tags in specs.items()}
        vm = Vm(
            id=f"i-{number}",
            zone=zone,
            type=fields["InstanceType"],
            spot="InstanceMarketOptions" in fields,
            tags=tags.get("instance", {}),
            created_s=self.clock(),
            asked=fields,
            user_data=data,
            on_shutdown=fields.get("InstanceInitiatedShutdownBehavior", "stop"),
            hidden=self.hides,
            dies_of=self.dies_of.get(zone, ""),
            hangs=self.hangs,
        )
        self.vms[vm.id] = vm
        self.volumes[f"vol-{number}"] = {"tags": tags.get("volume", {}), "created_s": self.clock(), "zone": zone}
        return vm

    def _ec2_describe_instances(self, fields: Any) -> Any:
        found = list(self.vms.values())
        if wanted := fields.get("InstanceId"):
            found = [vm for vm in found if vm.id in wanted]
            if not found or found[0].hidden:
                for vm in found:
                    vm.hidden -= 1
                raise AwsError("InvalidInstanceID.NotFound")
        for rule in fields.get("Filter", ()):
            assert rule["Name"].startswith("tag:"), rule
            assert len(rule["Value"]) <= 200
            found = [vm for vm in found if vm.tags.get(rule["Name"][4:]) in rule["Value"] and not vm.hidden]
        answer = self._reservations(found)
        for vm in found:
            if vm.state == "pending":
                if vm.dies_of:
                    self.end(vm, vm.dies_of)
                else:
                    vm.state = "running"
                    if self.inside:
                        threading.Thread(target=self.inside, args=(vm,), daemon=True).start()
            elif vm.state == "shutting-down" and not vm.hangs and not self.ends_refused:
                self.end(vm, "Client.UserInitiatedShutdown")
        return answer

    def _reservations(self, vms: list[Vm]) -> Any:
        return {"reservationSet": [{"instancesSet": [self._described(vm)]} for vm in vms]} | (
            {"instancesSet": [self._described(vm) for vm in vms]}
        )

    def _described(self, vm: Vm) -> dict[str, Any]:
        reason = {"stateReason": {"code": vm.reason[0], "message": vm.reason[1]}} if vm.reason[0] else {}
        name = next(name for name, zone in ZONES.items() if zone == vm.zone)
        return {
            "instanceId": vm.id,
            "instanceType": vm.type,
            "instanceState": {"code": 0, "name": vm.state},
            "launchTime": f"{datetime.fromtimestamp(vm.created_s, UTC):%Y-%m-%dT%H:%M:%S.000Z}",
            "placement": {"availabilityZone": name, "availabilityZoneId": vm.zone},
            "tagSet": [{"key": key, "value": value} for key, value in vm.tags.items()],
            **reason,
        }

    def _ec2_terminate_instances(self, fields: Any) -> Any:
        for instance_id in fields["InstanceId"]:
            if (vm := self.vms.get(instance_id)) is None:
                raise AwsError("InvalidInstanceID.NotFound")
            if self.ends_refused:
                continue
            if fields.get("SkipOsShutdown") == "true":
                vm.hangs = False
            if vm.state != "terminated":
                vm.state = "shutting-down"
        return {"instancesSet": []}

    def _ec2_create_tags(self, fields: Any) -> Any:
        vm = self.vms[fields["ResourceId"][0]]
        vm.tags |= {tag["Key"]: tag["Value"] for tag in fields["Tag"]}
        return {"return": "true"}

    def _ec2_get_console_output(self, fields: Any) -> Any:
        if (vm := self.vms.get(fields["InstanceId"])) is None or vm.state == "terminated":
            raise AwsError("InvalidInstanceID.NotFound")
        window = vm.console.encode()[-CONSOLE_BYTES:]
        return {"instanceId": vm.id, "output": base64.b64encode(window).decode()}

    def _ec2_describe_volumes(self, fields: Any) -> Any:
        assert fields["Filter"][1] == {"Name": "status", "Value": ["available"]}
        busy = {f"vol-{vm.id[2:]}" for vm in self.vms.values() if vm.state != "terminated"}
        free = {key: row for key, row in self.volumes.items() if key not in busy and row["tags"].get("rooflaunch")}
        return {
            "volumeSet": [
                {
                    "volumeId": key,
                    "createTime": f"{datetime.fromtimestamp(row['created_s'], UTC):%Y-%m-%dT%H:%M:%S.000Z}",
                    "availabilityZone": next(name for name, zone in ZONES.items() if zone == row["zone"]),
                    "tagSet": [{"key": name, "value": value} for name, value in row["tags"].items()],
                }
                for key, row in free.items()
            ]
        }

    def _ec2_delete_volume(self, fields: Any) -> Any:
        if self.volumes.pop(fields["VolumeId"], None) is None:
            raise AwsError("InvalidVolume.NotFound")
        return {"return": "true"}

    def _scheduler_create_schedule(self, fields: Any) -> Any:
        name, at = fields["Name"], re.fullmatch(r"at\((.*)\)", fields["ScheduleExpression"])
        if name in self.schedules:
            raise AwsError("ConflictException", 409, f"Schedule {name} already exists.")
        if fields["Target"]["RoleArn"] not in self.roles:
            message = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise AwsError("ValidationException", 400, message)
        assert at
        assert (fields["ActionAfterCompletion"], fields["FlexibleTimeWindow"]) == ("DELETE", {"Mode": "OFF"})
        at_s = datetime.fromisoformat(at[1]).replace(tzinfo=UTC).timestamp()
        self.schedules[name] = {**fields, "at_s": at_s}
        return {"ScheduleArn": f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/{name}"}

    def _scheduler_delete_schedule(self, fields: Any) -> Any:
        if self.schedules.pop(fields["Name"], None) is None:
            raise AwsError("ResourceNotFoundException", 404)
        return {}

    def _scheduler_list_schedules(self, fields: Any) -> Any:
        return {"Schedules": [{"Name": name} for name in self.schedules if name.startswith(fields["NamePrefix"])]}

    def _servicequotas_get_service_quota(self, fields: Any) -> Any:
        if fields["QuotaCode"] not in self.quotas:
            raise AwsError("NoSuchResourceException")
        return {"Quota": {"QuotaCode": fields["QuotaCode"], "Value": self.quotas[fields["QuotaCode"]]}}

    def _servicequotas_get_aws_default_service_quota(self, fields: Any) -> Any:
        return self._servicequotas_get_service_quota(fields)

    def _iam_get_instance_profile(self, fields: Any) -> Any:
        name = fields["InstanceProfileName"]
        if name not in self.profiles:
            raise AwsError("NoSuchEntity", 404)
        return {"InstanceProfile": {"InstanceProfileName": name, "Roles": [{"RoleName": name}]}}

    def _iam_get_role(self, fields: Any) -> Any:
        arn = f"arn:aws:iam::{ACCOUNT}:role/{fields['RoleName']}"
        if arn not in self.roles:
            raise AwsError("NoSuchEntity", 404)
        trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": self.trusted}}]}
        role = {"RoleName": fields["RoleName"], "Arn": arn, "AssumeRolePolicyDocument": quote(json.dumps(trust))}
        return {"Role": role}

    def _ecr_describe_repositories(self, fields: Any) -> Any:
        [name] = fields["repositoryNames"]
        if name not in self.repositories:
            raise AwsError("RepositoryNotFoundException")
        return {"repositories": [{"repositoryUri": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{name}"}]}

    def _ssm_get_parameter(self, fields: Any) -> Any:
        if fields["Name"] not in self.parameters:
            raise AwsError("ParameterNotFound")
        return {"Parameter": {"Name": fields["Name"], "Value": self.parameters[fields["Name"]]}}


class _Handler(Answering):
    """The wire protocols: EC2's and STS's queries with XML, the JSON of the others."""

    fake: FakeAws
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.content()
        scope = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", self.headers.get("Authorization", ""))
        service = scope[1] if scope else "ec2"
        as_json = service not in ("ec2", "sts", "iam")
        try:
            action, fields = self._request(service, body)
            answer = self.fake.answer(service, action, fields)
        except Lost:
            self.close_connection = True
            return
        except AwsError as error:
            content, headers = _error(error, as_json=as_json)
            self.send(error.status, content, **headers)
        else:
            content = json.dumps(answer).encode() if as_json else _xml(service, action, answer)
            self.send(200, content)

    def do_GET(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _request(self, service: str, body: bytes) -> tuple[str, dict[str, Any]]:
        if service == "scheduler":
            parts = urlsplit(self.path)
            action = {"POST": "CreateSchedule", "DELETE": "DeleteSchedule", "GET": "ListSchedules"}[self.command]
            name = {"Name": unquote(parts.path.rpartition("/")[2])} if self.command != "GET" else {}
            return action, {**dict(parse_qsl(parts.query)), **(json.loads(body) if body else {}), **name}
        if target := self.headers.get("X-Amz-Target"):
            return target.rpartition(".")[2], json.loads(body)
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return fields.pop("Action"), _nested(fields)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.fake.clock() if timestamp is None else timestamp)


def _error(error: AwsError, *, as_json: bool) -> tuple[bytes, dict[str, str]]:
    if error.body:
        return error.body.encode(), {}
    if as_json:
        document = {"__type": error.code, "message": error.message, "Message": error.message}
        return json.dumps(document).encode(), {"x-amzn-ErrorType": error.code}
    inner = f"<Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
    text = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>r</RequestID></Response>"
    return text.encode(), {}


def _xml(service: str, action: str, answer: Mapping[str, Any]) -> bytes:
    if service in ("sts", "iam"):
        inner = _inner(answer, "member")
        return f"<{action}Response><{action}Result>{inner}</{action}Result></{action}Response>".encode()
    return f"<{action}Response>{_inner(answer)}</{action}Response>".encode()


def _inner(value: Any, item: str = "item") -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{name}>{_inner(part, item)}</{name}>" for name, part in value.items())
    if isinstance(value, list):
        return "".join(f"<{item}>{_inner(part, item)}</{item}>" for part in value)
    return escape(str(value).lower() if isinstance(value, bool) else str(value))


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """`A.1.B=x` as {"A": [{"B": "x"}]}."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        parts, node = name.split("."), tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = value
    return _lists(tree)


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdigit() for key in node):
        return [_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _lists(value) for key, value in node.items()}

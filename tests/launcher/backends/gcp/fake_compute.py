"""A Compute Engine on a loopback port, with state and scripted faults; what it does not know it answers with 501.

The real google-cloud-compute client talks to it through ROOFLAUNCH_COMPUTE_ENDPOINT, and a VM through plain HTTP. It
refuses what the real one refuses. Times are real seconds, and 0 unless asked for.
"""

import json
import re
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from launcher.backends.gcp import gpus
from tests.launcher.backends.gcp.compute_bodies import (
    IMAGE_FAMILIES,
    ZONE,
    RefusalError,
    check_body,
    items_of,
    plain_body,
    quota_error,
    stockout_error,
)
from tests.ports import Answering, Fake

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
METRICS = sorted({gpu.quota for gpu in gpus.load().values()})
PLENTY = 1000.0
# What the real one waits; here nothing that is under way takes long.
WAIT_S = 2.0
JOIN_S = 20.0


class Vm:
    """One instance, and what its guest may see and do. `gone` is set once it exists no longer."""

    def __init__(self, project: str, zone: str, body: Mapping[str, Any], instance_id: int, *, created_s: float) -> None:
        self.project = project
        self.zone = zone
        self.body: dict[str, Any] = dict(body)
        self.name: str = body["name"]
        self.instance_id = instance_id
        self.metadata: dict[str, str] = {each["key"]: each["value"] for each in items_of(body)}
        self.labels: dict[str, str] = dict(body.get("labels", {}))
        self.guest_attributes: dict[str, dict[str, str]] = {}
        self.status = "PROVISIONING"
        self.created_s = round(created_s, 3)
        # From its start until it stops.
        self.deadline_s: float | None = None
        self.stopped_s: float | None = None
        self.cpu_platform = "Intel Broadwell"
        self.physical_host: str | None = None
        self.preempted = False
        self.gone = threading.Event()
        self._serial = b""

    @property
    def machine_type(self) -> str:
        return str(self.body["machineType"].rpartition("/")[2])

    @property
    def spot(self) -> bool:
        return bool(self.body.get("scheduling", {}).get("provisioningModel") == "SPOT")

    @property
    def limit_s(self) -> int:
        return int(self.body.get("scheduling", {}).get("maxRunDuration", {}).get("seconds", 0))

    def write_serial(self, text: str) -> None:
        self._serial += text.encode()

    def serial(self, start: int = 0) -> tuple[str, int]:
        """The text from byte `start` on, and where the next begins."""
        text = self._serial
        return text[start:].decode(errors="replace"), len(text)

    def document(self, url: str) -> dict[str, Any]:
        """As `instances.get` answers."""
        base = f"{url}/compute/v1/projects/{self.project}/zones/{self.zone}"
        document = {
            **self.body,
            "id": str(self.instance_id),
            "creationTimestamp": _iso(self.created_s),
            "zone": base,
            "machineType": f"{base}/machineTypes/{self.machine_type}",
            "status": self.status,
            "cpuPlatform": self.cpu_platform,
        }
        if self.stopped_s is not None:
            document["lastStopTimestamp"] = _iso(self.stopped_s)
        status: dict[str, Any] = {"physicalHost": self.physical_host} if self.physical_host else {}
        # A VM that is stopped has no end any more.
        if self.deadline_s is not None and self.status in ("RUNNING", "STOPPING"):
            status["scheduling"] = {"terminationTimestamp": _iso(self.deadline_s)}
        return {**document, "resourceStatus": status} if status else document


class Clock:
    """Time passes only while somebody sleeps; `on_sleep` is called with the new time. `s`: seconds since 1970."""

    def __init__(self) -> None:
        self.s = 1_800_000_000.0
        self.slept_s = 0.0
        self.on_sleep: Callable[[float], None] = lambda _: None

    def now(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds
        self.slept_s += seconds
        self.on_sleep(self.s)


@dataclass(kw_only=True)
class _Operation:
    name: str
    kind: str
    project: str
    zone: str
    target: str
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    endless: bool = False

    def document(self, url: str) -> dict[str, Any]:
        base = f"{url}/compute/v1/projects/{self.project}/zones/{self.zone}"
        document: dict[str, Any] = {
            "name": self.name,
            "operationType": self.kind,
            "zone": base,
            "targetLink": f"{base}/{self.target}",
            "status": "DONE" if self.done.is_set() else "RUNNING",
        }
        if self.done.is_set() and self.errors:
            document["error"] = {"errors": self.errors}
        return document


@dataclass(kw_only=True)
class _Fault:
    """What happens to the inserts of a zone; `is_once`: to the next of them alone. `lives`: its VM runs all the same.

    `is_endless`: its operation never ends; `is_lost`: it is done, answered with 503, and later with 409; `is_taken`:
    its VM is taken back at once.
    """

    errors: list[dict[str, Any]] = field(default_factory=list)
    lives: bool = False
    is_once: bool = False
    is_endless: bool = False
    is_lost: bool = False
    is_taken: bool = False


@dataclass(kw_only=True)
class _Refused:
    """The next `times` requests that match are refused before anything is done."""

    match: re.Pattern[str]
    error: tuple[int, str, str, str]
    times: int


class FakeCompute(Fake):
    """Compute Engine for every project. `vm` is called in a thread of its own, the guest, once its VM is RUNNING.

    `grace_s`: from the notice of a preemption to its end; `clock`: the cloud's own, which dates its answers and what it
    makes.
    """

    def __init__(
        self,
        *,
        vm: Callable[[Vm], None] | None = None,
        grace_s: float = 0.0,
        page_size: int = 500,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.sent: list[tuple[str, str, bytes]] = []
        self.all_vms: list[Vm] = []
        self.tokens: set[str] = set()
        self.guest_errors: list[str] = []
        self._guest = vm
        self._grace_s = grace_s
        self._page_size = page_size
        self._lock = threading.RLock()
        self._vms: dict[tuple[str, str], Vm] = {}
        self._disks: dict[tuple[str, str], dict[str, Any]] = {}
        self._operations: dict[str, _Operation] = {}
        self._requests: dict[str, _Operation] = {}
        self._conflicts: set[str] = set()
        self._faults: dict[str, list[_Fault]] = {}
        self._refused: list[_Refused] = []
        self._delete_errors: list[int] = []
        self._quotas: dict[tuple[str, str], tuple[float | None, float]] = {}
        self._hidden_quotas: dict[tuple[str, str], float] = {}
        self._counter = 0
        self._timers: list[threading.Timer] = []
        self._threads: list[threading.Thread] = []
        self._outages: set[str] = set()
        super().__init__(_Handler)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._lock:
            threads = list(self._threads)
            for machine in self._vms.values():
                machine.gone.set()
        for timer in self._timers:
            timer.cancel()
        for thread in threads:
            thread.join(JOIN_S)
        super().__exit__(kind, *rest)
        if kind is None:
            assert not self.guest_errors, "\n".join(self.guest_errors)

    # What a test sees.

    @property
    def instances(self) -> list[Vm]:
        """The VMs that exist now."""
        with self._lock:
            return list(self._vms.values())

    @property
    def disks(self) -> list[str]:
        """The names of the disks that exist now."""
        with self._lock:
            return [name for _, name in self._disks]

    def vm(self, name: str) -> Vm:
        """The one VM of that name, existing or gone."""
        with self._lock:
            return next(each for each in reversed(self.all_vms) if each.name == name)

    def count(self, method: str) -> int:
        """How many requests came whose `METHOD path` contains `method`, a regular expression."""
        with self._lock:
            return sum(bool(re.search(method, each)) for each in self.calls)

    # What a test scripts.

    def set_quota(self, where: str, metric: str, limit: float | None, usage: float = 0.0) -> None:
        """What the lookup tells of a region, or of `global`: plenty unless set, nothing if None. Inserts ignore it."""
        self._quotas[where, metric] = (limit, usage)

    def fail(self, zone: str, *errors: dict[str, Any], **how: bool) -> None:
        """The inserts of a zone end with these errors of their operation. `how`: fields of `_Fault`."""
        with self._lock:
            self._faults.setdefault(zone, []).append(_Fault(errors=list(errors), **how))

    def stockout(self, zone: str, zones_available: Iterable[str] = ()) -> None:
        named = ",".join(zones_available)
        self.fail(zone, stockout_error(zone, zones_available=named, with_details=bool(named)))

    def endless_operation(self, zone: str, *, lives: bool = True) -> None:
        """The insert's operation never ends; the VM runs all the same, or never leaves PROVISIONING."""
        self.fail(zone, is_endless=True, lives=lives)

    def hide_quota(self, region: str, metric: str, limit: float = 0.0) -> None:
        """A limit that only an insert finds out: the lookup does not show it."""
        self._hidden_quotas[region, metric] = limit

    def preempt(self, name: str) -> None:
        """Take a VM back: notice now, the end after `grace_s`."""
        with self._lock:
            machine = self.vm(name)
            machine.preempted = True
            machine.status = "STOPPING"
            operation = self._operation("compute.instances.preempted", machine.project, machine.zone, machine.name)
            operation.done.set()
        if not self._grace_s:
            self._remove(machine)
            return
        timer = threading.Timer(self._grace_s, self._remove, [machine])
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def kill(self, name: str) -> None:
        """The VM is gone at once, as if somebody had deleted it."""
        self._remove(self.vm(name))

    def delete_fails(self, times: int, *, status: int = 0) -> None:
        """The next deletions of a VM end with an error of their operation, or are answered with `status`."""
        self._delete_errors += [status] * times

    def burst(self, status: int, times: int, match: str = "") -> None:
        """The next requests (those whose `METHOD path` matches) are answered with `status`, such as 503 or 429."""
        reason = "rateLimitExceeded" if status in (403, 429) else "backendError"
        self.refuse(status, f"busy ({status})", reason=reason, match=match, times=times)

    def outage(self, zone: str, *, direct: bool = True, fails: bool = False) -> None:
        """Lists over all zones lack this one and say so, or fail whole (`fails`).

        `direct`: the zone does not answer by itself either.
        """
        self._outages.add(zone)
        if direct:
            self.burst(503, 10**6, match=f"/zones/{zone}/")
        if fails:
            self.burst(503, 10**6, match="/aggregated/")

    def outage_ends(self) -> None:
        self._outages.clear()
        self._refused.clear()

    def refuse(
        self, status: int, message: str, *, reason: str = "forbidden", info: str = "", match: str = "", times: int = 1
    ) -> None:
        """Any other answer to the next requests that match."""
        self._refused.append(_Refused(match=re.compile(match), error=(status, message, reason, info), times=times))

    def add_vm(
        self,
        name: str,
        zone: str = "us-central1-a",
        *,
        project: str = "test-project",
        labels: Mapping[str, str] = {},
        age_s: float = 0.0,
        limit_s: int = 3600,
    ) -> Vm:
        """A VM that has been running for `age_s` and has no guest, with its disk; `limit_s` 0: without a limit."""
        body = {**plain_body(name, zone), "labels": dict(labels)}
        if limit_s:
            body["scheduling"]["maxRunDuration"] = {"seconds": str(limit_s)}
        check_body(body, zone)
        machine = self._create(project, zone, body, created_s=self.clock() - age_s)
        if not limit_s:
            del body["scheduling"]["maxRunDuration"]
            machine.body = body
        machine.status = "RUNNING"
        machine.deadline_s = machine.created_s + limit_s if limit_s else None
        return machine

    def stop(self, name: str, *, age_s: float = 3600.0) -> Vm:
        """A VM was stopped long ago, by host maintenance or by somebody: its disk stays, and nobody ends it."""
        machine = self.vm(name)
        machine.status, machine.deadline_s = "TERMINATED", None
        machine.stopped_s = self.clock() - age_s
        return machine

    def start_again(self, name: str) -> Vm:
        """As the cloud does it with a VM that its host stopped: the same disk, the script from its beginning."""
        machine = self.vm(name)
        assert machine.body["scheduling"]["automaticRestart"] is True
        machine.deadline_s = round(self.clock(), 3) + machine.limit_s
        machine.status = "RUNNING"
        return machine

    def add_disk(
        self,
        name: str,
        zone: str = "us-central1-a",
        *,
        labels: Mapping[str, str] = {},
        age_s: float = 0.0,
        users: Sequence[str] = (),
    ) -> None:
        """A disk, which no VM has unless `users` are named."""
        created_at = _iso(self.clock() - age_s)
        with self._lock:
            self._disks[zone, name] = {
                "name": name,
                "sizeGb": "50",
                "labels": dict(labels),
                "users": list(users),
                "creationTimestamp": created_at,
            }

    # Requests.

    def answer(self, method: str, url: str, content: bytes, token: str) -> tuple[int, dict[str, Any]]:
        """The status and the document for one request."""
        split = urllib.parse.urlsplit(url)
        path = urllib.parse.unquote(split.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        try:
            with self._lock:
                self.calls.append(f"{method} {path}")
                if token:
                    self.tokens.add(token)
                self._refuse_scripted(f"{method} {path}")
                self.sent.append((method, url, content))
            return 200, self._route(method, path, query, content)
        except RefusalError as error:
            return error.status, error.document()
        except Exception:  # noqa: BLE001 - a fault of the fake must not look like one of the cloud
            return 501, RefusalError(501, traceback.format_exc(), "notImplemented").document()

    def _refuse_scripted(self, call: str) -> None:
        for each in self._refused:
            if each.times and each.match.search(call):
                each.times -= 1
                raise RefusalError(*each.error)

    def _route(self, method: str, path: str, query: dict[str, str], content: bytes) -> dict[str, Any]:
        for wanted, pattern, handler in ROUTES:
            if wanted == method and (found := pattern.fullmatch(path)):
                return handler(self, found.groupdict(), query, content)
        raise RefusalError(501, f"the fake knows no {method} {path}", "notImplemented")

    def _insert(self, names: dict[str, str], query: dict[str, str], content: bytes) -> dict[str, Any]:
        body = json.loads(content)
        project, zone = names["project"], names["zone"]
        check_body(body, zone)
        request_id = query.get("requestId", "")
        if not UUID.fullmatch(request_id) or not request_id.strip("0-"):
            raise RefusalError(400, f"Invalid value for field 'requestId': '{request_id}'")
        with self._lock:
            self.bodies.append(body)
            if request_id in self._requests:
                earlier = self._requests[request_id]
                if request_id in self._conflicts:
                    raise _conflict(project, zone, body["name"])
                return earlier.document(self.url)
            if (zone, body["name"]) in self._vms:
                raise _conflict(project, zone, body["name"])
            return self._begin(project, zone, body, request_id)

    def _begin(self, project: str, zone: str, body: dict[str, Any], request_id: str) -> dict[str, Any]:
        fault = self._next_fault(zone)
        operation = self._operation("insert", project, zone, body["name"])
        self._requests[request_id] = operation
        operation.errors, operation.endless = fault.errors or self._quota_errors(zone), fault.is_endless
        if not operation.endless:
            operation.done.set()
        if operation.errors and not fault.lives:
            return operation.document(self.url)
        machine = self._create(project, zone, body)
        if fault.is_taken:
            machine.status = "RUNNING"
            self.preempt(machine.name)
        elif fault.lives or not fault.is_endless:
            self._start(machine)
        if fault.is_lost:
            self._conflicts.add(request_id)
            raise RefusalError(503, "The service is currently unavailable.", "backendError")
        return operation.document(self.url)

    def _wait(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        with self._lock:
            operation = self._operations.get(names["operation"])
        if operation is None or operation.zone != names["zone"]:
            raise _missing(names, f"operations/{names['operation']}")
        operation.done.wait(0.0 if operation.endless else WAIT_S)
        return operation.document(self.url)

    def _list_operations(self, names: dict[str, str], query: dict[str, str], _: bytes) -> dict[str, Any]:
        wanted = re.fullmatch(r'operationType="([\w.]+)"', query.get("filter", ""))
        if not wanted:
            raise RefusalError(501, f"the fake knows no filter {query.get('filter')}", "notImplemented")
        with self._lock:
            found = [each for each in self._operations.values() if each.zone == names["zone"]]
        page, following = self._page([each for each in found if each.kind == wanted[1]], query)
        return {"items": [each.document(self.url) for each in page], **following}

    def _get(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        return self._find(names).document(self.url)

    def _delete(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        with self._lock:
            machine = self._find(names)
            operation = self._operation("delete", machine.project, machine.zone, machine.name)
            failure = self._delete_errors.pop(0) if self._delete_errors else None
            if failure:
                raise RefusalError(failure, f"delete failed ({failure})", "backendError")
            if failure == 0:
                operation.errors = [{"code": "INTERNAL_ERROR", "message": "Internal error."}]
                operation.done.set()
                return operation.document(self.url)
            machine.status = "STOPPING"
            answer = operation.document(self.url)
        self._remove(machine)
        operation.done.set()
        return answer

    def _serial(self, names: dict[str, str], query: dict[str, str], _: bytes) -> dict[str, Any]:
        machine = self._find(names)
        if query.get("port") != "1":
            raise RefusalError(501, "the fake has one serial port", "notImplemented")
        if machine.status == "PROVISIONING":
            raise RefusalError(400, f"The resource '{_path(names)}' is not ready", "resourceNotReady")
        text, following = machine.serial(int(query.get("start", "0")))
        return {"contents": text, "next": str(following)}

    def _guest_attributes(self, names: dict[str, str], query: dict[str, str], _: bytes) -> dict[str, Any]:
        machine = self._find(names)
        namespace = query.get("queryPath", "").strip("/")
        if machine.metadata.get("enable-guest-attributes") != "TRUE":
            raise RefusalError(400, "Guest attributes endpoint access is disabled.", "invalid")
        values = dict(machine.guest_attributes.get(namespace, {}))
        if not values:
            raise RefusalError(404, f"The resource '{namespace}/' of type 'Guest Attribute' was not found.", "notFound")
        items = [{"namespace": namespace, "key": key, "value": value} for key, value in values.items()]
        return {"queryPath": f"{namespace}/", "queryValue": {"items": items}}

    def _labelled(self, kind: str, project: str, query: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """Zones and documents of what has the label that the filter names."""
        wanted = re.fullmatch(r"labels\.([\w-]+)=([\w-]+)", query.get("filter", ""))
        if not wanted:
            raise RefusalError(501, f"the fake knows no filter {query.get('filter')}", "notImplemented")
        with self._lock:
            found = (
                [(vm.zone, vm.document(self.url)) for vm in self._vms.values() if vm.project == project]
                if kind == "instances"
                else [(zone, {**disk, "zone": f"/zones/{zone}"}) for (zone, _), disk in self._disks.items()]
            )
        return [pair for pair in found if pair[1].get("labels", {}).get(wanted[1]) == wanted[2]]

    def _list(self, names: dict[str, str], query: dict[str, str], _: bytes) -> dict[str, Any]:
        found = self._labelled(names["kind"], names["project"], query)
        page, following = self._page([document for zone, document in found if zone == names["zone"]], query)
        return {"items": page, **following}

    def _aggregated(self, names: dict[str, str], query: dict[str, str], _: bytes) -> dict[str, Any]:
        """Every zone has an entry, and those without anything a warning instead."""
        kind = names["kind"]
        labelled = self._labelled(kind, names["project"], query)
        page, following = self._page([pair for pair in labelled if pair[0] not in self._outages], query)
        items: dict[str, Any] = {"zones/asia-east1-b": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}}}
        for zone, document in page:
            items.setdefault(f"zones/{zone}", {}).setdefault(kind, []).append(document)
        silent = [f"projects/my-project/zones/{zone}" for zone in self._outages]
        return {"items": items, "unreachables": silent, **following}

    def _page(self, found: list[Any], query: dict[str, str]) -> tuple[list[Any], dict[str, str]]:
        start = int(query.get("pageToken", "0"))
        end = start + min(int(query.get("maxResults", "500")), self._page_size)
        return found[start:end], {"nextPageToken": str(end)} if end < len(found) else {}

    def _delete_disk(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        key = (names["zone"], names["disk"])
        with self._lock:
            if key not in self._disks:
                raise _missing(names, f"disks/{names['disk']}")
            if self._disks[key]["users"]:
                raise RefusalError(400, f"The disk '{names['disk']}' is in use", "resourceInUseByAnotherResource")
            del self._disks[key]
            operation = self._operation("delete", names["project"], names["zone"], names["disk"])
        operation.done.set()
        return operation.document(self.url)

    def _region(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        region = names["region"]
        if not ZONE.fullmatch(f"{region}-a"):
            raise _missing(names, f"regions/{region}")
        metrics = [*METRICS, *(f"PREEMPTIBLE_{each}" for each in METRICS)]
        return {"name": region, "quotas": self._quota_rows(region, metrics)}

    def _project(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        quotas = self._quota_rows("global", ["GPUS_ALL_REGIONS"])
        return {"name": names["project"], "quotas": quotas}

    def _image(self, names: dict[str, str], _: dict[str, str], __: bytes) -> dict[str, Any]:
        if (names["project"], names["family"]) not in IMAGE_FAMILIES:
            raise _missing(names, f"global/images/family/{names['family']}")
        return {"name": f"{names['family']}-v20261101", "family": names["family"]}

    # State.

    def _next_fault(self, zone: str) -> _Fault:
        """The first that was scripted and is not used up."""
        faults = self._faults.get(zone) or [_Fault()]
        return faults.pop(0) if faults[0].is_once else faults[0]

    def _operation(self, kind: str, project: str, zone: str, target: str) -> _Operation:
        with self._lock:
            self._counter += 1
            name = f"operation-{self._counter}"
            where = f"instances/{target}"
            made = _Operation(name=name, kind=kind, project=project, zone=zone, target=where)
            self._operations[name] = made
        return made

    def _create(self, project: str, zone: str, body: dict[str, Any], *, created_s: float | None = None) -> Vm:
        with self._lock:
            self._counter += 1
            created_s = self.clock() if created_s is None else created_s
            machine = Vm(project, zone, body, 10**18 + self._counter, created_s=created_s)
            self._vms[zone, machine.name] = machine
            self.all_vms.append(machine)
            labels = body["disks"][0]["initializeParams"].get("labels", {})
            users = [f"{self.url}/zones/{zone}/instances/{machine.name}"]
            self.add_disk(machine.name, zone, labels=labels, age_s=self.clock() - created_s, users=users)
        return machine

    def _start(self, machine: Vm) -> None:
        if machine.gone.is_set():
            return
        machine.status = "RUNNING"
        limit_s = machine.limit_s
        machine.deadline_s = round(self.clock(), 3) + limit_s if limit_s else None
        if self._guest is not None:
            thread = threading.Thread(target=self._run_guest, args=(machine,), name=machine.name, daemon=True)
            with self._lock:
                self._threads.append(thread)
            thread.start()

    def _run_guest(self, machine: Vm) -> None:
        assert self._guest is not None
        try:
            self._guest(machine)
        except Exception:  # noqa: BLE001 - told at the end
            self.guest_errors.append(f"guest of {machine.name}: {traceback.format_exc()}")

    def _remove(self, machine: Vm) -> None:
        with self._lock:
            if self._vms.get((machine.zone, machine.name)) is machine:
                del self._vms[machine.zone, machine.name]
                if machine.body["disks"][0].get("autoDelete"):
                    self._disks.pop((machine.zone, machine.name), None)
            machine.status = "TERMINATED"
        machine.gone.set()

    def _find(self, names: dict[str, str]) -> Vm:
        with self._lock:
            found = self._vms.get((names["zone"], names["instance"]))
        if found is None or found.project != names["project"]:
            raise RefusalError(404, f"The resource '{_path(names)}' was not found", "notFound")
        return found

    def _quota_errors(self, zone: str) -> list[dict[str, Any]]:
        """Each VM takes one GPU, of standard or of preemptible quota, where a limit is hidden in the region."""
        region = zone.rpartition("-")[0]
        hidden = {metric: limit for (where, metric), limit in self._hidden_quotas.items() if where == region}
        there = sum(vm.zone.startswith(f"{region}-") for vm in self._vms.values())
        exceeded = hidden and there + 1 > sum(hidden.values())
        return [quota_error(region, min(hidden, key=len), sum(hidden.values()))] if exceeded else []

    def _quota_rows(self, where: str, metrics: Iterable[str]) -> list[dict[str, Any]]:
        told = {metric: self._quotas.get((where, metric), (PLENTY, 0.0)) for metric in metrics}
        return [
            {"metric": metric, "limit": limit, "usage": usage}
            for metric, (limit, usage) in told.items()
            if limit is not None
        ]


def _iso(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")


def _path(names: Mapping[str, str]) -> str:
    return f"projects/{names['project']}/zones/{names['zone']}/instances/{names['instance']}"


def _missing(names: Mapping[str, str], what: str) -> RefusalError:
    zone = f"zones/{names['zone']}/" if "zone" in names and not what.startswith("zones/") else ""
    return RefusalError(404, f"The resource 'projects/{names['project']}/{zone}{what}' was not found", "notFound")


def _conflict(project: str, zone: str, name: str) -> RefusalError:
    path = f"projects/{project}/zones/{zone}/instances/{name}"
    return RefusalError(409, f"The resource '{path}' already exists", "alreadyExists")


_PROJECT = r"/compute/v1/projects/(?P<project>[^/]+)"
_ZONE = _PROJECT + r"/zones/(?P<zone>[^/]+)"
_INSTANCE = _ZONE + r"/instances/(?P<instance>[^/]+)"
_Handling = Callable[[FakeCompute, dict[str, str], dict[str, str], bytes], dict[str, Any]]
ROUTES: tuple[tuple[str, re.Pattern[str], _Handling], ...] = (
    ("POST", re.compile(_ZONE + "/instances"), FakeCompute._insert),
    ("GET", re.compile(_ZONE + "/(?P<kind>instances|disks)"), FakeCompute._list),
    ("GET", re.compile(_INSTANCE), FakeCompute._get),
    ("DELETE", re.compile(_INSTANCE), FakeCompute._delete),
    ("GET", re.compile(_INSTANCE + "/serialPort"), FakeCompute._serial),
    ("GET", re.compile(_INSTANCE + "/getGuestAttributes"), FakeCompute._guest_attributes),
    ("GET", re.compile(_PROJECT + "/aggregated/(?P<kind>instances|disks)"), FakeCompute._aggregated),
    ("DELETE", re.compile(_ZONE + "/disks/(?P<disk>[^/]+)"), FakeCompute._delete_disk),
    ("GET", re.compile(_ZONE + "/operations"), FakeCompute._list_operations),
    ("POST", re.compile(_ZONE + "/operations/(?P<operation>[^/]+)/wait"), FakeCompute._wait),
    ("GET", re.compile(_PROJECT + "/regions/(?P<region>[^/]+)"), FakeCompute._region),
    ("GET", re.compile(_PROJECT), FakeCompute._project),
    ("GET", re.compile(_PROJECT + "/global/images/family/(?P<family>[^/]+)"), FakeCompute._image),
)


class _Handler(Answering):
    fake: FakeCompute
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        status, document = self.fake.answer(self.command, self.path, self.content(), token)
        self.send(status, json.dumps(document), Content_Type="application/json; charset=UTF-8")

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.fake.clock() if timestamp is None else timestamp)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _serve

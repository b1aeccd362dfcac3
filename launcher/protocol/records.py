"""Records of a launch in its bucket, and their format. Any machine can find, follow and end the launch by its records.

    scripts/<sha256>.tar.gz        by the launcher: the files of a user's own script
    launches/<name>/request.json   by the launcher, before the VM exists
    launches/<name>/lease-<n>.json by the VM: which agent works; created only if absent; the highest <n> counts
    launches/variables/<name>.json by the launcher, after the request: the `--env` of a script; emptied at the end
    launches/<name>/status.json    by the VM, again and again: its heartbeat
    launches/<name>/result.json    by the VM, once, after its bundles
    launches/<name>/startup.log    by the VM, on any exit
    runs/<run_id>/…                the bundles, each with MANIFEST.json last

A launch has the name of its VM and may leave several bundles (`--repeats`). No document holds a credential, unless its
user names one as a variable of a script.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from workload.contract.errors import BundleError, UsageError
from workload.contract.spec import RunSpec
from workload.contract.text import counted, si

LAUNCHES = "launches/"
RUNS = "runs/"
# Threads that read records, one record at a time: --all of 10,000 launches has 20,000 records.
READERS = 32
# Names of launches: a prefix of ours, and what Compute Engine allows in the name of an instance.
NAME = re.compile(r"rooflaunch-[a-z0-9-]{1,51}[a-z0-9]")
# End of a launch's name, after the label: the time of the launch, and six random digits that make the name unique.
STAMP = re.compile(r"-(\d{8})-(\d{6})-[0-9a-f]{6}$")
# Ids of runs appear in commands to copy, so they must be one word in every shell, and neither an option nor a path.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}")
# Names of cloud resources and addresses of images must also be one word.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,511}")
# Address of a launch's bundles and records: gs:// or s3://BUCKET/PREFIX, or an absolute path without control
# characters.
STORE = re.compile(r"[a-z][a-z0-9]*://[A-Za-z0-9][A-Za-z0-9._/+-]{0,511}|/[^\x00-\x1f\x7f-\x9f]{0,1023}")
# A VM lives for 120 days at most: https://cloud.google.com/compute/docs/instances/limit-vm-runtime
MAX_LIMIT_S = 120 * 86400
# Larger than any count of GPUs, number of attempts and exit code: a larger value means a damaged record.
MAX_COUNT = 10_000
# Largest archive of a script: code and small files. Data is passed by --data.
MAX_ARCHIVE_BYTES = 50_000_000
# Content of a variables object once its launch has ended.
NO_VARIABLES = b"{}"
SCHEMA_VERSION = 1
# Objects with the variables of scripts: below a prefix of their own, so that one short listing finds them all.
VARIABLES = f"{LAUNCHES}variables/"
# Larger than any cost of a launch, and than any price per hour.
MAX_USD = 1e6
SHOWN_VALUE = 60


class LaunchPhase(StrEnum):
    """Phases of a launch, in order. The VM's clock gives the time of each phase except the first phase."""

    REQUESTED = "requested"
    BOOTED = "booted"
    DRIVER_READY = "driver_ready"
    DOCKER_READY = "docker_ready"
    IMAGE_PULLED = "image_pulled"
    RUN_STARTED = "run_started"
    RUN_ENDED = "run_ended"
    PROFILE_STARTED = "profile_started"
    PROFILE_ENDED = "profile_ended"
    UPLOADED = "uploaded"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Price:
    """USD per hour of a VM with its GPUs, of its disk and of its external address; `read`: date of the price list.

    Older records lack the prices of disk and address, which were not counted. A price given by the user includes both.
    """

    usd_per_h: float
    source: str
    read: str
    disk_usd_per_h: float | None = None
    address_usd_per_h: float | None = None

    @property
    def whole_usd_per_h(self) -> float:
        """USD per hour of the VM, its disk and its address, as far as their prices are known."""
        return self.usd_per_h + (self.disk_usd_per_h or 0.0) + (self.address_usd_per_h or 0.0)

    @property
    def uncounted(self) -> str:
        """Names of costs that are not included."""
        return "traffic and tax" if self.disk_usd_per_h is not None else "disk, address, traffic and tax"

    def usd(self, seconds: float) -> float:
        """Cost of this many seconds, in USD."""
        return self.whole_usd_per_h * seconds / 3600


@dataclass(frozen=True, kw_only=True)
class _Document:
    """JSON document with a schema version; readers ignore unknown fields."""

    def to_bytes(self) -> bytes:
        """Document as JSON text in bytes, to be stored."""
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Parse a stored document. Raises `BundleError` if it is invalid, or of another schema.

        Other programs wrote the content, so each known field must follow its rule. Unknown fields are ignored.
        """
        kind = cls.__name__.lower()
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _unreadable(kind, f"no JSON ({error})") from error
        if not isinstance(document, dict):
            raise _unreadable(kind, "no JSON object")
        if (version := document.get("schema_version")) != SCHEMA_VERSION:
            raise BundleError(
                f"a launch's record has schema {version}; this version of rooflaunch reads schema {SCHEMA_VERSION}",
                hint="use the version that wrote the record",
            )
        known = {item.name: document[item.name] for item in fields(cls) if item.name in document}
        for item in fields(cls):
            if item.name not in known and item.default is MISSING and item.default_factory is MISSING:
                raise _unreadable(kind, f"'{item.name}' is missing")
        for name, value in known.items():
            rule = RULES[name]
            if not rule.holds(value):
                raise _unreadable(kind, _broken(name, rule.wanted, value))
        return cls(**known)


def _unreadable(kind: str, why: str) -> BundleError:
    return BundleError(f"not a readable {kind} of a launch: {why}", hint="launch again")


def _broken(name: str, wanted: str, value: object) -> str:
    shown = repr(value)
    return f"{name} must be {wanted}; got {shown if len(shown) <= SHOWN_VALUE else shown[:SHOWN_VALUE] + '…'}"


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A run: `spec` with `repeats` 1, its block, and its position within the block, both from 1.

    `run_key`: hash of the run's options, block, code and place, 16 hex digits; a run whose sealed bundle
    has this key is not measured again. A launch that is no sweep has empty keys and measures every run.
    """

    spec: RunSpec
    block: int = 1
    position: int = 1
    run_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Runs of one machine. `job`: the sweep's name, empty for a single launch. `number`: the task's number, from 1.

    `devices`: largest number of devices of a configuration at this place, even if its runs are done: the machine has as
    many.
    """

    job: str = ""
    number: int = 1
    devices: int = 1
    runs: tuple[TaskRun, ...]

    @property
    def blocks(self) -> int:
        """Number of blocks with at least one run in the task."""
        return len({run.block for run in self.runs})

    def __str__(self) -> str:
        """Words for a plan: `6 runs in 2 blocks, task 1 of 'imagenette'`."""
        job = f" of '{self.job}'" if self.job else ""
        return f"{counted(len(self.runs), 'run')} in {counted(self.blocks, 'block')}, task {self.number}{job}"

    @classmethod
    def of_repeats(cls, spec: RunSpec) -> Self:
        """Task of one configuration, run `spec.repeats` times."""
        once = replace(spec, repeats=1)
        runs = tuple(TaskRun(spec=once, block=block) for block in range(1, spec.repeats + 1))
        return cls(devices=spec.devices, runs=runs)

    def mapped(self, change: Callable[[RunSpec], RunSpec]) -> Self:
        """Task with `change` applied to each run's spec. A `UsageError` that `change` raises gets the run's number."""

        def changed(number: int, run: TaskRun) -> TaskRun:
            try:
                return replace(run, spec=change(run.spec))
            except UsageError as error:
                raise UsageError(f"run {number} of {self}: {error}", hint=error.hint) from error

        return replace(self, runs=tuple(changed(number, run) for number, run in enumerate(self.runs, 1)))

    def to_json(self, base: RunSpec) -> dict[str, Any]:
        """Task as JSON values; each spec has only its differences from `base`."""
        usual = base.to_json()
        runs = [
            {
                "block": run.block,
                "position": run.position,
                "key": run.run_key,
                "spec": {name: value for name, value in run.spec.to_json().items() if value != usual[name]},
            }
            for run in self.runs
        ]
        several = {"devices": self.devices} if self.devices > 1 else {}
        return {"job": self.job, "number": self.number, **several, "runs": runs}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], base: RunSpec) -> Self:
        """Parse the output of `to_json`. Raises `UsageError` for anything else."""
        usual = base.to_json()
        try:
            runs = tuple(
                TaskRun(
                    # A value that is None, such as a batch size left to the device, becomes the option's default.
                    spec=RunSpec.from_json({**usual, **run["spec"]}),
                    block=int(run["block"]),
                    position=int(run["position"]),
                    run_key=str(run["key"]),
                )
                for run in values["runs"]
            )
            devices = int(values.get("devices", 1))
            return cls(job=str(values["job"]), number=int(values["number"]), devices=devices, runs=runs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the request has no readable task: {error!r}", hint="launch again") from error


@dataclass(frozen=True, kw_only=True)
class Request(_Document):
    """Everything that was requested of a launch; read by the machine before it begins, and by any other program.

    `launched_at`: ISO 8601 in UTC. `limit_s`: seconds after which the run must be over and a cloud deletes the machine.
    `store`: address of the bundles and records. `place`: name of the place in results, such as `gcp-t4`; the machine
    appends its zone, if it has one. `runtime`: `docker` or `process`. With `docker`, `image` ends in the registry's
    digest. With `process`, the agent itself runs in the image, or no image is used. `spot`: the cloud may take the
    machine away. `prices`: prices by region, without regions of unknown price. The fields from `gpu` to `zones` are
    empty if the backend does not use them. `options`: options of the backend alone. `task`: runs of a sweep for this
    machine (`launcher.protocol.records`); if empty, `spec` is run `repeats` times. `script`: for a user's script, the
    `sha256` of the archive with the number of `files` and `bytes`, the `commit` of the script's folder, the address of
    the `data`, the names of the environment variables (`env`), and the SHA-256 of the `requirements`, which are in the
    image. `tuning`: for a tuning of the script its `margin`, `max_time_s`, rule for the `losses`, and `tries`.
    """

    name: str
    backend: str
    launched_at: str
    store: str
    place: str
    runtime: str
    limit_s: int
    spec: Mapping[str, Any]
    spec_origin: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    gpu: str = ""
    gpu_count: int = 0
    machine_type: str = ""
    zones: list[str] = field(default_factory=list)
    spot: bool = False
    prices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attempt: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    script: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files_text(self) -> str:
        """Text on the files to send: `12 files, 35 kB, of commit 0123456 with changes`; empty without a script."""
        if not self.script:
            return ""
        commit, _, changed = str(self.script.get("commit", "")).partition("-")
        origin = f", of commit {commit[:7]}{' with changes' if changed else ''}" if commit else ""
        names = self.script.get("env")
        variables = f"; and {', '.join(names)}" if names else ""
        packages = "; and packages in a layer of the image" if self.script.get("requirements") else ""
        files = f"{counted(self.script['files'], 'file')}, {si(self.script['bytes'], 'B')}"
        return f"{files}{origin}{variables}{packages}"

    @property
    def work(self) -> Task:
        """Runs that were requested. Raises `UsageError` for a spec or a task that cannot be read."""
        base = RunSpec.from_json(self.spec)
        return Task.from_json(self.task, base) if self.task else Task.of_repeats(base)

    def price(self, zone: str) -> Price | None:
        """Price in the zone's region; None if unknown."""
        listed = self.prices.get(region_of(zone))
        known = [item.name for item in fields(Price) if item.name in listed] if listed else []
        return Price(**{name: listed[name] for name in known}) if listed else None


@dataclass(frozen=True, kw_only=True)
class Heartbeat(_Document):
    """Heartbeat of the VM, with the launch's progress. `phases`: ISO 8601 times by `LaunchPhase`.

    `runs`: ids of the bundles that are complete in the bucket.
    """

    at: str
    zone: str
    phases: Mapping[str, str]
    runs: list[str] = field(default_factory=list)
    last_line: str = ""


@dataclass(frozen=True, kw_only=True)
class LeaseRecord(_Document):
    """Agent that works on a launch: its machine's name, the id of the machine's boot, and the process.

    `released`: the agent gave the lease back when it ended.
    """

    at: str
    host: str
    boot: str = ""
    process: str = ""
    released: bool = False


@dataclass(frozen=True, kw_only=True)
class Result(_Document):
    """How the launch ended: the exit code that `launch local` has for the same run, and the uploaded bundles.

    `error` and `hint`: as an error prints them. `runs`: ids of the bundles in the bucket. `usd`: cost from
    `billed_from`, when the VM was requested, to `ended_at`; the VM then deletes itself within a minute or two.
    """

    exit_code: int
    zone: str
    runs: list[str]
    phases: Mapping[str, str]
    ended_at: str
    error: str = ""
    hint: str = ""
    preempted: bool = False
    timed_out: bool = False
    usd: float | None = None
    billed_from: str | None = None


class FieldRule(NamedTuple):
    """Rule for a field's value. `wanted`: the rule in words; `holds`: returns whether a JSON value follows the rule."""

    wanted: str
    holds: Callable[[Any], bool]


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any, *, least: int = 0, most: int = MAX_COUNT) -> bool:
    return type(value) is int and least <= value <= most


def _is_usd(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= MAX_USD


def _is_time(value: Any) -> bool:
    """Whether a value is ISO 8601 between 2000 and 2199; other years may overflow when converted to seconds."""
    try:
        return isinstance(value, str) and 2000 <= datetime.fromisoformat(value).year < 2200  # noqa: PLR2004
    except ValueError:
        return False


def _are(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _by_name(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _is_option(value: Any) -> bool:
    """Whether a value is safe to show: a word, a whole number, a boolean, None, or a list of these."""
    if isinstance(value, list):
        return all(_is_option(item) and not isinstance(item, list) for item in value)
    return value is None or value == "" or isinstance(value, bool) or _is_count(value) or _matches(WORD)(value)


def _is_script(value: Any) -> bool:
    if value == {}:
        return True
    return (
        isinstance(value, dict)
        and _matches(re.compile(r"[0-9a-f]{64}"))(value.get("sha256"))
        and _is_count(value.get("files"))
        and _is_count(value.get("bytes"), most=MAX_ARCHIVE_BYTES)
        and _matches(re.compile(r"|[0-9a-f]{40,64}(-dirty)?"))(value.get("commit", ""))
        and (value.get("data", "") == "" or _matches(STORE)(value["data"]))
        and _matches(re.compile(r"|[0-9a-f]{64}"))(value.get("requirements", ""))
        and _are(_matches(re.compile(r"[A-Za-z_][A-Za-z0-9_]*")))(value.get("env", []))
    )


def _is_tuning(value: Any) -> bool:
    if value == {}:
        return True
    return (
        isinstance(value, dict)
        and set(value) == {"margin", "max_time_s", "losses", "tries"}
        and all(type(value[name]) in (int, float) for name in ("margin", "max_time_s"))
        and value["losses"] in ("same", "rounding", "any")
        and _are(_is_text)(value["tries"])
    )


def _is_price(value: Any) -> bool:
    is_complete = isinstance(value, dict) and {"usd_per_h", "source", "read"} <= set(value)
    if not is_complete or not (_is_text(value["source"]) and _is_text(value["read"])):
        return False
    beside = [value.get(name) for name in ("disk_usd_per_h", "address_usd_per_h")]
    return _is_usd(value["usd_per_h"]) and all(usd is None or _is_usd(usd) for usd in beside)


_TEXT = FieldRule("a text", _is_text)
_WORD = FieldRule("one word of letters, digits and ._:@/+-", _matches(WORD))
_WORD_OR_EMPTY = FieldRule(_WORD.wanted, lambda value: value == "" or _WORD.holds(value))
_TIME = FieldRule("a time in ISO 8601", _is_time)
_FLAG = FieldRule("true or false", lambda value: isinstance(value, bool))
# Rules by field name; a name has the same meaning in every document.
RULES: Mapping[str, FieldRule] = {
    "name": FieldRule("the name of a launch", _matches(NAME)),
    "launched_at": _TIME,
    "backend": _WORD,
    "store": FieldRule("the address of a bucket or a folder", _matches(STORE)),
    "place": _WORD,
    "runtime": FieldRule("process or docker", lambda value: value in ("docker", "process")),
    "gpu": _WORD_OR_EMPTY,
    "gpu_count": FieldRule(f"a whole number up to {MAX_COUNT}", _is_count),
    "machine_type": _WORD_OR_EMPTY,
    "spot": _FLAG,
    "zones": FieldRule("a list of zones", _are(_matches(WORD))),
    "image": _WORD_OR_EMPTY,
    "options": FieldRule("an object of words, whole numbers, flags, and lists of these", _by_name(_is_option)),
    "limit_s": FieldRule(f"seconds from 1 to {MAX_LIMIT_S}", lambda value: _is_count(value, least=1, most=MAX_LIMIT_S)),
    "spec": FieldRule("an object", lambda value: isinstance(value, dict)),
    "task": FieldRule("an object", lambda value: isinstance(value, dict)),
    "script": FieldRule("an object with the sha256 of an archive", _is_script),
    "tuning": FieldRule("an object with margin, max_time_s, losses and tries", _is_tuning),
    "spec_origin": FieldRule("an object of texts", _by_name(_is_text)),
    "prices": FieldRule("an object of prices by region", _by_name(_is_price)),
    "attempt": FieldRule(f"a whole number from 1 to {MAX_COUNT}", lambda value: _is_count(value, least=1)),
    "at": _TIME,
    # Empty if there was never a VM.
    "zone": FieldRule("a zone, or empty", lambda value: value == "" or _matches(WORD)(value)),
    "phases": FieldRule("an object of times in ISO 8601", _by_name(_is_time)),
    "runs": FieldRule("a list of run ids: letters, digits and ._+-", _are(_matches(RUN_ID))),
    "last_line": _TEXT,
    "host": _TEXT,
    "boot": _TEXT,
    "process": _TEXT,
    "released": _FLAG,
    "exit_code": FieldRule(f"a whole number up to {MAX_COUNT}", _is_count),
    "ended_at": _TIME,
    "error": _TEXT,
    "hint": _TEXT,
    "preempted": _FLAG,
    "timed_out": _FLAG,
    "billed_from": FieldRule("a time in ISO 8601, or null", lambda value: value is None or _is_time(value)),
    "usd": FieldRule(f"USD from 0 to {MAX_USD:.0f}, or null", lambda value: value is None or _is_usd(value)),
}


def request_object(name: str) -> str:
    return f"{LAUNCHES}{name}/request.json"


def variables_object(name: str) -> str:
    return f"{VARIABLES}{name}.json"


def status_object(name: str) -> str:
    return f"{LAUNCHES}{name}/status.json"


def lease_object(name: str, number: int) -> str:
    return f"{LAUNCHES}{name}/lease-{number}.json"


def result_object(name: str) -> str:
    return f"{LAUNCHES}{name}/result.json"


def log_object(name: str) -> str:
    return f"{LAUNCHES}{name}/startup.log"


# Object of a tuning with its rows; beside it are its evidence and its patch.
TUNED = "tuned.json"


def tuning_object(name: str, file: str = "") -> str:
    """Object with a file of a tuning; without `file`, the beginning of all their names."""
    return f"{LAUNCHES}{name}/tuning/{file}"


def utc(epoch_s: float) -> str:
    """Format seconds since 1970 for people: `2026-11-21T14:25:30Z`."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def epoch_s(text: str | None) -> float | None:
    """Parse ISO 8601 into seconds since 1970; None for any other text. A time without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def region_of(zone: str) -> str:
    """Region of a zone: `us-central1` for `us-central1-a`."""
    return zone.rpartition("-")[0]

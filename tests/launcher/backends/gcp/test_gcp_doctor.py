import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.gcp import doctor, gpus
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.doctor import CloudPorts, Repository
from launcher.backends.gcp.price_list import PriceList, PriceLookup
from launcher.backends.gcp.resources import Instance, Quota, VmDisk
from launcher.backends.gcp.services import Services
from launcher.backends.gcp.settings import Settings
from launcher.protocol.backend import Condition, Listing
from launcher.protocol.checks import Check
from launcher.protocol.checks import Health as State
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.launcher.backends.gcp.fake_rest import (
    ACCOUNT,
    ACCOUNT_PATH,
    BUCKET,
    BUCKET_POLICY,
    DIGEST,
    IAM,
    PROJECT,
    PROJECT_POLICY,
    REGISTRY,
    REPOSITORY,
    REPOSITORY_POLICY,
    SERVICES,
    SHIELDED_VM,
    TRUSTED_IMAGES,
    VM_ROLE,
    FakeRest,
    disabled,
    policy,
    refused,
    tag_of,
)
from tests.workload.storage.strict_gcs import StrictGcs
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.storage import gcs as storage
from workload.storage.gcs import Access, Bucket

NOW_S = 1_795_000_000
IMAGE = f"us-central1-docker.pkg.dev/{PROJECT}/rooflaunch/trainer"
SETTINGS = Settings(project=PROJECT, bucket=BUCKET, repository=IMAGE, service_account=ACCOUNT)
QUOTAS_PAGE = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}, filter"
FAMILY = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
SET_UP = Access(location="US-CENTRAL1", uniform=True, public_access_prevention="enforced")
NO_PERMISSION = ToolError("no permission", hint="ask")
FROM_INFRA = "infra/README.md, or "

Row = tuple[str, str, str, str]


@dataclass
class StubCompute:
    """A project with some quota of everything; what is an error raises."""

    everywhere: Any = field(default_factory=lambda: {"GPUS_ALL_REGIONS": Quota(limit=4, usage=1)})
    regions: Callable[[str], Mapping[str, Quota]] | None = None
    image: Any = "image-v1"
    vms: Any = ()
    left_disks: Any = ()
    unreachable: tuple[str, ...] = ()
    asked_regions: list[str] = field(default_factory=list)

    def counted(self) -> "StubCompute":
        return self

    def project_quotas(self) -> Any:
        return _given(self.everywhere)

    def region_quotas(self, region: str) -> Mapping[str, Quota]:
        self.asked_regions.append(region)
        if self.regions:
            return self.regions(region)
        metrics = {gpu.quota for gpu in gpus.load().values()}
        return {name: Quota(limit=2, usage=1) for each in metrics for name in (each, f"PREEMPTIBLE_{each}")}

    def get_image(self, project: str, family: str) -> Any:
        assert project
        assert family
        return _given(self.image)

    def instances(self) -> Listing[Instance]:
        return Listing(there=tuple(_given(self.vms)), unreachable=self.unreachable)

    def disks(self) -> Listing[VmDisk]:
        return Listing(there=tuple(_given(self.left_disks)))

    def now_s(self) -> float:
        return NOW_S


@dataclass
class StubBucket:
    name: str = BUCKET
    held: Any = doctor.BUCKET_PERMISSIONS
    set_up: Any = SET_UP

    def permitted(self, permissions: Any) -> frozenset[str]:
        return frozenset(_given(self.held)) & frozenset(permissions)

    def access(self) -> Any:
        return _given(self.set_up)


def _given(value: Any) -> Any:
    if isinstance(value, RooflaunchError):
        raise value
    return value


@dataclass
class World:
    """A sound project, to be spoiled."""

    rest: FakeRest = field(default_factory=FakeRest)
    compute: StubCompute = field(default_factory=StubCompute)
    bucket: Any = field(default_factory=StubBucket)
    settings: Any = SETTINGS
    services_error: RooflaunchError | None = None
    compute_error: RooflaunchError | None = None
    endpoint: str | None = None
    prices: Any = None

    def checks(self) -> list[Check]:
        cloud = CloudPorts(
            compute=lambda project: _given(self.compute_error or self.compute) if project == PROJECT else None,  # type: ignore[arg-type,return-value]
            bucket=lambda name: _given(self.bucket) if name == BUCKET else None,
            services=lambda project: _given(self.services_error or Services(project, self.rest)),
            tags=lambda: {name: f"{name}-0123456789ab" for name in ("cpu", "cuda", "volta")},
            endpoint=self.endpoint,
            prices=self.prices,
        )
        return list(doctor.checks(lambda: (_given(self.settings), {"project": "option"}), cloud))

    def rows(self) -> list[Row]:
        return [(each.name, each.state.value, each.found, each.cure) for each in self.checks()]

    def row(self, name: str) -> Row:
        (row,) = (row for row in self.rows() if row[0] == name)
        return row

    def amiss(self) -> dict[str, str]:
        """What is not in order: name -> state."""
        return {each.name: each.state.value for each in self.checks() if each.state is not State.OK}


@pytest.fixture
def world() -> World:
    return World()


def vm(name: str, deadline_s: int) -> Instance:
    return Instance(
        name=name,
        zone="us-central1-a",
        condition=Condition.RUNNING,
        status="RUNNING",
        deadline_s=deadline_s,
    )


def test_a_sound_project(world: World) -> None:
    rows = world.rows()
    quota_rows = [row for row in rows if row[0].startswith("quota ")]
    assert [row[0].removeprefix("quota ") for row in quota_rows] == list(gpus.load())
    assert [row for row in rows if row not in quota_rows] == [
        ("project", "ok", "my-project (option); Compute Engine answers", ""),
        ("APIs", "ok", "enabled: compute, storage, artifactregistry", ""),
        ("GPUS_ALL_REGIONS", "ok", "3 of 4 GPUs left", ""),
        *[row for row in rows if row[0] == "VM image"],
        ("Shielded VM policy", "ok", "VMs may start without Secure Boot", ""),
        ("VM image policy", "ok", "the projects of the images are trusted", ""),
        ("leftovers", "ok", "none; 0 VMs of launches now", ""),
        ("bucket", "ok", f"gs://{BUCKET} answers", ""),
        ("bucket access", "ok", "objects can be read, written and replaced", ""),
        ("bucket set-up", "ok", "uniform access, never public, in us-central1", ""),
        ("repository", "ok", IMAGE, ""),
        ("image cpu", "ok", f"cpu-0123456789ab, {DIGEST}", ""),
        ("image cuda", "ok", f"cuda-0123456789ab, {DIGEST}", ""),
        ("image volta", "ok", f"volta-0123456789ab, {DIGEST}", ""),
        ("service account", "ok", ACCOUNT, ""),
        ("use of it", "ok", "you may start VMs with this account", ""),
        ("its bucket role", "ok", "roles/storage.objectUser", ""),
        ("its image role", "ok", "roles/artifactregistry.reader", ""),
        ("its VM role", "ok", VM_ROLE, ""),
    ]
    assert world.amiss() == {}
    assert {check.part for check in world.checks()} == {"gcp"}


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("settings", UsageError("no project is set", hint="--project PROJECT")),
        ("compute_error", ToolError("no credentials", hint="gcloud auth login")),
        ("services_error", ToolError("no package", hint="pip install it")),
    ],
)
def test_without_a_project_or_credentials_nothing_is_asked(what: str, error: RooflaunchError) -> None:
    assert World(**{what: error}).rows() == [("project", "problem", str(error), error.hint)]


def test_a_project_that_does_not_answer_still_has_its_other_parts_looked_at(world: World) -> None:
    hint = f"gcloud services enable compute.googleapis.com --project {PROJECT}"
    world.compute.everywhere = ToolError("the Compute Engine API is disabled", hint=hint)
    world.rest.answers[SERVICES] = {"services": [{"config": {"name": "storage.googleapis.com"}}]}
    rows = world.rows()
    assert rows[:3] == [
        ("project", "problem", "the Compute Engine API is disabled", hint),
        (
            "APIs",
            "problem",
            "not enabled: compute.googleapis.com, artifactregistry.googleapis.com",
            f"gcloud services enable compute.googleapis.com artifactregistry.googleapis.com --project {PROJECT}",
        ),
        ("bucket", "ok", f"gs://{BUCKET} answers", ""),
    ]
    assert world.compute.asked_regions == []


@pytest.mark.parametrize(
    ("answer", "state", "found", "cure"),
    [
        (
            disabled("serviceusage.googleapis.com"),
            "note",
            f"not seen: serviceusage.googleapis.com is not enabled in project '{PROJECT}'",
            (
                "gcloud services enable compute.googleapis.com storage.googleapis.com artifactregistry.googleapis.com "
                f"--project {PROJECT}"
            ),
        ),
        (
            refused(),
            "note",
            "not seen: serviceusage.googleapis.com: Permission denied",
            (
                "gcloud services enable compute.googleapis.com storage.googleapis.com artifactregistry.googleapis.com "
                f"--project {PROJECT}"
            ),
        ),
        (
            refused("bad", 400),
            "problem",
            "serviceusage.googleapis.com: bad",
            "run again; if the error stays, report it as a bug",
        ),
    ],
    ids=["disabled", "forbidden", "other"],
)
def test_services_that_cannot_be_seen(answer: Any, state: str, found: str, cure: str, world: World) -> None:
    world.rest.answers[SERVICES] = answer
    assert world.row("APIs") == ("APIs", state, found, cure)


@pytest.mark.parametrize(
    ("quotas", "state", "found", "cure"),
    [
        (
            {"GPUS_ALL_REGIONS": Quota(limit=0, usage=0)},
            "problem",
            "0 GPUs, as in every new project: no VM with a GPU can start",
            f"{QUOTAS_PAGE} GPUS_ALL_REGIONS",
        ),
        (
            {"GPUS_ALL_REGIONS": Quota(limit=2, usage=2)},
            "note",
            "0 of 2 GPUs left",
            f"launch status; or {QUOTAS_PAGE} GPUS_ALL_REGIONS",
        ),
        ({}, "note", "unknown: the project does not report this quota", ""),
    ],
    ids=["zero", "used-up", "untold"],
)
def test_gpus_of_all_regions(quotas: Any, state: str, found: str, cure: str, world: World) -> None:
    world.compute.everywhere = quotas
    assert world.row("GPUS_ALL_REGIONS") == ("GPUS_ALL_REGIONS", state, found, cure)


@pytest.mark.parametrize(
    ("today", "row"),
    [
        (
            PriceLookup(prices=PriceList(skus=(), read="2026-11-21")),
            ("prices", "ok", "Google's price list, read 2026-11-21", ""),
        ),
        (
            PriceLookup(why="it is not enabled", hint="gcloud services enable it"),
            (
                "prices",
                "note",
                "from the built-in table, with their dates: it is not enabled",
                "gcloud services enable it",
            ),
        ),
    ],
    ids=["today's", "a table's"],
)
def test_prices(today: PriceLookup, row: Row, world: World) -> None:
    world.prices = {PROJECT: today}.__getitem__
    assert world.row("prices") == row
    world.endpoint = "ROOFLAUNCH_COMPUTE_ENDPOINT"
    assert world.row("prices")[1:3] == ("note", "not checked: ROOFLAUNCH_COMPUTE_ENDPOINT is set")


def test_the_best_regions_come_first(world: World) -> None:
    left = {"us-central1": 1, "us-east1": 4, "us-west1": 1, "europe-west4": 2, "asia-east1": 1, "us-east4": 0}

    def quotas(region: str) -> Mapping[str, Quota]:
        spot = {"PREEMPTIBLE_NVIDIA_T4_GPUS": Quota(limit=1, usage=1)}
        return spot | {"NVIDIA_T4_GPUS": Quota(limit=left.get(region, 0) + 3, usage=3)}

    world.compute.regions = quotas
    assert world.row("quota t4") == (
        "quota t4",
        "ok",
        "GPUs left, standard: us-east1 4, europe-west4 2, us-central1 1 and 2 more; preemptible: none left",
        "",
    )
    # The L4's are not told by any region: that is unknown, not none.
    assert world.row("quota l4") == (
        "quota l4",
        "note",
        (
            "GPUs left, standard: unknown: no region reports this quota; preemptible: unknown: "
            "no region reports this quota"
        ),
        f"{QUOTAS_PAGE} NVIDIA_L4_GPUS",
    )
    assert "quota" not in world.amiss(), "one GPU that can be had is enough"
    world.compute.asked_regions.clear()
    world.checks()
    assert len(world.compute.asked_regions) == len(set(world.compute.asked_regions)), "each region once"


def test_no_quota_of_any_gpu(world: World) -> None:
    metrics = [gpu.quota for gpu in gpus.load().values()]
    world.compute.regions = lambda _: {name: Quota(limit=0, usage=0) for name in metrics}
    assert world.row("quota") == (
        "quota",
        "problem",
        "no region has any GPU quota left",
        f"{QUOTAS_PAGE} GPU",
    )
    assert world.row("quota v100")[1:3] == (
        "note",
        "GPUs left, standard: none left; preemptible: unknown: no region reports this quota",
    )


def test_preemptible_quota_alone_is_enough(world: World) -> None:
    """A VM of ours lives for 7 days at most, and takes either."""
    world.compute.regions = lambda _: {
        "NVIDIA_T4_GPUS": Quota(limit=1, usage=1),
        "PREEMPTIBLE_NVIDIA_T4_GPUS": Quota(limit=0 if _ != "us-east1" else 2, usage=0),
    }
    assert world.row("quota t4")[1:3] == ("ok", "GPUs left, standard: none left; preemptible: us-east1 2")


def test_a_region_that_does_not_answer(world: World) -> None:
    def quotas(region: str) -> Mapping[str, Quota]:
        if region == "me-west1":
            raise NO_PERMISSION
        return {"NVIDIA_T4_GPUS": Quota(limit=1, usage=0)}

    world.compute.regions = quotas
    assert world.row("regions") == ("regions", "note", "not seen: me-west1: no permission", "ask")
    assert world.row("quota t4")[1] == "ok"


@pytest.mark.parametrize(
    ("image", "state", "found", "cure"),
    [
        ("image-v1", "ok", "image-v1 of project ubuntu-os-accelerator-images, for {}", ""),
        (
            None,
            "problem",
            f"no image family {FAMILY} in project ubuntu-os-accelerator-images, for {{}}",
            (
                "gcloud compute images list --project ubuntu-os-accelerator-images --no-standard-images; if the "
                "family is missing there, report this as a bug"
            ),
        ),
        (NO_PERMISSION, "problem", "no permission", "ask"),
    ],
    ids=["there", "gone", "error"],
)
def test_the_image_of_the_vms(image: Any, state: str, found: str, cure: str, world: World) -> None:
    world.compute.image = image
    users = ", ".join(gpu.name for gpu in gpus.load().values() if gpu.vm_images[0].name == FAMILY)
    assert "t4" in users
    rows = [row for row in world.rows() if row[0] == "VM image"]
    assert len(rows) == len({image for gpu in gpus.load().values() for image in gpu.vm_images}), "each family once"
    assert rows[0][1:] == (state, found.format(users), cure)


def test_an_image_that_is_gone_while_others_are_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.compute, "get_image", lambda _, family: None if family == FAMILY else f"{family}-v1")
    rows = [row for row in world.rows() if row[0] == "VM image"]
    users = ", ".join(gpu.name for gpu in gpus.load().values() if gpu.vm_image.name == FAMILY)
    gone = (
        f"no image family {FAMILY} in project ubuntu-os-accelerator-images, for {users}: launches use the next family"
    )
    assert [(row[1], row[2]) for row in rows if row[1] != "ok"] == [("note", gone)]


ALL_BUT_V100 = "t4, l4, a100, a100-80gb, h100, h200"
NOT_TRUSTED = f"not trusted: ubuntu-os-accelerator-images, for {ALL_BUT_V100}"
BY_HAND = "--vm-image PROJECT/FAMILY of a trusted project, with apt; or ask the organisation's administrator"
VIEWER = "ask the organisation's administrator for roles/orgpolicy.policyViewer"
RESOURCES = "cloudresourcemanager.googleapis.com"


@pytest.mark.parametrize(
    ("question", "answer", "row"),
    [
        (
            SHIELDED_VM,
            {"booleanPolicy": {"enforced": True}},
            (
                "Shielded VM policy",
                "note",
                "VMs need Secure Boot, vTPM and integrity monitoring; no signed driver is known for v100",
                "--secure-boot with each launch",
            ),
        ),
        (
            SHIELDED_VM,
            refused(),
            (
                "Shielded VM policy",
                "note",
                f"could not read constraints/compute.requireShieldedVm: {RESOURCES}: Permission denied",
                VIEWER,
            ),
        ),
        (
            TRUSTED_IMAGES,
            disabled(RESOURCES),
            (
                "VM image policy",
                "note",
                (
                    "could not read constraints/compute.trustedImageProjects: "
                    f"{RESOURCES} is not enabled in project '{PROJECT}'"
                ),
                f"gcloud services enable {RESOURCES} --project {PROJECT}",
            ),
        ),
        (TRUSTED_IMAGES, {}, ("VM image policy", "ok", "the projects of the images are trusted", "")),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["projects/ubuntu-os-cloud"]}},
            (
                "VM image policy",
                "problem",
                f"{NOT_TRUSTED}; it trusts projects/ubuntu-os-cloud",
                "--vm-image ubuntu-os-cloud/ubuntu-2404-lts-amd64",
            ),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["is:projects/ubuntu-os-cloud", "projects/ubuntu-os-accelerator-images"]}},
            ("VM image policy", "ok", "the projects of the images are trusted", ""),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allValues": "DENY"}},
            (
                "VM image policy",
                "problem",
                (
                    "not trusted: ubuntu-os-accelerator-images, ubuntu-os-cloud, for t4, l4, v100, a100, a100-80gb, "
                    "h100, h200"
                ),
                BY_HAND,
            ),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"deniedValues": ["projects/debian-cloud"]}},
            ("VM image policy", "ok", "the projects of the images are trusted", ""),
        ),
        (
            TRUSTED_IMAGES,
            {"listPolicy": {"allowedValues": ["under:organizations/1"]}},
            (
                "VM image policy",
                "note",
                "names folders or organisations, which are not checked: under:organizations/1",
                "",
            ),
        ),
    ],
)
def test_policies_of_an_organisation(question: str, answer: Any, row: Row, world: World) -> None:
    world.rest.answers[question] = answer
    assert world.row(row[0]) == row


@pytest.mark.parametrize(
    ("deadlines", "state", "found", "cure"),
    [
        ([NOW_S + 60], "ok", "none; 1 VM of launches now", ""),
        ([NOW_S + 60, NOW_S - 60], "ok", "none; 2 VMs of launches now", ""),
        (
            [NOW_S - 3600],
            "problem",
            "VM rooflaunch-t4-0 in us-central1-a (its time limit ended 60 min ago)",
            "launch reap",
        ),
    ],
    ids=["within", "just-past", "past"],
)
def test_leftovers(deadlines: list[int], state: str, found: str, cure: str, world: World) -> None:
    world.compute.vms = [vm(f"rooflaunch-t4-{index}", deadline_s) for index, deadline_s in enumerate(deadlines)]
    assert world.row("leftovers") == ("leftovers", state, found, cure)


def test_leftovers_in_an_outage(world: World) -> None:
    world.compute.unreachable = ("us-central1-a",)
    told = "not known in us-central1-a: no answer"
    assert world.row("leftovers") == ("leftovers", "problem", told, "launch reap, later")


def test_leftovers_that_cannot_be_seen(world: World) -> None:
    world.compute.vms = NO_PERMISSION
    assert world.row("leftovers") == ("leftovers", "problem", "no permission", "ask")


@pytest.mark.parametrize(
    ("bucket", "row"),
    [
        (
            UsageError("bucket 'x' does not exist", hint="gcloud storage ls"),
            (
                "bucket",
                "problem",
                "bucket 'x' does not exist",
                (
                    f"{FROM_INFRA}gcloud storage buckets create gs://{BUCKET} --project {PROJECT} "
                    "--uniform-bucket-level-access"
                ),
            ),
        ),
        (NO_PERMISSION, ("bucket", "problem", "no permission", "ask")),
        (
            StubBucket(held=["storage.objects.get", "storage.objects.list"]),
            (
                "bucket access",
                "problem",
                "you lack storage.objects.create, storage.objects.delete",
                (
                    f"the bucket's owner can run: gcloud storage buckets add-iam-policy-binding gs://{BUCKET} "
                    "--role roles/storage.objectUser --member user:YOU"
                ),
            ),
        ),
        (StubBucket(held=NO_PERMISSION), ("bucket access", "problem", "no permission", "ask")),
        (
            StubBucket(set_up=Access(location="EU", uniform=False, public_access_prevention="enforced")),
            (
                "bucket set-up",
                "problem",
                "no uniform access: each object can have its own readers",
                f"gcloud storage buckets update gs://{BUCKET} --uniform-bucket-level-access",
            ),
        ),
        (
            StubBucket(set_up=Access(location="EU", uniform=True, public_access_prevention="inherited")),
            (
                "bucket set-up",
                "note",
                "uniform access; the bucket could be made public",
                f"gcloud storage buckets update gs://{BUCKET} --public-access-prevention",
            ),
        ),
        (
            StubBucket(set_up=NO_PERMISSION),
            (
                "bucket set-up",
                "note",
                "not seen: no permission",
                "ask the bucket's owner for roles/storage.legacyBucketReader",
            ),
        ),
    ],
    ids=["missing", "closed", "read-only", "unknown", "not-uniform", "public", "unseen"],
)
def test_a_bucket_with_something_amiss(bucket: Any, row: Row, world: World) -> None:
    world.bucket = bucket
    assert world.row(row[0]) == row
    assert world.amiss() == {row[0]: row[1]}


def allows(role: str, *permissions: str) -> dict[str, Any]:
    return {f"GET {IAM}{role}": {"includedPermissions": list(permissions)}}


AT_ACCOUNT = f"POST {ACCOUNT_PATH}:testIamPermissions"
TO_IT = f"--member serviceAccount:{ACCOUNT}"


@pytest.mark.parametrize(
    ("answers", "row"),
    [
        (
            {f"GET {REGISTRY}{REPOSITORY}": refused("not found", 404)},
            (
                "repository",
                "problem",
                f"{REPOSITORY} does not exist",
                (
                    f"{FROM_INFRA}gcloud artifacts repositories create rooflaunch --repository-format docker "
                    f"--location us-central1 --project {PROJECT}"
                ),
            ),
        ),
        (
            {tag_of("cuda"): refused("not found", 404)},
            (
                "image cuda",
                "note",
                "cuda-0123456789ab is not in the repository; the first launch that needs this image pushes it",
                f"launch build --flavour cuda --push --repository {IMAGE}",
            ),
        ),
        (
            {tag_of("cuda"): refused()},
            (
                "image cuda",
                "problem",
                "artifactregistry.googleapis.com: Permission denied",
                f"ask the owner of project '{PROJECT}', or use another account: gcloud auth application-default login",
            ),
        ),
        (
            {f"GET {ACCOUNT_PATH}": refused("not found", 404)},
            (
                "service account",
                "problem",
                f"{ACCOUNT} does not exist",
                f"{FROM_INFRA}gcloud iam service-accounts create rooflaunch-vm --project {PROJECT}",
            ),
        ),
        (
            {f"GET {ACCOUNT_PATH}": {"disabled": True}},
            (
                "service account",
                "problem",
                f"{ACCOUNT} is disabled",
                f"gcloud iam service-accounts enable {ACCOUNT}",
            ),
        ),
        (
            {f"GET {ACCOUNT_PATH}": refused()},
            (
                "service account",
                "note",
                "not seen: iam.googleapis.com: Permission denied",
                f"ask the owner of project '{PROJECT}', or use another account: gcloud auth application-default login",
            ),
        ),
        (
            {AT_ACCOUNT: {}},
            (
                "use of it",
                "problem",
                "you may not start VMs with this account",
                (
                    f"the account's owner can run: gcloud iam service-accounts add-iam-policy-binding {ACCOUNT} "
                    "--role roles/iam.serviceAccountUser --member user:YOU"
                ),
            ),
        ),
        (
            {BUCKET_POLICY: policy("roles/storage.objectCreator")}
            | allows("roles/storage.objectCreator", "storage.objects.create"),
            (
                "its bucket role",
                "problem",
                "no custom role allows storage.objects.delete, storage.objects.get, storage.objects.list",
                f"gcloud storage buckets add-iam-policy-binding gs://{BUCKET} --role roles/storage.objectUser {TO_IT}",
            ),
        ),
        (
            {BUCKET_POLICY: refused()},
            (
                "its bucket role",
                "note",
                "not seen: storage.googleapis.com: Permission denied",
                f"gcloud storage buckets add-iam-policy-binding gs://{BUCKET} --role roles/storage.objectUser {TO_IT}",
            ),
        ),
        (
            {REPOSITORY_POLICY: policy()},
            (
                "its image role",
                "problem",
                "no custom role allows artifactregistry.repositories.downloadArtifacts",
                (
                    "gcloud artifacts repositories add-iam-policy-binding rooflaunch --location us-central1 "
                    f"--project {PROJECT} --role roles/artifactregistry.reader {TO_IT}"
                ),
            ),
        ),
        (
            {PROJECT_POLICY: policy()},
            (
                "its VM role",
                "problem",
                "no custom role allows compute.instances.delete, compute.instances.get",
                "infra/vm.tf: a custom role, only for our VMs",
            ),
        ),
        (
            {PROJECT_POLICY: disabled("cloudresourcemanager.googleapis.com")},
            (
                "its roles",
                "note",
                f"not seen: cloudresourcemanager.googleapis.com is not enabled in project '{PROJECT}'",
                "infra/vm.tf has the roles that the account needs",
            ),
        ),
        (
            {PROJECT_POLICY: policy(VM_ROLE, "roles/editor")} | allows("roles/editor", "compute.instances.get"),
            (
                "its other roles",
                "note",
                "roles/editor in the whole project: far more than a VM needs",
                f"gcloud projects remove-iam-policy-binding {PROJECT} --role roles/editor {TO_IT}",
            ),
        ),
    ],
    ids=[
        "no-repository",
        "no-image",
        "image-unseen",
        "no-account",
        "account-disabled",
        "account-unseen",
        "not-usable",
        "create-only",
        "bucket-unseen",
        "no-pull",
        "no-delete",
        "roles-unseen",
        "editor",
    ],
)
def test_services_with_something_amiss(answers: dict[str, Any], row: Row, world: World) -> None:
    world.rest.answers |= answers
    assert world.row(row[0]) == row
    assert world.amiss() == {row[0]: row[1]}


def test_a_role_of_the_project_holds_for_bucket_and_images_too(world: World) -> None:
    world.rest.answers |= allows("roles/x", *doctor.BUCKET_PERMISSIONS, doctor.PULL_PERMISSION)
    world.rest.answers |= {PROJECT_POLICY: policy("roles/x", VM_ROLE), BUCKET_POLICY: {}, REPOSITORY_POLICY: policy()}
    assert world.amiss() == {}
    assert world.row("its bucket role")[2] == "roles/x"


def test_a_repository_elsewhere(world: World) -> None:
    world.settings = Settings(
        project=PROJECT, bucket=BUCKET, repository="docker.io/me/trainer", service_account=ACCOUNT
    )
    assert world.row("repository")[1:] == (
        "note",
        "docker.io/me/trainer is not in Artifact Registry, so it is not checked",
        "",
    )
    assert not any(row[0].startswith(("image ", "its image")) for row in world.rows())


def test_with_an_endpoint_elsewhere_google_is_not_asked(world: World) -> None:
    world.endpoint = "ROOFLAUNCH_COMPUTE_ENDPOINT"
    rows = [row for row in world.rows() if row[1] != "ok"]
    assert rows == [
        (name, "note", "not checked: ROOFLAUNCH_COMPUTE_ENDPOINT is set", "")
        for name in ("APIs", "bucket access", "repository", "service account")
    ]
    assert world.rest.asked == []


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (IMAGE, Repository(name=REPOSITORY, package="trainer")),
        (
            "europe-docker.pkg.dev/p-1/r/a/b",
            Repository(name="projects/p-1/locations/europe/repositories/r", package="a/b"),
        ),
        ("gcr.io/p/trainer", None),
        ("us-central1-docker.pkg.dev/p/r", None),
        ("evil.example/us-central1-docker.pkg.dev/p/r/t", None),
    ],
)
def test_repositories(reference: str, found: Repository | None) -> None:
    assert doctor.parse_repository(reference) == found


@pytest.mark.world  # it asks git
def test_the_tags_of_this_code() -> None:
    from launcher.images import contents

    tags = doctor.current_tags()
    assert tags.keys() == contents.load_flavours().keys()
    recipe = contents.make_recipe(contents.require_flavour("cuda"), commit=contents.current_commit())
    assert recipe.tag == f"rooflaunch:{tags['cuda']}"


# With the real clients.


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCompute, StrictGcs]]:
    with FakeCompute() as compute, StrictGcs() as gcs:
        monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", compute.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        monkeypatch.setenv("ROOFLAUNCH_PROJECT", PROJECT)
        monkeypatch.setenv("ROOFLAUNCH_BUCKET", "strict-test")
        yield compute, gcs


@pytest.mark.world
def test_for_real(clouds: tuple[FakeCompute, StrictGcs]) -> None:
    compute, _ = clouds
    compute.set_quota("global", "GPUS_ALL_REGIONS", 2)
    compute.set_quota("us-central1", "NVIDIA_L4_GPUS", 5000)
    ours = {"rooflaunch": "launch"}
    compute.add_vm("rooflaunch-t4-20261121-142530-3fa9c1", project=PROJECT, labels=ours, age_s=7200)
    found = {
        each.name: each for each in reversed(machine_doctor.examine(["gcp"], checks_of=lambda _: doctor.examine()))
    }
    assert found["project"].found == "my-project (environment); Compute Engine answers"
    assert found["GPUS_ALL_REGIONS"].state is State.OK
    assert found["quota l4"].found.startswith("GPUs left, standard: us-central1 5000, ")
    assert found["VM image"].found.startswith(FAMILY)
    assert found["leftovers"].cure == "launch reap"
    assert "rooflaunch-t4-20261121-142530-3fa9c1 in us-central1-a" in found["leftovers"].found
    assert found["bucket"].state is State.OK
    assert machine_doctor.exit_code(list(found.values())) is ExitCode.TOOL
    regions = {region for gpu in gpus.load().values() for region in gpu.regions}
    assert compute.count("GET .*/regions/") == len(regions)
    assert len(machine_doctor.render(list(found.values())).splitlines()) > len(found)


@pytest.mark.world
def test_a_bucket_as_the_real_client_sees_it(clouds: tuple[FakeCompute, StrictGcs]) -> None:
    _, gcs = clouds
    bucket = storage.connect("strict-test", prefix="")
    gcs.permissions = set(doctor.BUCKET_PERMISSIONS)
    assert [check.state for check in doctor._writable_checks(bucket)] == [State.OK]
    gcs.permissions.discard("storage.objects.delete")
    assert [check.found for check in doctor._writable_checks(bucket)] == ["you lack storage.objects.delete"]
    assert [each.state for each in doctor._access_checks(bucket)] == [State.NOTE]


@pytest.mark.world
@pytest.mark.usefixtures("clouds")
def test_a_bucket_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_BUCKET", "no-such-bucket")
    (found,) = (each for each in doctor.examine() if each.name == "bucket")
    assert (found.state, found.found) == (State.PROBLEM, "bucket 'no-such-bucket' does not exist")


def test_an_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(given: Mapping[str, str | None], *_: Any, **__: Any) -> Any:
        assert given == {"project": "other-project"}
        raise UsageError("as the test wants", hint="nothing")

    monkeypatch.setattr(doctor, "resolve_settings", resolve)
    (check,) = doctor.examine({"project": "other-project"})
    assert json.loads(json.dumps(check.to_json())) == {
        "part": "gcp",
        "name": "project",
        "state": "problem",
        "found": "as the test wants",
        "cure": "nothing",
    }


def test_stubs_are_as_the_real_ones() -> None:
    """A method that is renamed there fails here."""
    for stub, real in ((StubCompute, Compute), (StubBucket, Bucket)):
        methods = {name for name, each in vars(stub).items() if callable(each) and not name.startswith("_")}
        assert methods <= set(dir(real))

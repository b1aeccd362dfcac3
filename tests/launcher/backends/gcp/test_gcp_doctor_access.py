"""Checks of the bucket, the repository of images, the service account and its roles."""

from typing import Any

import pytest

from launcher.backends.gcp import doctor
from launcher.backends.gcp.doctor import Repository
from launcher.backends.gcp.settings import Settings
from tests.launcher.backends.gcp.doctor_world import IMAGE, NO_PERMISSION, Row, StubBucket, World
from tests.launcher.backends.gcp.fake_rest import (
    ACCOUNT,
    ACCOUNT_PATH,
    BUCKET,
    BUCKET_POLICY,
    IAM,
    PROJECT,
    PROJECT_POLICY,
    REGISTRY,
    REPOSITORY,
    REPOSITORY_POLICY,
    VM_ROLE,
    disabled,
    policy,
    refused,
    tag_of,
)
from workload.contract.errors import UsageError
from workload.storage.gcs import Access

FROM_INFRA = "infra/gcp/README.md, or "


@pytest.fixture
def world() -> World:
    return World()


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
                "infra/gcp/vm.tf: a custom role, only for our VMs",
            ),
        ),
        (
            {PROJECT_POLICY: disabled("cloudresourcemanager.googleapis.com")},
            (
                "its roles",
                "note",
                f"not seen: cloudresourcemanager.googleapis.com is not enabled in project '{PROJECT}'",
                "infra/gcp/vm.tf has the roles that the account needs",
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

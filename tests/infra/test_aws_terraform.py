"""What a review of infra/aws/ looks for, on the parsed files: who may do what, and that the code asks for no more."""

import re
from collections.abc import Callable, Iterator

import pytest

from launcher.backends.aws import options, service
from launcher.backends.aws.answers import ENDS_TAG, LABEL, LABEL_VALUE
from tests.infra.terraform_files import AMAZON, ROOT, Body, values

Golden = Callable[[str, str], None]
PULL = {"ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}


def _statements(name: str) -> list[Body]:
    statements: list[Body] = AMAZON.of_kind("aws_iam_policy_document", "data")[name]["statement"]
    return statements


def _granted(name: str) -> set[str]:
    """Actions of a policy."""
    return {action for statement in _statements(name) for action in statement["actions"]}


def _rights() -> Iterator[str]:
    """Statements of each policy: who may do what, on what, and on which condition."""
    for name in sorted(AMAZON.of_kind("aws_iam_policy_document", "data")):
        yield f"## {name}"
        for block in _statements(name):
            yield f"{block.get('sid', '')}: {block.get('effect', 'Allow')} {', '.join(block['actions'])}"
            who = [text for each in block.get("principals", ()) for text in each["identifiers"]]
            yield from (f"  to {each}" for each in who)
            on = block.get("resources", [])
            yield from (f"  on {each}" for each in ([on] if isinstance(on, str) else on))
            for each in block.get("condition", ()):
                yield f"  if {each['test']} {each['variable']} = {', '.join(map(str, each['values']))}"
        yield ""


def test_rights_are_the_committed_ones(golden: Golden) -> None:
    golden("aws_rights.txt", "\n".join(_rights()))
    roles = [body["role"] for body in AMAZON.of_kind("aws_iam_role_policy").values()]
    assert sorted(roles) == ["${aws_iam_role.schedule.id}", "${aws_iam_role.vm.id}"], "each has its one policy"
    assert not AMAZON.of_kind("aws_iam_role_policy_attachment")


def test_nobody_has_more_than_named_actions() -> None:
    documents = AMAZON.of_kind("aws_iam_policy_document", "data")
    allowed = [
        action
        for name in documents
        for statement in _statements(name)
        if statement.get("effect") != "Deny"
        for action in statement["actions"]
    ]
    assert not [action for action in allowed if "*" in action]
    assert not [text for document in AMAZON.documents for text in values(document) if "arn:aws:iam::aws:policy" in text]


def test_tags_of_the_files_are_those_of_the_code() -> None:
    assert AMAZON.locals()["tag"] == LABEL
    conditions = [each for block in _statements("launcher") for each in block.get("condition", ())]
    tagged = [each["values"] for each in conditions if "${local.tag}" in each["variable"]]
    assert tagged == [[LABEL_VALUE]] * len(tagged) != []
    (end,) = (block for block in _statements("launcher") if block["sid"] == "TagWithEnd")
    assert end["condition"][1]["values"] == [ENDS_TAG]


# ---- what a VM may do


# Operation of boto3 -> action of IAM, for all requests of the store: it runs on VMs.
STORE_CALLS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "complete_multipart_upload": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "delete_object": "s3:DeleteObjectVersion",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "list_object_versions": "s3:ListBucketVersions",
    "list_objects_v2": "s3:ListBucket",
    "put_object": "s3:PutObject",
    "upload_part": "s3:PutObject",
}


@pytest.mark.parametrize("who", ["vm", "launcher"])
def test_rights_on_the_bucket_are_what_the_store_uses(who: str) -> None:
    code = (ROOT / "workload" / "storage" / "s3.py").read_text(encoding="utf-8")
    assert set(re.findall(r"_client\.(\w+)", code)) == set(STORE_CALLS)
    assert {action for action in _granted(who) if action.startswith("s3:")} == set(STORE_CALLS.values())


# ---- what a launcher may do


def _asked() -> Iterator[str]:
    """Actions of IAM that the requests of service.py need."""
    code = (ROOT / "launcher" / "backends" / "aws" / "service.py").read_text(encoding="utf-8")
    calls = re.findall(r'self\._(?:ask|pages)\(\s*"([\w-]+)",\s*"(\w+)"', code)
    calls += [("service-quotas", name) for name in re.findall(r'"(get_\w*service_quota)"', code)]
    assert len(calls) >= len(re.findall(r"self\._(?:ask|pages)\(\s*\"", code))
    for kind, method in calls:
        name = "".join(word.capitalize() for word in method.split("_")).replace("Aws", "AWS")
        # A caller may always ask who it is.
        if kind != "sts":
            yield f"{kind.replace('-', '')}:{name}"


WITH_RUN_INSTANCES = {"ec2:CreateTags", "iam:CreateServiceLinkedRole", "iam:PassRole"}
PUSH = {
    "ecr:BatchCheckLayerAvailability",
    "ecr:CompleteLayerUpload",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
}
LOG_IN = {"ecr:GetAuthorizationToken"}


def test_a_launchers_rights_are_what_its_code_asks_for() -> None:
    others = {*WITH_RUN_INSTANCES, *STORE_CALLS.values(), *PULL, *PUSH, *LOG_IN}
    assert sorted(_granted("launcher")) == sorted({*_asked(), *others})


def test_a_launchers_rights_fit_the_names_of_its_code() -> None:
    def of(action: str) -> list[Body]:
        return [statement for statement in _statements("launcher") if action in statement["actions"]]

    (schedules,) = of("scheduler:CreateSchedule")
    pattern = schedules["resources"][0].rpartition("/")[2].replace("*", ".*")
    assert re.fullmatch(pattern, service.schedule_name("i-0123456789abcdef0"))
    kinds = re.findall(r"local\.ec2}:([a-z-]+)/\*", str(AMAZON.locals()["made"]))
    assert kinds == ["instance", "network-interface", "spot-instances-request", "volume"], "as body() of plan.py tags"
    wide = {action for block in _statements("launcher") if "*" in block["resources"] for action in block["actions"]}
    looks = re.compile(r"ec2:Describe\w+|scheduler:ListSchedules|servicequotas:Get\w+|ecr:GetAuthorizationToken")
    assert wide
    assert not [action for action in wide if not looks.fullmatch(action)]
    (parameters,) = of("ssm:GetParameter")
    public, own = (name.rpartition(":parameter")[2] for name in parameters["resources"])
    assert own == "/rooflaunch/*"
    assert all(re.fullmatch(public.replace("*", ".*"), name) for name in service.AMI_PARAMETERS)


# ---- bucket, network, budget

REVIEWED = (
    *("aws_s3_bucket", "aws_s3_bucket_public_access_block", "aws_s3_bucket_ownership_controls"),
    *("aws_s3_bucket_server_side_encryption_configuration", "aws_s3_bucket_lifecycle_configuration"),
    *("aws_security_group", "aws_budgets_budget"),
)


def test_bucket_network_and_budget_are_the_committed_ones(golden: Golden) -> None:
    """The bucket is closed and encrypted, and keeps results; nothing gets in; the budget sends mail on request."""
    golden("aws_resources.json", AMAZON.shown(REVIEWED))
    assert not [kind for kind, _ in AMAZON.resources() if "ingress" in kind]
    (group,) = AMAZON.of_kind("aws_security_group").values()
    assert group["ingress"] == []


# ---- variables and outputs


def test_nothing_has_to_be_given() -> None:
    variables = AMAZON.named("variable")
    assert not [name for name, body in variables.items() if "default" not in body]
    assert variables["delete_results_on_destroy"]["default"] is False
    assert variables["runs_delete_after_days"]["default"] in (None, "null")


def test_outputs_are_the_settings_of_launch_aws() -> None:
    made = [name for name in options.RULES if name not in ("subnet", "ami_parameter")]
    assert list(AMAZON.named("output")) == [*made, "launcher_policy", "rooflaunch_toml"]
    assert list(AMAZON.locals()["settings"]) == made


def test_without_settings_launch_aws_finds_what_terraform_makes() -> None:
    found = options.resolve_settings({"region": "us-east-1"}, {}, None, account=lambda _: "123456789012")[0]
    (bucket,) = AMAZON.of_kind("aws_s3_bucket").values()
    assert bucket["bucket"] == '${coalesce(var.bucket, "rooflaunch-${local.account}-${var.region}")}'
    assert found.bucket == "rooflaunch-123456789012-us-east-1"
    assert found.repository.partition("/")[2] == AMAZON.named("variable")["repository"]["default"]
    names = {kind: next(iter(AMAZON.of_kind(kind).values()))["name"] for kind in ("aws_iam_instance_profile",)}
    assert found.instance_profile == names["aws_iam_instance_profile"]
    assert found.schedule_role == AMAZON.of_kind("aws_iam_role")["schedule"]["name"]
    assert found.security_group == AMAZON.of_kind("aws_security_group")["vm"]["name"]

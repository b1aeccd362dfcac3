"""What holds for the Terraform files of each cloud; Terraform itself is asked where it is installed."""

import re
import shutil
import subprocess

import pytest

from tests.infra.terraform_files import AMAZON, GOOGLE, ROOT, TerraformFiles, misuses, values

CLOUDS = (GOOGLE, AMAZON)
each_cloud = pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.provider)


@each_cloud
def test_the_files_are_there_and_have_no_module_or_provisioner(cloud: TerraformFiles) -> None:
    kinds = {kind for document in cloud.documents for kind in document}
    assert kinds == {"terraform", "provider", "variable", "locals", "resource", "data", "output"}
    assert not [name for name, body in cloud.resources().items() if "provisioner" in body or "connection" in body]


@each_cloud
def test_nothing_is_public_and_there_are_no_keys(cloud: TerraformFiles) -> None:
    words = re.compile("allUsers|allAuthenticatedUsers|service_account_key|(private|access|secret)_key|aws_iam_user")
    found = [value for document in cloud.documents for value in values(document) if words.search(value)]
    assert not [value for value in found if "aws_iam_user_policy_attachment" not in value]


@each_cloud
def test_variables_are_described_typed_checked_and_in_the_readme(cloud: TerraformFiles) -> None:
    variables = cloud.named("variable")
    for body in variables.values():
        assert body["description"].endswith((".", "`."))
        assert body["type"]
        assert "validation" in body or body["type"] in ("bool", "${bool}")
    table = re.findall(r"^\| `(\w+)` \|", cloud.readme, flags=re.MULTILINE)
    assert sorted(table) == sorted(variables)


# Terraform's RE2 and Python's re agree on these patterns: values that each takes, and values that it refuses.
VALUES: tuple[tuple[TerraformFiles, str, list[str], list[str]], ...] = (
    (GOOGLE, "project", ["my-project-1"], ["My Project", "123456789012"]),
    (GOOGLE, "region", ["europe-west4"], ["us-central1-a", "us"]),
    (GOOGLE, "bucket", ["my-project-1-rooflaunch"], ["gs://my-bucket"]),
    (GOOGLE, "repository", ["rooflaunch"], ["rooflaunch/trainer"]),
    (GOOGLE, "launchers", ["user:you@example.com"], ["allUsers", "allAuthenticatedUsers", "domain:example.com"]),
    (GOOGLE, "billing_account", ["012345-6789AB-CDEF01"], ["billingAccounts/012345-6789AB-CDEF01"]),
    (AMAZON, "region", ["eu-central-1", "us-gov-west-1"], ["us-east-1a"]),
    (AMAZON, "bucket", ["rooflaunch-123456789012-us-east-1"], ["s3://my-bucket"]),
    (AMAZON, "repository", ["rooflaunch/trainer"], ["rooflaunch/trainer:latest"]),
    (AMAZON, "launchers", ["you@example.com"], ["arn:aws:iam::123456789012:user/you"]),
    (AMAZON, "vpc", ["vpc-0123456789abcdef0"], ["default"]),
    (AMAZON, "budget_email", ["you@example.com"], ["you"]),
)


@pytest.mark.parametrize(("cloud", "name", "taken", "refused"), VALUES)
def test_validation_takes_and_refuses(cloud: TerraformFiles, name: str, taken: list[str], refused: list[str]) -> None:
    (validation,) = cloud.named("variable")[name]["validation"]
    (pattern,) = re.findall(r'regex\("(.*?)",', validation["condition"])
    found = [value for value in (*taken, *refused) if re.search(pattern.replace("\\\\", "\\"), value)]
    assert found == taken
    assert validation["error_message"].startswith(name)


@each_cloud
def test_outputs_are_described_in_the_docs(cloud: TerraformFiles) -> None:
    pages = cloud.readme + (ROOT / "docs" / f"{cloud.folder.name}.md").read_text(encoding="utf-8")
    for name, body in cloud.named("output").items():
        assert body["description"].endswith(".")
        assert re.search(rf"`{name}`|output -raw {name}\b", pages), name


@each_cloud
def test_versions_have_both_ends(cloud: TerraformFiles) -> None:
    (block,) = cloud.blocks("terraform")
    assert re.fullmatch(r">= [\d.]+, < [\d.]+", block["required_version"])
    (providers,) = block["required_providers"]
    assert list(providers) == [cloud.provider]
    assert providers[cloud.provider]["source"] == f"hashicorp/{cloud.provider}"
    assert re.fullmatch(r">= [\d.]+, < [\d.]+", providers[cloud.provider]["version"])


@each_cloud
def test_every_reference_has_a_target(cloud: TerraformFiles) -> None:
    known = {f"{kind}.{name}" for kind, name in cloud.resources()}
    known |= {f"data.{kind}.{name}" for kind, name in cloud.resources("data")}
    found = set(re.findall(rf"(?<![.\w])(?:data\.)?{cloud.provider}_\w+\.\w+", cloud.text))
    assert found
    assert found <= known
    assert set(re.findall(r"\bvar\.(\w+)", cloud.text)) == set(cloud.named("variable"))
    assert set(re.findall(r"\blocal\.(\w+)", cloud.text)) == set(cloud.locals())


# ---- the provider's arguments


@each_cloud
def test_arguments_are_those_of_the_provider(cloud: TerraformFiles) -> None:
    assert [misuse for address in sorted(cloud.all_resources()) for misuse in cloud.misuses(address)] == []


def test_misuses_are_found() -> None:
    known = {"a": "required", "b": "optional", "c": "computed", "d": {"e": "required", "*": "required"}}
    assert list(misuses({"a": 1, "d": [{"e": 1}], "count": 1}, known, "x")) == []
    wrong = {"b": 1, "c": 2, "f": 3, "d": [{"g": 1}], "dynamic": [{"d": {"for_each": [], "content": [{"e": 1}]}}]}
    assert list(misuses(wrong, known, "x")) == [
        "x: no a",
        "x.c is computed",
        "x.f is unknown",
        "x.d: no e",
        "x.d.g is unknown",
    ]
    assert list(misuses({"a": 1}, known, "x")) == ["x: no d"]


@each_cloud
def test_attributes_that_are_read_exist(cloud: TerraformFiles) -> None:
    found = cloud.read_attributes()
    assert len(found) > 10
    assert not [f"{kind}: {name}" for kind, name in found if name not in cloud.arguments[kind]]


@each_cloud
@pytest.mark.world
def test_terraform_itself_would_not_format_anything(cloud: TerraformFiles) -> None:
    terraform = shutil.which("terraform") or shutil.which("tofu")
    if terraform is None:
        pytest.skip("needs terraform or tofu")
    done = subprocess.run(
        [terraform, "fmt", "-check", "-diff", cloud.folder], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")

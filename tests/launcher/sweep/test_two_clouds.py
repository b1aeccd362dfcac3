"""One sweep on two fake clouds at the same time: each gets all its runs and keeps no machine; one report shows both."""

from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.report.evidence import gather
from analysis.report.sections import answer
from launcher.backends.aws.backend import ElasticCompute
from launcher.backends.aws.options import Options, Where
from launcher.backends.aws.service import Ec2
from launcher.sweep.places import Place
from tests.launcher.backends.aws.aws_world import IMAGE, ZONES
from tests.launcher.backends.aws.canned_instance import AwsCloud, aws_clouds_on
from tests.launcher.backends.aws.fake_aws import REGION, AwsError
from tests.launcher.backends.gcp.canned_cloud import Clouds
from tests.launcher.sweep.cloudy import cloud_sweep, gcp_of, no_docker, swept, t4
from tests.workload.storage.gcs_server import BUCKET, GcsServer
from workload.storage.inventory import sealed_in

pytestmark = [pytest.mark.world, pytest.mark.slow]


def aws_backend(cloud: AwsCloud) -> ElasticCompute:
    ec2 = Ec2(REGION, sleep=cloud.clock.sleep, monotonic=cloud.clock.now)
    return ElasticCompute(
        ec2=lambda _: ec2,
        bucket=lambda _: cloud.bucket,  # type: ignore[arg-type,return-value]
        engine=no_docker,
        sleep=cloud.clock.sleep,
        monotonic=cloud.clock.now,
    )


def test_a_sweep_over_gcp_and_aws(
    clouds: Clouds, gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(gpu="t4", zones=ZONES, fallback=False, spot=True, image=IMAGE)
    twin = Place(name="aws-t4", backend="aws", options=options, where=Where(region=REGION, bucket=BUCKET), machines=0)
    with clouds() as google, aws_clouds_on(gcs, tmp_path, monkeypatch)(clock=google.clock) as amazon:
        amazon.fake.errors[f"RunInstances {ZONES[0]}"] = [AwsError("InsufficientInstanceCapacity", 500)]
        sweep = cloud_sweep(t4(), twin, name="twins", blocks=3)
        backends: dict[str, Any] = {"gcp": gcp_of(google), "aws": aws_backend(amazon)}
        outcome = swept(google, sweep, backend_of=backends.__getitem__)
        assert (outcome.exit_code, [(place.done, place.new_runs) for place in outcome.places]) == (0, [(6, 6), (6, 6)])
        assert google.fake.instances == []
        assert (len(amazon.fake.live), amazon.fake.volumes, amazon.fake.schedules) == (0, {}, {})
        assert len(amazon.fake.vms) == 3
    keys = sorted(run.run_key for place in sweep.places for run in place.runs)
    assert sorted(one.run_key for one in sealed_in(google.output) if one.status == "completed") == keys
    (said,) = [text for text in answer.sentences(gather(api.load(google.output))) if "a T4?" in text]
    assert said.startswith("Is a T4 a T4? ")
    # A canned VM's record has no region, so its price is unknown.
    assert "an unknown price on aws, an unknown price on gcp; driver, CPU and image are the same." in said

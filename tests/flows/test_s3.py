"""All the way over a real S3 server: evidence, artifacts and verdict are in the bucket, the audit reads only there."""

from __future__ import annotations

import boto3
import pytest
from botocore.config import Config


@pytest.mark.slow
def test_train_and_audit_over_s3(vt, params, seaweed, tmp_path):
    env = {"AWS_ACCESS_KEY_ID": seaweed.access_key, "AWS_SECRET_ACCESS_KEY": seaweed.secret_key}
    url = seaweed.url("prod/team-a/runs")
    path = params(steps=4, segment_steps=2)
    trained = vt("train", "--params", str(path), "--store", url, "--run-id", "s3-run", "--json", env=env)
    assert trained.code == 0, trained.err
    assert seaweed.secret_key not in trained.out + trained.err

    elsewhere = tmp_path / "auditor"
    elsewhere.mkdir()
    arguments = ("audit", "s3-run", "--store", url, "--profile", "portable", "--json")
    audited = vt(*arguments, cwd=elsewhere, env=env)
    assert audited.code == 0, audited.err
    assert audited.json["verdict"] == "verified" and audited.json["state"] == trained.json["state_digest"]
    assert vt("show", "--store", url, "--json", env=env).json["runs"][0]["last_verdict"] == "verified"

    # Without credentials it is an environment error with a hint, never a verdict.
    refused = vt(*arguments, cwd=elsewhere)
    assert refused.code == 3 and "credentials" in refused.json["error"].lower()

    # An artifact that is overwritten behind DVC's back is a finding: DVC alone would trust it.
    client = boto3.client(
        "s3", endpoint_url=seaweed.endpoint, aws_access_key_id=seaweed.access_key, region_name="us-east-1",
        aws_secret_access_key=seaweed.secret_key, config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    listed = client.list_objects_v2(Bucket=seaweed.bucket, Prefix="prod/team-a/runs/artifacts/")["Contents"]
    victim = max(listed, key=lambda o: o["Size"])["Key"]
    body = bytearray(client.get_object(Bucket=seaweed.bucket, Key=victim)["Body"].read())
    body[len(body) // 2] ^= 16
    client.put_object(Bucket=seaweed.bucket, Key=victim, Body=bytes(body))
    broken = vt(*arguments, cwd=elsewhere, env=env)
    assert broken.code == 1 and broken.json["reason"] == "artifact_corrupt"

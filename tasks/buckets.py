"""Setting up a bucket for evidence: versions are kept (Object Lock is possible), and nobody may delete."""

from __future__ import annotations

import json

import boto3
import botocore.exceptions
from botocore.config import Config

from vt_core.errors import StoreError

_DELETING = ["s3:DeleteObject", "s3:DeleteObjectVersion"]


def prepare_bucket(
    endpoint: str | None, access_key: str, secret_key: str, bucket: str, retention_days: int | None = None
) -> None:
    """Make ``bucket`` unless it exists, switch versioning on, and deny deletion. Raises StoreError.

    Needs an administrator's keys. With versions kept and deletion denied the first version of a commitment stays
    for ever, and readers take the first (see ``tasks.store_s3``). With ``retention_days`` each object is also
    locked for so long (Object Lock, governance mode), which holds against whoever can change the policy.
    """
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path"}, retries={"mode": "standard"}, connect_timeout=5, read_timeout=20
        ),
    )
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "EvidenceStays",
                "Effect": "Deny",
                "Principal": "*",
                "Action": _DELETING,
                "Resource": [f"arn:aws:s3:::{bucket}/*"],
            }
        ],
    }
    try:
        names = {b["Name"] for b in client.list_buckets()["Buckets"]}
        if bucket not in names:
            client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        if retention_days is not None:
            rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": retention_days}}
            client.put_object_lock_configuration(
                Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
            )
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, OSError) as error:
        raise StoreError(f"cannot prepare the bucket {bucket} at {endpoint or 'AWS'}: {error}") from error

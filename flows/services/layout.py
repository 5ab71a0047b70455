"""Where the services of one folder live: ports, files, keys. Secrets are in files that only the owner can read."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BUCKET, PREFIX = "evidence", "prod"
# What each party may do. Nobody may delete, and only the administrator may change the bucket (see s3.py).
IDENTITIES: dict[str, tuple[str, ...]] = {
    "admin": ("Admin",),
    "trainer": (
        f"Read:{BUCKET}", f"List:{BUCKET}", f"Write:{BUCKET}/{PREFIX}/commitments*",
        f"Write:{BUCKET}/{PREFIX}/artifacts*",
    ),
    "auditor": (f"Read:{BUCKET}", f"List:{BUCKET}", f"Write:{BUCKET}/{PREFIX}/verdicts*"),
    "client": (f"Read:{BUCKET}", f"List:{BUCKET}"),
}  # fmt: skip
S3_PORTS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
    "filer.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip


@dataclass
class Layout:
    """The services of one folder; saved as ``services.json``."""

    folder: str
    prefect_port: int
    s3_ports: dict[str, int]
    keys: dict[str, tuple[str, str]] = field(repr=False)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    @property
    def api_url(self) -> str:
        """Prefect's API."""
        return f"http://127.0.0.1:{self.prefect_port}/api"

    @property
    def endpoint(self) -> str:
        """The S3 server."""
        return f"http://127.0.0.1:{self.s3_ports['s3.port']}"

    @property
    def store(self) -> str:
        """The store's URL; the endpoint and the keys come from the environment."""
        return f"s3://{BUCKET}/{PREFIX}"

    def environment(self, party: str) -> dict[str, str]:
        """Return what a process of ``party`` needs: API, endpoint and that party's keys only."""
        access, secret = self.keys[party]
        return {
            "PREFECT_API_URL": self.api_url,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
            "VT_STORE": self.store,
        }

    @property
    def workspace(self) -> str:
        """Where the workers keep what they work on (the deployments' ``workspace``)."""
        return str(self.path / "work")

    def save(self) -> None:
        """Write ``services.json``, S3 configuration and one environment file a party, readable by the owner only."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        write_private(self.path / "services.json", json.dumps(asdict(self)))
        write_private(self.path / "s3.json", json.dumps(self._s3_configuration()))
        for party in ("trainer", "auditor", "client"):
            lines = [f"export {k}='{v}'\n" for k, v in self.environment(party).items()]
            write_private(self.path / f"{party}.env", "".join(lines))

    def _s3_configuration(self) -> dict[str, Any]:
        return {
            "identities": [
                {
                    "name": name,
                    "credentials": [{"accessKey": self.keys[name][0], "secretKey": self.keys[name][1]}],
                    "actions": list(actions),
                }
                for name, actions in IDENTITIES.items()
            ]
        }


def open_layout(folder: Path, prefect_port: int | None = None) -> Layout:
    """Return the layout saved in ``folder``, or make a new one on free ports.

    ``prefect_port``: of a new layout; None is 4200 if that is free, 0 any free port.
    """
    saved = folder / "services.json"
    if saved.exists():
        plain = json.loads(saved.read_text(encoding="utf-8"))
        plain["keys"] = {k: tuple(v) for k, v in plain["keys"].items()}
        return Layout(**{**plain, "folder": str(folder.absolute())})
    ports = free_ports(len(S3_PORTS) + 1)
    if prefect_port is None:
        prefect_port = 4200 if is_free(4200) else ports[-1]
    elif prefect_port == 0:
        prefect_port = ports[-1]
    layout = Layout(
        folder=str(folder.absolute()),
        prefect_port=prefect_port,
        s3_ports=dict(zip(S3_PORTS, ports, strict=False)),
        keys={name: (secrets.token_hex(10).upper(), secrets.token_hex(20)) for name in IDENTITIES},
    )
    layout.save()
    return layout


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody but its owner can read, never half."""
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def is_free(port: int) -> bool:
    """Tell whether a port of 127.0.0.1 can be bound."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

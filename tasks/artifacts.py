"""Large artifacts, versioned by DVC: publish a directory to the store, and fetch directories back.

The workspace is a DVC repository without Git. DVC's MD5 addresses are locations, never proof (``dvc add``
swaps the bytes of two files with a colliding MD5, silently): callers hash with SHA-256 *before*
:meth:`ArtifactStore.publish` and check *after* :meth:`ArtifactStore.fetch`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import yaml

from tasks.dvc_objects import Pointer, check_listing, check_objects, check_sizes, object_name, read_listing
from tasks.dvc_process import DvcProcess
from tasks.store import DvcRemote
from vt_core.errors import EvidenceError, StoreError

__all__ = ["ArtifactStore", "Pointer"]

_REMOTE = "artifacts"
_LINK = "store"  # in .dvc: the way to a local remote
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class ArtifactStore:
    """The artifacts of one ``workspace`` (a directory), kept in ``remote``.

    A context manager; give ``process`` to share one DVC child between several workspaces, else this object
    starts and ends its own.
    """

    def __init__(self, workspace: Path, remote: DvcRemote, process: DvcProcess | None = None) -> None:
        self._workspace = workspace.absolute()
        self._remote = remote
        self._objects = remote.objects()
        self._owned = DvcProcess() if process is None else None
        self._dvc = process or self._owned or DvcProcess()

    def __enter__(self) -> ArtifactStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the DVC child if it is this object's own."""
        if self._owned is not None:
            self._owned.close()

    def init(self) -> None:
        """Make the workspace a DVC repository that pushes to the remote; again is harmless, and so is a kill.

        Everything is made in a temporary directory and renamed into place, since ``dvc init`` and DVC's
        writing of its configuration can both be cut in half. An existing cache is kept. Raises
        :class:`StoreError`.
        """
        try:
            self._workspace.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".vt-init-", dir=self._workspace) as made:
                self._configure(Path(made))
                target = self._workspace / ".dvc"
                if target.is_dir():
                    for name in filter(lambda n: os.path.lexists(Path(made) / ".dvc" / n), (_LINK, "config")):
                        os.replace(Path(made) / ".dvc" / name, target / name)
                else:
                    os.rename(Path(made) / ".dvc", target)
        except OSError as error:
            raise StoreError(
                f"cannot set up the workspace {self._workspace}: {error}; check its permissions and free space"
            ) from error

    def publish(self, directory: Path) -> Pointer:
        """Add ``directory`` (inside the workspace, one or more files) to DVC, push it, and return its
        pointer.

        May be called again after a failure. Raises :class:`StoreError` if DVC fails or if, after its success,
        an object is not in the remote.
        """
        target = directory.absolute()
        if not target.is_dir() or target.is_symlink() or not target.is_relative_to(self._workspace):
            raise StoreError(f"cannot publish {directory}: it is not a directory inside {self._workspace}")
        path = target.relative_to(self._workspace).as_posix()
        self._check_path(path)
        self._dvc.run(["--wait-for-lock", "add", path], self._workspace)
        try:
            return self._push(path)
        except EvidenceError as error:  # about our own directory, so it is no finding
            raise StoreError(f"cannot publish {directory}: {error}") from error

    def _push(self, path: str) -> Pointer:
        pointer = _read_pointer(self._workspace / f"{path}.dvc")
        if not self._remote.is_s3:
            _make_directory(Path(self._remote.url))
        self._dvc.run(["--wait-for-lock", "push", f"{path}.dvc"], self._workspace)
        # DVC takes a remote that holds the listing to hold all files, and remembers what it has seen: look.
        files = check_listing(read_listing(pointer, self._objects, path), pointer, path)
        for file, md5 in files.items():
            if not self._objects.exists(object_name(md5)):
                raise StoreError(
                    f"{path}/{file} is missing from {self._remote.url} although DVC pushed it; somebody deletes from "
                    f"the store. Remove {object_name(pointer.md5)} there and publish again"
                )
        return pointer

    def fetch(self, pointers: Mapping[str, Pointer], into: Path | None = None, only: str | None = None) -> None:
        """Bring directories into the workspace, all in one pull.

        Each key is the path of a directory relative to ``into``, a directory inside the workspace (the
        workspace itself by default). Whatever lies in those places is replaced. With ``only``, just the file of
        that name in each directory is brought (a report needs no checkpoints). Raises
        :class:`EvidenceError`: ``artifact_missing`` or ``artifact_corrupt`` if the remote lacks an object or
        holds other bytes, ``evidence_malformed`` for a listing that could write outside its directory. A
        remote that cannot be reached is a :class:`StoreError`, and so is a disk that has no room for all of it:
        nothing is fetched then.
        """
        base = self._workspace if into is None else into.absolute()
        if not base.is_relative_to(self._workspace):
            raise StoreError(f"cannot fetch into {into}: it is not inside the workspace {self._workspace}")
        if not pointers:
            return
        for path in pointers:
            self._check_path(path)  # as it was given: joining it to a directory would hide '/x' and 'a//b'
        pointers = {(base / k).relative_to(self._workspace).as_posix(): p for k, p in pointers.items()}
        listings: dict[str, dict[str, str]] = {}
        total = 0
        for path, pointer in pointers.items():
            self._check_path(path)
            data = read_listing(pointer, self._objects, path)
            files = check_listing(data, pointer, path)
            if only is not None and only not in files:
                raise EvidenceError("artifact_missing", f"{path} does not hold {only}", file=f"{path}/{only}")
            listings[path] = files if only is None else {only: files[only]}
            total += check_sizes(listings[path], pointer, self._objects, path, whole=only is None)
            self._plant(data, pointer)
            self._write_pointer(path, pointer)
        self._check_room(total)
        try:
            targets = (f"{path}.dvc" if only is None else f"{path}/{only}" for path in pointers)
            self._dvc.run(["--wait-for-lock", "pull", "--force", *targets], self._workspace)
        except StoreError:
            # DVC's wording does not tell a missing object from a corrupt one or from a broken connection:
            # look.
            for path, files in listings.items():
                check_objects(files, self._objects, path)
            raise

    def _configure(self, directory: Path) -> None:
        # Never --quiet: it silences DVC's errors too.
        self._dvc.run(["init", "--no-scm"], directory)
        url = self._remote.url
        if not self._remote.is_s3:
            # DVC cannot write a path into its configuration that is not ASCII (it empties the file instead),
            # and '#', '$' and '~' have a meaning there. So the configuration only ever names a link beside
            # itself.
            os.symlink(url, directory / ".dvc" / _LINK)
            url = f".dvc/{_LINK}"
        for argv in (
            ["remote", "add", "--default", _REMOTE, url],
            # DVC trusts S3 by default: an overwritten object would be pulled without an error.
            ["remote", "modify", _REMOTE, "verify", "true"],
            *(["remote", "modify", _REMOTE, name, value] for name, value in sorted(self._remote.options.items())),
            ["config", "core.autostage", "false"],
            ["config", "core.analytics", "false"],
            ["config", "core.check_update", "false"],
            # Hard and symbolic links make the files read-only, and an edit would corrupt the cache.
            ["config", "cache.type", "reflink,copy"],
        ):
            self._dvc.run(argv, directory)

    def _plant(self, listing: bytes, pointer: Pointer) -> None:
        """Put the checked ``listing`` into DVC's cache, so that DVC cannot be given another one with the same
        MD5.
        """
        target = self._workspace / ".dvc" / "cache" / object_name(pointer.md5)
        _write_file(target, listing)

    def _write_pointer(self, path: str, pointer: Pointer) -> None:
        out = {"md5": pointer.md5, "size": pointer.size, "nfiles": pointer.nfiles, "hash": "md5"}
        text = yaml.safe_dump({"outs": [{**out, "path": path.rpartition("/")[2]}]}, sort_keys=False)
        _write_file(self._workspace / f"{path}.dvc", text.encode())

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self._workspace).free
        if 2 * size > free:  # the cache and the workspace; one of them is spared where the disk can make reflinks
            raise StoreError(
                f"the artifacts have {size} bytes, of which {self._workspace} needs two copies, and {free} bytes are "
                "free there; choose fewer segments, or another workspace"
            )

    def _check_path(self, path: str) -> None:
        # A first dash would be an option of dvc.
        if len(path) > 700 or not all(_COMPONENT.fullmatch(part) for part in path.split("/")):
            raise StoreError(
                f"{path[:100]!r} cannot be an artifact's path: use names of letters, digits, '.', '_' and '-', "
                "relative to the workspace, none beginning with '.' or '-'"
            )
        for parent in [self._workspace / path, *(self._workspace / path).parents]:
            if parent == self._workspace:
                return
            if parent.is_symlink():
                raise StoreError(f"the artifact {path} would lie behind the symbolic link {parent}")


def _read_pointer(file: Path) -> Pointer:
    try:
        (out,) = yaml.safe_load(file.read_text())["outs"]
        fields = {name: out[name] for name in ("md5", "size", "nfiles", "path")}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise StoreError(f"cannot read the pointer {file} that DVC wrote: {error}") from error
    return Pointer.from_json(fields)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory {directory}: {error.strerror}") from error


def _write_file(target: Path, data: bytes) -> None:
    """Write ``target`` whole or not at all, replacing what is there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        fd, temporary = tempfile.mkstemp(prefix=".vt-", dir=target.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error

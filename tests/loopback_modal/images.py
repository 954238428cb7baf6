"""Images and mounts: of builds only what is copied is done, the rest is recorded; mounted files are kept by digest."""

from __future__ import annotations

import atexit
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.blobs import Blobs
from tests.loopback_modal.processes import CODE
from tests.loopback_modal.store import Store, Thing, new_id

_SHARED = re.compile(rf"(?:{'|'.join(CODE)}|/opt/koderz)/[^/]+")
IMAGE_BUILDER = "2025.06"
_BUILT = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
_FAILED = api_pb2.GenericResult(
    status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception="there is no such instruction"
)
_WORDS = frozenset(
    {
        *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL"),
        *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
    }
)


class Images:
    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs

    async def image_get_or_create(self, request: api_pb2.ImageGetOrCreateRequest) -> api_pb2.ImageGetOrCreateResponse:
        body = request.image.SerializeToString(deterministic=True)
        digest = sha256(body).hexdigest()
        thing = self._store.named("image", digest) or self._store.add("image", "im", name=digest, body=body)
        words = {line.split()[0].upper() for line in request.image.dockerfile_commands if line.strip()}
        result = _FAILED if any(word.isalpha() for word in words - _WORDS) else _BUILT
        return api_pb2.ImageGetOrCreateResponse(image_id=thing.id, result=result, metadata=_metadata())

    async def image_from_id(self, request: api_pb2.ImageFromIdRequest) -> api_pb2.ImageFromIdResponse:
        return api_pb2.ImageFromIdResponse(image_id=self._thing(request.image_id).id, metadata=_metadata())

    async def image_join_streaming(
        self, _request: api_pb2.ImageJoinStreamingRequest
    ) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        yield api_pb2.ImageJoinStreamingResponse(result=_BUILT, eof=True, metadata=_metadata())

    async def mount_batched_check_existence(
        self, request: api_pb2.MountBatchedCheckExistenceRequest
    ) -> api_pb2.MountBatchedCheckExistenceResponse:
        missing = [one for one in request.sha256_hex_hashes if not self._blobs.has(one)]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def mount_put_file(self, request: api_pb2.MountPutFileRequest) -> api_pb2.MountPutFileResponse:
        which = request.WhichOneof("data_oneof")
        if which is not None:
            data = request.data if which == "data" else self._blobs.read(request.data_blob_id)
            self._blobs.keep(request.sha256_hex, data)
        return api_pb2.MountPutFileResponse(exists=self._blobs.has(request.sha256_hex))

    async def mount_get_or_create(self, request: api_pb2.MountGetOrCreateRequest) -> api_pb2.MountGetOrCreateResponse:
        thing = self._store.named("mount", request.deployment_name) if request.deployment_name else None
        if thing is None:
            body = request.SerializeToString()
            thing = self._store.add("mount", "mo", name=request.deployment_name, body=body)
        handle = api_pb2.MountHandleMetadata(content_checksum_sha256_hex=sha256(thing.body).hexdigest())
        return api_pb2.MountGetOrCreateResponse(mount_id=thing.id, handle_metadata=handle)

    def files(self, mount_id: str) -> dict[str, str]:
        """A mount's files: the path in the container, and the digest."""
        request = api_pb2.MountGetOrCreateRequest.FromString(self._thing(mount_id).body)
        return {one.filename: one.sha256_hex for one in request.files}

    def write_mounts(self, mount_ids: Iterable[str], root: Path) -> dict[str, Path]:
        """Writes what is mounted to a container's root. Returns where the rest lies, by where it is seen.

        Code, such as `/root/koderz`, and what koderz mounts below `/opt/koderz` are written once for all containers
        of this process: they share the bytecode that they leave there, too. Whatever else is mounted is each
        container's own, as it may write there.
        """
        own: dict[str, str] = {}
        shared: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for mount_id in mount_ids:
            for name, digest in self.files(mount_id).items():
                matched = _SHARED.match(name)
                (shared[matched[0]] if matched else own)[name] = digest
        self._write(own, root)
        found = {}
        for place, files in shared.items():
            folder = _shared() / sha256(repr(sorted(files.items())).encode()).hexdigest()
            if not folder.exists():
                made = folder.with_name(new_id("mo"))
                self._write(files, made)
                with suppress(OSError):  # another server was faster
                    made.rename(folder)
            found[place] = folder / place.lstrip("/")
        return found

    def _write(self, files: Mapping[str, str], root: Path) -> None:
        for name, digest in files.items():
            target = root / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._blobs.read(digest))
            target.chmod(0o755)

    def write_copied(self, image_id: str, root: Path) -> None:
        """Puts what the image's Dockerfile copies to where it says, by `COPY SOURCE… TARGET` and WORKDIR alone."""
        folder = "/"
        for layer in self.layers(image_id):
            for word, rest in (
                line.split(None, 1) for line in layer.dockerfile_commands if len(line.split(None, 1)) > 1
            ):
                if word == "WORKDIR":
                    folder = posixpath.join(folder, rest)
                elif word == "COPY" and layer.context_mount_id:
                    *sources, target = shlex.split(rest)
                    for name, digest in self.files(layer.context_mount_id).items():
                        for source in sources:
                            inner = posixpath.relpath(name, posixpath.join("/", source))
                            if not inner.startswith(".."):
                                named = posixpath.join(
                                    folder, target, posixpath.basename(name) if inner == "." else inner
                                )
                                path = root / posixpath.normpath(named).lstrip("/")
                                path.parent.mkdir(parents=True, exist_ok=True)
                                path.write_bytes(self._blobs.read(digest))

    def layers(self, image_id: str) -> list[api_pb2.Image]:
        """An image as it was asked for, from its base up."""
        image = api_pb2.Image.FromString(self._thing(image_id).body)
        below = [layer for base in image.base_images for layer in self.layers(base.image_id)]
        return [*below, image]

    def dockerfile(self, image_id: str) -> list[str]:
        """The lines of all its layers, from its base up."""
        return [line for layer in self.layers(image_id) for line in layer.dockerfile_commands]

    def secrets(self) -> list[str]:
        """The ids of those by which images were pulled."""
        asked = [api_pb2.Image.FromString(thing.body).image_registry_config for thing in self._store.all("image")]
        return [each.secret_id for each in asked if each.secret_id]

    def environment(self, image_id: str) -> dict[str, str]:
        """The variables that the image sets."""
        return dict(_variables(self.dockerfile(image_id))) if image_id else {}

    def _thing(self, thing_id: str) -> Thing:
        thing = self._store.find(thing_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"'{thing_id}' not found")
        return thing


@cache
def _shared() -> Path:
    folder = TemporaryDirectory(prefix="loopback-modal-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _metadata() -> api_pb2.ImageMetadata:
    return api_pb2.ImageMetadata(image_builder_version=IMAGE_BUILDER)


def _variables(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.startswith("ENV "):
            for pair in shlex.split(line[4:]):
                name, _, value = pair.partition("=")
                yield name, value

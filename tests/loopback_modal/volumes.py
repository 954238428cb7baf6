"""Volumes: each a folder. What a container writes is there at once; commit and reload have nothing to do."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path, PurePosixPath

from aiohttp import web
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.blobs import BLOCK, Blobs, send_range
from tests.loopback_modal.store import Store, Thing

_V1, _UNSAID = api_pb2.VOLUME_FS_VERSION_V1, api_pb2.VOLUME_FS_VERSION_UNSPECIFIED
_MAKING = frozenset(
    {
        api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING,
        api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS,
        api_pb2.OBJECT_CREATION_TYPE_EPHEMERAL,
    }
)


class Volumes:
    """A volume's body is the number of its file system's version. Those in `foreign` are somebody else's."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs
        self._folder = store.folder / "volumes"
        self.foreign: set[str] = set()

    def folder(self, volume_id: str) -> Path:
        """Where a volume's files are."""
        folder = self._folder / self._thing(volume_id).id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def metadata(self, volume_id: str) -> api_pb2.VolumeMetadata:
        return _metadata(self._thing(volume_id))

    def named(self, name: str) -> Path:
        """Where the files of a volume of that name are. Raises KeyError where there is none."""
        thing = self._store.named("volume", name)
        if thing is None:
            raise KeyError(name)
        return self.folder(thing.id)

    async def volume_get_or_create(
        self, request: api_pb2.VolumeGetOrCreateRequest
    ) -> api_pb2.VolumeGetOrCreateResponse:
        name, how = request.deployment_name, request.object_creation_type
        if name in self.foreign:
            raise GRPCError(Status.PERMISSION_DENIED, f"You don't have access to the Volume '{name}'.")
        found = self._store.named("volume", name) if name else None
        if found is not None and how == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"Volume '{name}' already exists")
        if found is None and how not in _MAKING:
            raise GRPCError(Status.NOT_FOUND, f"Volume '{name}' not found in environment 'main'.")
        version = str(_V1 if request.version == _UNSAID else request.version).encode()
        thing = found or self._store.add("volume", "vo", name=name, body=version)
        metadata = _metadata(thing)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=thing.id, version=metadata.version, metadata=metadata)

    async def volume_get_by_id(self, request: api_pb2.VolumeGetByIdRequest) -> api_pb2.VolumeGetByIdResponse:
        thing = self._thing(request.volume_id)
        return api_pb2.VolumeGetByIdResponse(volume_id=thing.id, metadata=_metadata(thing))

    async def volume_list(self, _request: api_pb2.VolumeListRequest) -> api_pb2.VolumeListResponse:
        items = [
            api_pb2.VolumeListItem(label=one.name, volume_id=one.id, created_at=one.created, metadata=_metadata(one))
            for one in self._store.all("volume")
            if one.name
        ]
        return api_pb2.VolumeListResponse(items=items, environment_name="main")

    async def volume_delete(self, request: api_pb2.VolumeDeleteRequest) -> Empty:
        shutil.rmtree(self.folder(request.volume_id))
        self._store.remove(request.volume_id)
        return Empty()

    async def volume_heartbeat(self, _request: api_pb2.VolumeHeartbeatRequest) -> Empty:
        return Empty()

    async def volume_commit(self, request: api_pb2.VolumeCommitRequest) -> api_pb2.VolumeCommitResponse:
        self._thing(request.volume_id)
        return api_pb2.VolumeCommitResponse(skip_reload=True)

    async def volume_reload(self, request: api_pb2.VolumeReloadRequest) -> Empty:
        self._thing(request.volume_id)
        return Empty()

    async def volume_list_files(
        self, request: api_pb2.VolumeListFilesRequest
    ) -> AsyncIterator[api_pb2.VolumeListFilesResponse]:
        yield api_pb2.VolumeListFilesResponse(entries=self._entries(request))

    async def volume_list_files2(
        self, request: api_pb2.VolumeListFiles2Request
    ) -> AsyncIterator[api_pb2.VolumeListFiles2Response]:
        yield api_pb2.VolumeListFiles2Response(entries=self._entries(request))

    async def volume_get_file2(self, request: api_pb2.VolumeGetFile2Request) -> api_pb2.VolumeGetFile2Response:
        path = self._existing(request.volume_id, request.path)
        if not path.is_file():
            raise GRPCError(Status.INVALID_ARGUMENT, f"'{request.path}' is no file")
        size = path.stat().st_size
        length = min(request.len or size, size - request.start)
        inside = path.relative_to(self.folder(request.volume_id))
        end = request.start + length
        urls = [
            f"{self._blobs.url}/volumes/{request.volume_id}/{start}/{min(BLOCK - start % BLOCK, end - start)}/{inside}"
            for start in _block_starts(request.start, end)
        ]
        return api_pb2.VolumeGetFile2Response(get_urls=urls, size=size, start=request.start, len=length)

    async def volume_put_files(self, request: api_pb2.VolumePutFilesRequest) -> Empty:
        paths = [self._path(request.volume_id, one.filename) for one in request.files]
        _refuse_present(paths if request.disallow_overwrite_existing_files else ())
        for path, one in zip(paths, request.files, strict=True):
            _write(path, self._blobs.read(one.sha256_hex))
        return Empty()

    async def volume_put_files2(self, request: api_pb2.VolumePutFiles2Request) -> api_pb2.VolumePutFiles2Response:
        missing = [
            api_pb2.VolumePutFiles2Response.MissingBlock(
                file_index=place, block_index=number, put_url=f"{self._blobs.url}/blocks"
            )
            for place, one in enumerate(request.files)
            for number, block in enumerate(one.blocks)
            if not self._blobs.has(block.contents_sha256.hex())
        ]
        if missing:
            return api_pb2.VolumePutFiles2Response(missing_blocks=missing)
        paths = [self._path(request.volume_id, one.path) for one in request.files]
        _refuse_present(paths if request.disallow_overwrite_existing_files else ())
        for path, file in zip(paths, request.files, strict=True):
            blocks = [self._blobs.read(block.contents_sha256.hex()) for block in file.blocks]
            _write(path, b"".join(_padded(blocks, file.size)))
        return api_pb2.VolumePutFiles2Response()

    async def volume_remove_file(self, request: api_pb2.VolumeRemoveFileRequest) -> Empty:
        self._remove(request.volume_id, request.path, recursive=request.recursive)
        return Empty()

    async def volume_remove_file2(self, request: api_pb2.VolumeRemoveFile2Request) -> Empty:
        self._remove(request.volume_id, request.path, recursive=request.recursive)
        return Empty()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/volumes/{volume}/{start}/{length}/{path:.+}", self._get)]

    async def _get(self, request: web.Request) -> web.Response:
        part = request.match_info
        return await send_range(self._path(part["volume"], part["path"]), int(part["start"]), int(part["length"]))

    def _thing(self, volume_id: str) -> Thing:
        thing = self._store.find(volume_id)
        if thing is None:
            raise GRPCError(Status.NOT_FOUND, f"Volume '{volume_id}' not found")
        return thing

    def _path(self, volume_id: str, path: str) -> Path:
        parts = [part for part in PurePosixPath(path).parts if part not in {"/", "."}]
        if ".." in parts:
            raise GRPCError(Status.INVALID_ARGUMENT, f"not a path in a Volume: {path!r}")
        return self.folder(volume_id).joinpath(*parts)

    def _existing(self, volume_id: str, path: str) -> Path:
        found = self._path(volume_id, path)
        if not found.exists():
            raise GRPCError(Status.NOT_FOUND, f"No such file or directory: '{path}'")
        return found

    def _entries(
        self, request: api_pb2.VolumeListFilesRequest | api_pb2.VolumeListFiles2Request
    ) -> Iterator[api_pb2.FileEntry]:
        root, found = self.folder(request.volume_id), self._existing(request.volume_id, request.path)
        if found.is_file():
            paths: Iterable[Path] = [found]
        else:
            paths = sorted(found.rglob("*") if request.recursive else found.iterdir())
        return (_entry(path, root) for path in paths)

    def _remove(self, volume_id: str, path: str, *, recursive: bool) -> None:
        found = self._existing(volume_id, path)
        if found.is_dir() and not recursive:
            raise GRPCError(Status.INVALID_ARGUMENT, f"'{path}' is a directory")
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def _block_starts(start: int, end: int) -> Iterator[int]:
    while start < end:
        yield start
        start += BLOCK - start % BLOCK


def _refuse_present(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise GRPCError(Status.ALREADY_EXISTS, f"{path.name}: already exists")


def _padded(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The blocks of a file of that size; the SDK leaves out the zeros that a block ends with."""
    for block in blocks:
        length = min(BLOCK, size)
        size -= length
        yield block.ljust(length, b"\0")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _entry(path: Path, root: Path) -> api_pb2.FileEntry:
    status = path.lstat()
    kind = api_pb2.FileEntry.FileType.DIRECTORY if path.is_dir() else api_pb2.FileEntry.FileType.FILE
    inside = path.relative_to(root).as_posix()
    return api_pb2.FileEntry(path=inside, type=kind, mtime=int(status.st_mtime), size=status.st_size)


def _metadata(volume: Thing) -> api_pb2.VolumeMetadata:
    return api_pb2.VolumeMetadata(version=int(volume.body), name=volume.name)  # type: ignore[arg-type]

"""Bytes by digest or id on disk, and the HTTP side where the SDK sends large ones and fetches parts of files."""

from __future__ import annotations

import os
from hashlib import md5, sha256
from pathlib import Path

from aiohttp import web
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.loopback_modal.store import new_id

BLOCK = 8 << 20  # bytes of a part of a volume's file, as the SDK cuts them
LARGEST = 5 << 30  # bytes of an upload


class Blobs:
    """`url` is set once its HTTP server listens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.url = ""

    def has(self, key: str) -> bool:
        return self.path(key).exists()

    def read(self, key: str) -> bytes:
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            raise GRPCError(Status.NOT_FOUND, f"blob '{key}' not found") from None

    def keep(self, key: str, data: bytes) -> None:
        part = self.path(f"{key}.part")
        part.write_bytes(data)
        part.replace(self.path(key))

    def path(self, key: str) -> Path:
        if not key or not all(letter.isalnum() or letter in "-_." for letter in key) or key.startswith("."):
            raise GRPCError(Status.INVALID_ARGUMENT, f"not the name of a blob: {key!r}")
        return self._folder / key

    async def blob_create(self, _request: api_pb2.BlobCreateRequest) -> api_pb2.BlobCreateResponse:
        blob_id = new_id("bl")
        urls = api_pb2.UploadUrlList(items=[f"{self.url}/blobs/{blob_id}"])
        return api_pb2.BlobCreateResponse(blob_id=blob_id, blob_ids=[blob_id], upload_urls=urls)

    async def blob_get(self, request: api_pb2.BlobGetRequest) -> api_pb2.BlobGetResponse:
        if not self.has(request.blob_id):
            raise GRPCError(Status.NOT_FOUND, f"blob '{request.blob_id}' not found")
        return api_pb2.BlobGetResponse(download_url=f"{self.url}/blobs/{request.blob_id}")

    def routes(self) -> list[web.RouteDef]:
        return [web.put("/blobs/{key}", self._put), web.get("/blobs/{key}", self._get), web.put("/blocks", self._block)]

    async def _put(self, request: web.Request) -> web.Response:
        data = await request.read()
        self.keep(request.match_info["key"], data)
        return web.Response(headers={"ETag": f'"{md5(data, usedforsecurity=False).hexdigest()}"'})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = self.path(request.match_info["key"])
        return web.FileResponse(path) if path.exists() else web.Response(status=404)

    async def _block(self, request: web.Request) -> web.Response:
        """A block of a file of a volume; its answer is what the client then shows for it."""
        data = await request.read()
        digest = sha256(data).hexdigest()
        self.keep(digest, data)
        return web.Response(body=digest.encode())


async def send_range(path: Path, start: int, length: int) -> web.Response:
    """A part of a file."""
    with path.open("rb") as file:
        file.seek(start, os.SEEK_SET)
        return web.Response(body=file.read(length))

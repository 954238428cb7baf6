"""What a container is started with: mounted files, volumes, secrets, the image's variables, and its instructions."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from modal_proto import api_pb2

from tests.loopback_modal.functions import Deployed, layout_of
from tests.loopback_modal.images import Images
from tests.loopback_modal.processes import Box, lay_out, place, start_python
from tests.loopback_modal.service import CONTAINER_HEADER
from tests.loopback_modal.store import Store
from tests.loopback_modal.variants import parameters_of
from tests.loopback_modal.vault import Vault
from tests.loopback_modal.volumes import Volumes

ARGUMENTS = "/__modal/arguments"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is to be seen in a container, by id."""

    image: str
    mounts: Iterable[str]
    volumes: Iterable[api_pb2.VolumeMount]
    secrets: Iterable[str]


class Starting:
    """`url` is set once the server listens."""

    def __init__(self, store: Store, images: Images, vault: Vault, volumes: Volumes) -> None:
        self._store, self._images, self._vault, self._volumes = store, images, vault, volumes
        self._folder = store.folder / "containers"
        self.url = ""

    def log(self, container_id: str) -> Path:
        """What the container printed."""
        return self._folder / f"{container_id}.log"

    async def start(self, container_id: str, function: Deployed) -> asyncio.subprocess.Process:
        """Modal's own container entrypoint, running this function."""
        asked = function.asked
        seen = Seen(asked.image_id, asked.mount_ids, asked.volume_mounts, asked.secret_ids)
        box = self.box(container_id, seen, self._way_back(container_id, asked.image_id))
        (box.root / ARGUMENTS.lstrip("/")).write_bytes(self._arguments(container_id, function).SerializeToString())
        return await start_python(box, ["-m", "modal._container_entrypoint"])

    def box(
        self,
        container_id: str,
        seen: Seen,
        environment: Mapping[str, str],
        *,
        network: bool = True,
        apart: bool = False,
    ) -> Box:
        """A container's folder with all that it shall see, and its variables: the image's, the secrets', its own."""
        root = self._folder / container_id
        root.mkdir(parents=True)
        if seen.image:
            self._images.write_copied(seen.image, root)
        mounts = self._images.write_mounts(seen.mounts, root)
        read_only = [path for path in mounts if path.startswith("/opt/")]
        mounts |= {one.mount_path: self._volumes.folder(one.volume_id) / one.sub_path for one in seen.volumes}
        merged = self._images.environment(seen.image) | self._vault.environment(seen.secrets) | dict(environment)
        return Box(root, lay_out(root, mounts), merged, self.log(container_id), network, apart, read_only)

    def clear(self, container_id: str) -> None:
        """Removes a container's folder; its log stays."""
        shutil.rmtree(self._folder / container_id, ignore_errors=True)
        for spec in self._folder.glob(f"{container_id}.*.json"):
            spec.unlink()

    def _way_back(self, container_id: str, image: str) -> dict[str, str]:
        """The variables by which Modal's SDK, inside, finds this server and who it is."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_IS_REMOTE": "1",
            "MODAL_TASK_ID": container_id,
            "MODAL_IMAGE_ID": image,
            "MODAL_ENVIRONMENT": "main",
            "MODAL_HEARTBEAT_INTERVAL": "10",
            "MODAL_OVERRIDE_HEADERS": f"{CONTAINER_HEADER}:{container_id}",
            "MODAL_CONTAINER_ARGUMENTS_PATH": place(self._folder / container_id, ARGUMENTS),
        }

    def _arguments(self, container_id: str, function: Deployed) -> api_pb2.ContainerArguments:
        app = self._store.find(function.app_id)
        layout = layout_of(self._store, app) if app else api_pb2.AppLayout()
        known = {one.object_id for one in layout.objects}
        for dependency in function.asked.object_dependencies:
            if dependency.object_id not in known:
                layout.objects.append(self._object(dependency.object_id))
        return api_pb2.ContainerArguments(
            task_id=container_id,
            function_id=function.id,
            app_id=function.app_id,
            function_def=function.asked,
            serialized_params=parameters_of(self._store, function.id),
            environment_name="main",
            app_layout=layout,
        )

    def _object(self, object_id: str) -> api_pb2.Object:
        """What the entrypoint has to know of a volume or anything else that a function refers to."""
        volume = self._volumes.metadata(object_id) if object_id.startswith("vo-") else None
        return api_pb2.Object(object_id=object_id, volume_metadata=volume)

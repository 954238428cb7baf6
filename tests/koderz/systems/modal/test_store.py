"""What outlives containers, on a loopback Modal."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import uuid4

from koderz.systems.modal.names import names_of
from koderz.systems.modal.store import ContainerShelf, RunStore
from tests.loopback_modal import ModalServer

LINES = [b'{"kind":"call","n":1}\n', b'{"kind":"attempt","n":2}\n']


def test_volume_gets_what_a_dead_container_had_not_committed(cloud: ModalServer, tmp_path: Path) -> None:
    run = f"bench_{uuid4().hex[:8]}_20260101_000000"

    async def after_a_death() -> list[bytes]:
        store = RunStore(names_of(os.environ), run)
        await store.append("exp_1", LINES[0], 0)
        shelf = ContainerShelf(store, "exp_1", tmp_path)
        found = await shelf.lines()
        await shelf.append(LINES[1])
        return found

    assert asyncio.run(after_a_death()) == LINES[:1]
    assert (tmp_path / "runs" / run / "exp_1.jsonl").read_bytes() == b"".join(LINES)


def test_volume_is_read_for_what_the_dict_has_forgotten(cloud: ModalServer, tmp_path: Path) -> None:
    run = f"bench_{uuid4().hex[:8]}_20260101_000000"
    path = tmp_path / "runs" / run / "exp_1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(LINES) + b'{"torn')

    found = asyncio.run(ContainerShelf(RunStore(names_of(os.environ), run), "exp_1", tmp_path).lines())

    assert found == LINES


def test_stored_parts_of_a_run_are_found_by_its_id(cloud: ModalServer) -> None:
    run = f"bench_{uuid4().hex[:8]}_20260101_000000"

    async def stored() -> tuple[dict[str, int], set[str]]:
        store = RunStore(names_of(os.environ), run)
        await store.put_plan(b"{}")
        await store.claim("exp_1", "fc-1", "")
        for n, line in enumerate(LINES):
            await store.append("exp_1", line, n)
        kept = cloud.volume("koderz-results") / "runs" / run / "exp_2.jsonl"
        kept.write_bytes(LINES[0])
        return dict(await store.counts()), await store.experiments()

    counts, experiments = asyncio.run(stored())

    assert counts == {"exp_1": 2}
    assert experiments == {"exp_1", "exp_2"}

"""Two machines, a tracking server and a store for all: the README's recipe for a team, as it stands there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Shell
from tests.tracker.sinks.servers import MlflowServer, postgresql

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef-team"
RUN = ("benchmark", 0, 2, "--mode", "comparative", "--model", "simulated", "--quiet", "--wait")


@contextmanager
def tracking_server(folder: Path) -> Iterator[str]:
    """MLflow's server on PostgreSQL; its address."""
    (folder / "mlflow").mkdir()
    with postgresql() as store:
        server = MlflowServer(folder / "mlflow", store)
        try:
            server.start()
            yield server.uri
        finally:
            server.kill()


def machine(folder: Path) -> Shell:
    folder.mkdir()
    return Shell(folder)


def test_merge_of_two_machines_is_one_set_of_runs(tmp_path: Path) -> None:
    first, second, office = (machine(tmp_path / name) for name in ("first", "second", "office"))
    with tracking_server(tmp_path) as uri:
        env = {"KODERZ_SINKS": "json,mlflow,memory", "MLFLOW_TRACKING_URI": uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
        processes = [one.start(*RUN, env=env) for one in (first, first, second)]
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], errors

        office("benchmark", "import", first.results, second.results)
        again = office("benchmark", "import", first.results, second.results)
        office("sync", env=env)
        office("sync", env=env)
        recorded = seen_by_mlflow(uri)

    assert again.out.count("there already") == 3
    runs = {json.loads(path.read_text())["run_id"]: path for path in office.results.glob("*.json")}
    assert len(runs) == 3
    assert recorded == dict.fromkeys(runs, 4), "each run is there once, with each of its experiments"
    remembered = asyncio.run(served_memories(office, {"KODERZ_SINKS": "memory"}))
    assert Counter(one["metadata"]["benchmark_run_id"] for one in remembered) == dict.fromkeys(runs, 4)
    assert len({one["metadata"]["experiment_id"] for one in remembered}) == 12


def seen_by_mlflow(uri: str) -> dict[str, int]:
    """How many traces each run has there. A run that is there twice fails here."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(experiments, max_results=1000)
    names = [(one.data.tags["benchmark_run_id"], one.data.tags.get("koderz.arm")) for one in found]
    assert len(set(names)) == len(names)
    traces = client.search_traces(locations=experiments, max_results=500, include_spans=False)
    run_ids = {one.info.run_id: one.data.tags["benchmark_run_id"] for one in found}
    return Counter(run_ids[trace.info.trace_metadata["mlflow.sourceRun"]] for trace in traces)


async def served_memories(shell: Shell, env: dict[str, str]) -> list[dict[str, Any]]:
    """All experiments, as another machine gets them from the served store."""
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    process = shell.start(
        "memory", "serve", "--http", "127.0.0.1:0", "--token-env", "TEAM_TOKEN", env={**env, "TEAM_TOKEN": TOKEN}
    )
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        async with (
            create_mcp_http_client(headers={"Authorization": f"Bearer {TOKEN}"}) as web,
            Client(streamable_http_client(url, http_client=web)) as client,
        ):
            found: list[dict[str, Any]] = []
            page: dict[str, Any] = {"cursor": "0"}
            while "cursor" in page:
                wanted = {"tags": ["result", "completed"], "cursor": page["cursor"]}
                answer = await client.call_tool("export_memories", wanted)
                assert not answer.is_error, answer
                page = json.loads(getattr(answer.content[0], "text"))  # noqa: B009 one of several kinds of content
                found += page["memories"]
            return found
    finally:
        process.terminate()
        process.communicate()

"""A session keeps its variables between cells, asks models from within them, and outlives its worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.systems.long_context.wasm.cells import Kind, SessionBusyError, SessionFullError, SubCall
from koderz.systems.long_context.wasm.link import WorkerLostError
from koderz.systems.long_context.wasm.session import Pool
from tests.koderz.systems.long_context.wasm.conftest import NATIVE_SLOW


async def echo(call: SubCall) -> Sequence[str]:
    return [f"{call.name}: {prompt}" for prompt in call.prompts]


async def test_cells_share_one_namespace(pool: Pool) -> None:
    session = pool.open()
    codes = ("x = 1", "def f(y):\n    return x + y", "x = 5\nprint(f(1))\nx", "y = undefined", "print(SHOW_VARS())")
    first, _, third, failed, shown = [await session.run(code) for code in codes]
    assert first.locals == {"x": 1}
    assert third.stdout == "6\n"
    assert failed.error == "NameError: name 'undefined' is not defined"
    assert 'File "<repl>", line 1' in failed.stderr
    assert shown.stdout == "{'x': 'int', 'f': 'function'}\n"


async def test_variables_are_told_by_value_or_by_type_and_size(pool: Pool) -> None:
    code = (
        "n, t, l = 3, 'text', [1, {'a': None}]\nbig = 'x' * 5000\nlong = list(range(9999))\no = object()\n_hidden = 1"
    )
    found = await pool.open().run(code)
    assert found.locals == {
        "n": 3,
        "t": "text",
        "l": [1, {"a": None}],
        "big": "<str, 5000>",
        "long": "<list, 9999>",
        "o": "<object>",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", NATIVE_SLOW, indirect=True)
async def test_cells_ask_models_and_wait_for_them(pool: Pool) -> None:
    async def slow(call: SubCall) -> Sequence[str]:
        await asyncio.sleep(2.2)
        return await echo(call)

    session = pool.open()
    code = "a = llm_query('one', model='m')\nb = rlm_query_batched(['two', 'three'])\nprint(a, b)"
    waited = await session.run("print('before'); print(llm_query('q'))", slow, timeout=2.0)
    asked = await session.run(code, echo)
    alone = await session.run("print(llm_query('q'))")
    assert asked.stdout == "llm_query: one ['rlm_query: two', 'rlm_query: three']\n"
    assert asked.calls == 3
    assert (waited.stdout, waited.stopped) == ("before\nllm_query: q\n", "")  # waiting isn't the cell's own time
    assert alone.stdout.startswith("Error: ")


async def test_answer_that_raises_ends_the_cell_alone(pool: Pool) -> None:
    async def broken(call: SubCall) -> Sequence[str]:
        raise Fault("the server is gone")

    session = pool.open()
    await session.run("x = 1")
    with pytest.raises(Fault, match="the server is gone"):
        await session.run("x = 2\nllm_query('q')", broken)
    assert (await session.run("print(x)")).stdout == "1\n"


async def test_session_ends_when_answer_is_ready(pool: Pool) -> None:
    found = await pool.open().run("answer['content'] = 42\nanswer['ready'] = True")
    assert found.final_answer == "42"


async def test_dates_are_parsed(pool: Pool) -> None:
    code = "import datetime\nprint(datetime.datetime.strptime('May 06, 2023', '%b %d, %Y').date())"
    found = await pool.open().run(code)
    assert (found.stdout, found.error) == ("2023-05-06\n", None)


async def test_clock_and_randomness_repeat(pool: Pool) -> None:
    code = (
        "import datetime, random, secrets, time, uuid\n"
        "print(time.time(), time.monotonic(), datetime.datetime.now(), uuid.uuid4(), random.random(), "
        "secrets.token_hex(4), hash('a'), list({'a', 'b', 'c', 'd'}))"
    )

    first, again, other = [(await pool.open(seed=seed).run(code)).stdout for seed in (1, 1, 2)]
    assert first == again
    assert first != other


@pytest.mark.slow
async def test_variables_are_put_and_read_also_large_ones(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "context"
    file.write_text("äöü\r\n" * 1_000_000, encoding="utf-8", newline="")

    session = pool.open()
    await session.put("context", "x" * 9_000_000 + "\ud800")
    await session.put("rows", '[{"a": 1}]', "json")
    await session.put("file", file)
    with pytest.raises(SessionFullError):
        await session.put("much", "y" * (300 << 20))
    found = await session.run("print(len(context), rows[0]['a'], len(file), file[:5] == 'äöü\\r\\n')\nn = 7")
    assert found.stdout == "9000006 1 5000000 True\n"
    assert (await session.get("n"), await session.get("nothing")) == ("7", None)


async def test_session_survives_the_death_of_its_worker(pool: Pool) -> None:
    asked = []

    async def answer(call: SubCall) -> Sequence[str]:
        asked.append(call.prompts[0])
        return await echo(call)

    async def deadly(call: SubCall) -> Sequence[str]:
        if call.prompts[0] == "second" and "second" not in asked:
            for process in pool.processes:
                os.kill(process, signal.SIGKILL)
        return await answer(call)

    session = pool.open()
    await session.run("x = llm_query('zeroth')", answer)
    found = await session.run("y = llm_query('first')\nprint(x, y, llm_query('second'))", deadly)
    assert found.stdout == "llm_query: zeroth llm_query: first llm_query: second\n"
    assert asked == ["zeroth", "first", "second"]  # none is asked for twice


async def test_worker_that_takes_no_request_is_not_chosen_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: bytes) -> None:
        raise BrokenPipeError

    link = await pool.link()
    # As if its process had died, and nothing had told of that yet.
    monkeypatch.setattr(link.process.writer, "write", refused)
    with pytest.raises(WorkerLostError):
        await link.ask("create", "one", memory=1 << 30, seed=0)
    link.sessions -= 1
    assert link.is_lost
    assert await pool.link() is not link


async def test_fork_goes_its_own_way(pool: Pool) -> None:
    session = pool.open()
    await session.run("x = [llm_query('q')]", echo)
    fork = session.fork()
    assert (await fork.run("x.append(2); print(x)")).stdout == "['llm_query: q', 2]\n"
    assert (await session.run("print(x)")).stdout == "['llm_query: q']\n"


async def test_cells_run_one_at_a_time(pool: Pool) -> None:
    session, asked, enough = pool.open(), asyncio.Event(), asyncio.Event()

    async def held(call: SubCall) -> Sequence[str]:
        asked.set()
        await enough.wait()
        return await echo(call)

    async with asyncio.TaskGroup() as group:
        group.create_task(session.run("llm_query('q')", held))
        await asked.wait()
        with pytest.raises(SessionBusyError):
            await session.run("1")
        enough.set()


async def test_stopped_cell_is_stopped_at_the_same_call_again(pool: Pool) -> None:
    session = pool.open()
    stopped = await session.run("while True: print(llm_query('q'))", echo, only_calls=3)
    after = await session.run("print('goes on')")
    assert (stopped.stopped, stopped.stdout.count("llm_query"), stopped.calls) == ("cut", 3, 3)
    assert after.stdout == "goes on\n"


async def test_workers_end_with_the_pool_and_with_whoever_has_it(kind: Kind) -> None:
    async with Pool(kind, 2) as pool:
        await pool.open().run("x = 1")
        processes = pool.processes
    assert processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

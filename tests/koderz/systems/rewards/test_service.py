"""The judge as a service: requests, refusals, clients, and real processes that are killed or vanish."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import urllib3
from aiohttp.test_utils import TestClient, TestServer

from koderz.errors import KoderzError
from koderz.sandbox.judge.pool import DEATHS
from koderz.systems.rewards import AsyncClient, Client, Item
from koderz.systems.rewards.client import RefusedError
from koderz.systems.rewards.judging import RewardJudge
from koderz.systems.rewards.service import RewardService, ServiceAddress
from tests.conftest import PATIENCE, Shell, descendants, judges, wait_for, whole_lines
from tests.koderz.sandbox.hostile import PROGRAMS
from tests.koderz.systems.rewards.conftest import RIGHT, TOKEN, WRONG, Served, Serving, reply

ENDLESS = reply("def add(x, y):\n    while True:\n        pass")


def asked(served: Served, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a request with the token."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    method = "GET" if body is None else "POST"
    with urllib3.PoolManager() as pool:  # of its own, since a service ends the connection of a request it can't read
        answer = pool.request(method, served.url + path, body=data, headers=given, retries=False, timeout=PATIENCE)
        return answer.status, answer.json()


def test_score_tells_verdict_share_and_digest(served: Served) -> None:
    status, score = asked(served, "/score", {"task": "T/add", "reply": WRONG, "graded": True, "id": "mine"})

    assert status == 200
    assert {name: score[name] for name in ("id", "suite", "task", "reward", "verdict", "cause")} == {
        "id": "mine",
        "suite": "tasks.jsonl",
        "task": "T/add",
        "reward": 0.5,
        "verdict": "failed",
        "cause": "assertion",
    }
    assert (score["tests_passed"], score["tests"], score["fault"], score["tampering"]) == (2, 4, None, [])
    assert len(score["task_digest"]) == 16
    assert score["seconds"] > 0


def test_score_of_a_task_whose_reference_fails_is_a_fault(served: Served) -> None:
    score = served.client().score("T/broken", RIGHT)

    assert (score.reward, score.verdict, score.cause) == (None, "fault", "reference")
    assert score.fault
    assert "reference fails here" in score.fault.reason


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"task": "T/add"}, 400, "reply"),
        ({"task": "T/add", "reply": 3}, 400, "reply"),
        ({"task": "T/add", "reply": "", "step": "x"}, 400, "step"),
        ({"task": "T/add", "reply": "", "deadline": -1}, 400, "deadline"),
        ({"task": "T/add", "reply": "", "stepp": 1}, 400, "stepp"),
        ([], 400, "object"),
        (b"{", 400, "no JSON"),
        (b"[" * 100_000, 400, "object"),
        (b'{"task": ' + b"[" * 100_000, 400, "str"),
        ({"task": "T/none", "reply": ""}, 404, "T/none"),
        ({"task": "T/add", "reply": "", "suite": "mbpp"}, 404, "mbpp"),
        ({"task": "T/add", "reply": "x" * 1_000_001}, 413, "--max-reply"),
    ],
)
def test_requests_that_are_wrong_are_named(served: Served, body: object, status: int, said: str) -> None:
    found, answer = asked(served, "/score", body)

    assert found == status
    assert said in answer["error"]


ODD_TEXTS = (
    b'"a \\ud83d b"',
    b'"\\ude00\\\\ud83d\\ude00"',
    b'"\xed\xa0\xbd"',
    b'"\\u0000\\u202e\\u001b[2J"',
    b'"\xff"',
)
ODD_VALUES = (
    *ODD_TEXTS,
    *(b"", b"null", b"7", b"-1e400", b"1" * 5000, b"NaN", b"true", b"{}", b'[["\\ud83d"]]', b'"', b"{"),
    *(b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300, b"[" * 100_000),
    *(b'{"output": 7}', b'{"output": [7]}', b'{"output": [{"type": "message", "content": 7}]}'),
    *(b'{"output": [{"type": "message", "content": %s}]}' % text for text in ODD_TEXTS),
    *(b'{"output": [{"type": "message", "content": [{"type": %s}]}]}' % text for text in ODD_TEXTS),
)
WHOLE = {
    "/score": {"task": b'"T/add"', "reply": b'"x"', "suite": b"null", "step": b"1", "deadline": b"9", "id": b'"a"'},
    "/verify": {
        "task_id": b'"T/add"',
        "response": b'{"output": [{"type": "message", "content": "x"}]}',
        "verifier_metadata": b"{}",
        "graded": b"false",
        "step": b"1",
        "own": b"1",
        "reward": b"1",
        "koderz": b"1",
    },
}


def odd_bodies() -> Iterator[tuple[str, bytes]]:
    """Each field of a whole request with each odd value, alone and in a batch; and values that are no request."""
    for path, fields in WHOLE.items():
        for name in [*fields, "\\ud83d", "a\\nb"]:
            for value in ODD_VALUES:
                body = b", ".join(b'"%s": %s' % (key.encode(), each) for key, each in {**fields, name: value}.items())
                yield path, b"{%s}" % body
                if path == "/score":
                    yield "/score_batch", b'{"items": [{%s}]}' % body
    for path in ("/score", "/score_batch", "/verify"):
        yield from ((path, value) for value in (*ODD_VALUES, b'{"items": %s}' % ODD_VALUES[0], b"\xef\xbb\xbf{}"))


@pytest.mark.slow
def test_odd_requests_are_answered_in_json_and_by_no_500(served: Served) -> None:
    statuses = Counter[int]()
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with urllib3.PoolManager(maxsize=8) as pool, ThreadPoolExecutor(8) as threads:

        def ask(odd: tuple[str, bytes]) -> int:
            path, body = odd
            answer = pool.request("POST", served.url + path, body=body, headers=given, retries=False, timeout=PATIENCE)
            assert msgspec.json.decode(answer.data, type=dict[str, msgspec.Raw]), body
            assert answer.status in (200, 400, 404), (path, body, answer.data)
            return answer.status

        statuses.update(threads.map(ask, odd_bodies()))
    assert min(statuses[200], statuses[400], statuses[404]) > 10


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/score", {"Content-Encoding": "gzip"}, b"hello", 400),
        ("/score", {"Content-Encoding": "deflate"}, b"hello", 400),
        ("/score", {"Content-Type": "\xfe;=\xff"}, b"{}", 400),
        ("/score", {"Content-Type": "text/html"}, b"{}", 415),
        ("/score", {"Authorization": "Bearer \xff"}, b"{}", 401),
        (
            "/score",
            {"Authorization": "Bearer " + TOKEN, "Content-Length": str(1 << 40), "Connection": "close"},
            b"{",
            413,
        ),
        ("/tasks", {}, b"{}", 405),
        ("/%ed%a0%bd", {}, None, 404),
        ("/metrics?step=" + "1" * 5000, {}, None, 400),
        ("/metrics?step=--5", {}, None, 400),
        ("/metrics?step=%ed%a0%bd", {}, None, 400),
        ("/metrics?step=%D9%A3", {}, None, 400),
        ("/metrics?step=-5", {}, None, 200),
    ],
)
def test_odd_headers_and_queries_are_answered_in_json(
    served: Served, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    assert asked(served, path, body, **headers)[0] == status


def test_half_a_character_is_replaced_and_costs_its_batch_nothing(served: Served) -> None:
    items = b'{"items": [{"task": "T/add", "reply": "a \\ud83d", "id": "\\ud83d"}, {"task": "T/add", "reply": %s}]}'
    status, answer = asked(served, "/score_batch", items % json.dumps(RIGHT).encode())
    assert (status, [score["reward"] for score in answer["scores"]]) == (200, [0, 1])
    assert answer["scores"][0]["id"] == "\ufffd"
    assert [score.reward for score in served.client().score_many([("T/add", RIGHT)], id="\ud83d")] == [1]

    response = b'{"output": [{"type": "message", "content": "a \\ud83d b"}]}'
    body = b'{"task_id": "T/add", "reward": 1, "own": [1e400, "\\ud83d\\ude00"], "response": %s}' % response
    status, answer = asked(served, "/verify", body)
    assert (status, answer["reward"], answer["koderz"]["verdict"]) == (200, 0, "error")
    assert answer["own"][1] == "\U0001f600"
    assert answer["response"]["output"][0]["content"] == "a \ufffd b"


@pytest.mark.slow
def test_long_bodies_are_refused_within_500_mb(serving: Serving) -> None:
    served = serving("--queue", 7)
    tiny = b'{"task":"ab","reply":"ab"}'
    status, answer = asked(served, "/score_batch", b'{"items":[' + b",".join([tiny] * 1_200_000) + b"]}")
    assert (status, answer["most_items"]) == (413, 7)
    outputs = b",".join([b'{"type":"ab"}'] * 2_300_000)
    body = b'{"task_id":"T/add","own":"%s","response":{"output":[' + outputs + b"]}}"
    assert asked(served, "/verify", body)[1]["reward"] == 0
    own = b",".join(b'"%06d":0' % number for number in range(2_000_000))
    assert asked(served, "/verify", b'{"reward":1,%s,"task_id":"T/add","response":{"output":[]}}' % own)[0] == 400
    assert asked(served, "/score", b'{"task":"' + rb"\ud83d" * 5_000_000 + b'","reply":""}')[0] == 404
    assert asked(served, "/score_batch", b'{"items":[' + b"[]," * 10_000_000 + b"[]]}")[0] == 400
    assert asked(served, "/score_batch", b'{"items":[' + b"[]," * 12_000_000 + b"[]]}")[0] == 413

    (peak,) = [line for line in Path(f"/proc/{served.process.pid}/status").read_text().splitlines() if "VmHWM" in line]
    assert int(peak.split()[1]) < 500_000  # KiB
    assert len(served.client().score_many([("T/add", RIGHT)] * 20)) == 20  # in requests that it takes


def test_batch_with_an_unknown_task_takes_nothing(served: Served) -> None:
    status, answer = asked(
        served, "/score_batch", {"items": [{"task": "T/add", "reply": ""}, {"task": "T/x", "reply": ""}]}
    )

    assert (status, "T/x" in answer["error"]) == (404, True)


def test_requests_without_the_token_or_of_web_pages_are_refused(served: Served) -> None:
    assert asked(served, "/tasks", Authorization="Bearer wrong")[0] == 401
    assert asked(served, "/metrics", Authorization="")[0] == 401
    assert asked(served, "/health", Origin="http://localhost")[0] == 403
    with pytest.raises(RefusedError, match="401"):
        served.client("wrong").score("T/add", RIGHT)


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8600", 404), ("[::1]:8600", 404), ("localhost", 404), ("127.0.0.1.evil.com", 403), ("evil.com", 403)],
)
def test_foreign_hosts_are_refused_without_a_token(host: str, status: int) -> None:
    assert asyncio.run(answered_without_judge("/nothing", host)) == (status, ["error"])


def test_errors_in_koderz_are_answered_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(answered_without_judge("/health", "localhost")) == (500, ["error"])
    assert "Traceback" in capsys.readouterr().err


async def answered_without_judge(path: str, host: str) -> tuple[int, list[str]]:
    """Status and keys of an answer of a service that has no token, and no judge."""
    service = RewardService(cast(RewardJudge, None), ServiceAddress("127.0.0.1", 0))
    async with TestClient(TestServer(service.application())) as client:
        answer = await client.get(path, headers={"Host": host})
        return answer.status, [*await answer.json()]


def test_service_tells_tasks_health_and_metrics(served: Served) -> None:
    client = served.client()
    client.score_many([("T/add", RIGHT), ("T/add", WRONG), ("T/broken", RIGHT)], step=12)

    assert [task["task"] for task in client.tasks()] == ["T/add", "T/broken"]
    assert client.health()["suites"] == {"tasks.jsonl": 2}
    found = client.metrics(step=12)
    assert {name: found[name] for name in ("scored", "faults", "mean_reward", "tamper_rate")} == {
        "scored": 2,
        "faults": 1,
        "mean_reward": 0.5,
        "tamper_rate": 0.0,
    }
    assert client.score_many([]) == []
    assert asked(served, "/score_batch", {"items": []}) == (200, {"scores": []})
    assert client.metrics()["scored"] >= 2
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/plain"}
    text = urllib3.request("GET", f"{served.url}/metrics", headers=headers).data.decode()
    assert 'koderz_judge_scored{step="12"} 2' in text


def test_verify_answers_nemo_gym_with_the_request_and_a_reward(served: Served) -> None:
    output = [
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": RIGHT, "annotations": []}],
        },
    ]
    request = {
        "responses_create_params": {"input": []},
        "response": {"id": "r", "output": output},
        "verifier_metadata": {"task_id": "T/add"},
        "own": 1,
    }

    status, answer = asked(served, "/verify", request)

    assert (status, answer["reward"], answer["own"], answer["response"]) == (200, 1.0, 1, request["response"])
    status, answer = asked(served, "/verify", {**request, "verifier_metadata": {"task_id": "T/broken"}})
    assert (status, "reference" in answer["error"]) == (503, True)
    assert asked(served, "/verify", {"response": {"output": []}})[0] == 400


def test_replies_with_halves_of_characters_get_a_verdict(served: Served) -> None:
    assert served.client().score("T/add", f"\ud800{RIGHT}").verdict in ("passed", "error")
    assert asked(served, "/score", b'{"task": "T/add", "reply": "\\ud800"}')[1]["reward"] == 0


def test_clients_work_from_threads_after_a_fork_and_pickled(served: Served) -> None:
    client = served.client()
    with ThreadPoolExecutor(8) as threads:
        scores = [*threads.map(lambda number: client.score("T/add", f"{RIGHT}{number}"), range(32))]
    assert {score.reward for score in scores} == {1.0}
    assert pickle.loads(pickle.dumps(client)).score("T/add", WRONG, graded=True).reward == 0.5

    program = (
        "import os, sys\nfrom koderz.systems.rewards import Client\n"
        "client = Client()\nclient.score('T/add', '1')\nchild = os.fork()\n"
        "rewards = [client.score('T/add', sys.argv[1]).reward for _ in range(5)]\n"
        "code = 0 if rewards == [1.0] * 5 else 1\n"
        "sys.exit(code) if child == 0 else sys.exit(code or os.waitpid(child, 0)[1])\n"
    )
    environ = {**os.environ, "KODERZ_JUDGE_URL": served.url, "KODERZ_JUDGE_TOKEN": TOKEN}
    assert subprocess.run([sys.executable, "-c", program, RIGHT], env=environ, check=False).returncode == 0


def test_async_client_scores_with_or_without_kept_connections(served: Served) -> None:
    async def scored() -> list[float | None]:
        client = AsyncClient(served.url, TOKEN)
        async with AsyncClient(served.url, TOKEN) as kept:
            found = await asyncio.gather(*(each.score("T/add", RIGHT, step=1) for each in (client, kept, kept)))
            assert (await kept.metrics(1))["scored"] >= 3
        return [score.reward for score in found]

    assert asyncio.run(scored()) == [1.0] * 3


def test_client_gives_the_fault_unreachable_when_its_time_is_up() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{taken.getsockname()[1]}", timeout=0.3)
        (score,) = client.score_many([("T/add", RIGHT)])
        with pytest.raises(KoderzError, match="can't be reached"):
            client.health()

    assert (score.reward, score.cause) == (None, "unreachable")


def test_client_without_an_address_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KODERZ_JUDGE_URL", raising=False)
    with pytest.raises(KoderzError, match="KODERZ_JUDGE_URL"):
        Client()


@pytest.mark.slow
def test_deadline_is_a_fault_of_those_that_wait_alone(serving: Serving) -> None:
    served = serving("--test-timeout", 1, "--workers", 1)
    items = [Item("T/add", ENDLESS + str(number), deadline=0.3) for number in range(16)]

    scores = served.client().score_many(items)

    causes = {score.cause for score in scores}
    assert causes == {"cpu", "deadline"} or causes == {"cpu", "wall", "deadline"}
    assert all((score.reward is None) == (score.cause == "deadline") for score in scores)


@pytest.mark.slow
def test_full_queue_refuses_and_takes_nothing(serving: Serving) -> None:
    served = serving("--queue", 40, "--test-timeout", 0.5)
    batches = [[("T/add", f"{ENDLESS}{batch} {n}") for n in range(40)] for batch in range(2)]
    with ThreadPoolExecutor(2) as threads:
        taken = [threads.submit(served.client().score_many, batch) for batch in batches]
        wait_for(lambda: served.client().health()["queue"] >= 40)
        body = json.dumps({"task": "T/add", "reply": RIGHT}).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        answer = urllib3.request("POST", f"{served.url}/score", body=body, headers=headers, retries=False)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert served.stop() == 0
        assert {score.verdict for each in taken for score in each.result()} == {"timeout"}


@pytest.mark.slow
def test_sigterm_answers_what_was_taken_and_ends_well(serving: Serving) -> None:
    served = serving("--test-timeout", 1)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(served.client().score_many, [("T/add", ENDLESS + str(n)) for n in range(4)])
        wait_for(lambda: descendants(served.process.pid) and served.client().health())
        time.sleep(0.2)
        assert served.stop() == 0
        assert {score.verdict for score in taken.result()} == {"timeout"}


@pytest.mark.slow
def test_killed_judges_cost_a_retry(serving: Serving) -> None:
    served = serving("--test-timeout", 5)
    slow = reply("import time\ndef add(x, y):\n    time.sleep(0.05)\n    return x + y")
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(served.client().score_many, [("T/add", slow + str(number)) for number in range(24)])
        killed = 0
        while not taken.done():
            for process in (
                judges(served.process.pid) if killed < DEATHS - 1 else ()
            ):  # of which none is the candidate's doing
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed += 1
                break
            time.sleep(0.1)
    assert [score.reward for score in taken.result()] == [1.0] * 24
    assert killed


@pytest.mark.slow
def test_killed_server_under_load_is_retried_at_its_address(serving: Serving, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = serving("--record", folder=tmp_path, port=port)
    client = served.client()
    with ThreadPoolExecutor(8) as threads:
        taken = [threads.submit(client.score, "T/add", f"{RIGHT}{number}") for number in range(400)]
        wait_for(lambda: sum(each.done() for each in taken) > 50)
        served.process.kill()
        served.process.wait()
        serving("--record", folder=tmp_path, port=port)
        scores = [each.result() for each in taken]
    assert {score.reward for score in scores} == {1.0}
    recorded = {
        line["id"]
        for path in (tmp_path / "benchmark_results").glob("rewards_*/journal.jsonl")
        for line in whole_lines(path)
        if line["kind"] == "reward"
    }
    assert {score.id for score in scores} <= recorded  # on disk before it is answered


def test_slow_and_vanished_clients_hold_nobody_up(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    head = (
        f"POST /score HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    )
    body = json.dumps({"task": "T/add", "reply": f"{RIGHT}vanished", "id": "vanished"})
    with socket.create_connection((host, int(port))) as slow, socket.create_connection((host, int(port))) as gone:
        slow.sendall(f"{head}Content-Length: 100000\r\n\r\n{{".encode())
        gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        gone.close()
        assert served.client().score("T/add", RIGHT).reward == 1.0


@pytest.mark.slow
def test_batch_of_10000_starves_no_single_request(serving: Serving) -> None:
    served = serving("--queue", 10_000)
    items = [{"task": "T/add", "reply": f"{RIGHT}{number}"} for number in range(10_000)]
    body = json.dumps({"items": items}).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(
            urllib3.request, "POST", f"{served.url}/score_batch", body=body, headers=headers, timeout=600
        )
        client = served.client()
        wait_for(lambda: client.health()["queue"] > 5000)
        singles = [client.score("T/add", f"{RIGHT}single {number}") for number in range(20)]
        assert not batch.done()
        scores = batch.result().json()["scores"]
    assert {score.reward for score in singles} == {1.0}
    assert [score["reward"] for score in scores] == [1.0] * 10_000


@pytest.mark.slow
def test_hostile_replies_earn_nothing_and_make_no_fault(served: Served) -> None:
    items = [("T/add", reply(program["source"])) for program in PROGRAMS]
    client = served.client()

    batch = client.score_many(items, graded=True)
    single = [client.score(*item) for item in items[::10]]

    for program, score in zip([*PROGRAMS, *PROGRAMS[::10]], [*batch, *single], strict=True):
        assert score.fault is None, program["name"]
        assert score.verdict != "passed", program["name"]
    assert {score.reward for score in single} == {0.0}


@pytest.mark.slow
def test_record_is_a_journal_that_list_shows_when_asked(serving: Serving) -> None:
    served = serving("--record")
    score = served.client().score("T/add", WRONG, step=3, graded=True)
    assert served.stop() == 0

    (journal,) = (served.folder / "benchmark_results").glob("rewards_*/journal.jsonl")
    plan, line = whole_lines(journal)
    assert (plan["kind"], plan["mode"], plan["tasks"]) == ("plan", "rewards", ["T/add", "T/broken"])
    assert (line["kind"], line["id"], line["step"], line["reply"]) == ("reward", score.id, 3, WRONG)
    assert "return x + y if x > 1 else 7" in line["program"]
    assert (line["reward"], line["tests_passed"]) == (0.5, 2)
    shell = Shell(served.folder)
    assert "rewards_" not in shell("benchmark", "list").out
    assert journal.parent.name in shell("benchmark", "list", "--rewards").out
    (row,) = json.loads(shell("benchmark", "list", "--rewards", "--json").out)
    assert (row["run_id"], row["scored"], row["mean_reward"]) == (journal.parent.name, 1, 0.5)

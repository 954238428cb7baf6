"""What can happen to a call: done, failed, cancelled, preempted, expired, too long, lost; and a server that leaves."""

from __future__ import annotations

from pathlib import Path

import modal
import pytest
from grpclib import Status

from tests.conftest import PATIENCE, wait_for
from tests.koderz.testing.conftest import SECRETS, Lookup, deploy
from tests.loopback_modal import ModalServer

pytestmark = pytest.mark.slow


def notes(client: modal.Client) -> modal.Dict:
    return modal.Dict.from_name("notes", create_if_missing=True, client=client)


def test_map_yields_all_results_in_order(function: Lookup) -> None:
    assert list(function("wait").map([0.0, 0.2, 0.1, 0.0] * 10)) == [0.0, 0.2, 0.1, 0.0] * 10


def test_inputs_of_one_call_are_read_by_place(function: Lookup) -> None:
    call = function("wait").experimental_spawn_map([0.0] * 60)
    assert call.num_inputs() == 60
    assert call.get(index=59, timeout=PATIENCE) == 0.0
    assert list(call.iter()) == [0.0] * 60


def test_exception_comes_back_with_its_own_type(client: modal.Client, function: Lookup) -> None:
    with pytest.raises(ValueError, match="no luck with once"):
        function("fail").remote("once")
    assert notes(client)["once"] == 3  # it may be retried twice, and each try is counted


def test_timeout_of_a_call_is_modals_own(function: Lookup) -> None:
    call = function("too_long").spawn()
    with pytest.raises(modal.exception.FunctionTimeoutError):
        call.get(timeout=PATIENCE)


def test_dead_container_is_an_internal_failure(function: Lookup) -> None:
    with pytest.raises(modal.exception.InternalFailure, match="died"):
        function("die").remote()


def test_cancelled_call_is_a_remote_error_and_its_container_goes_on(deployed: ModalServer, function: Lookup) -> None:
    wait = function("wait")
    wait.remote(0.0)
    containers = deployed.containers("wait")
    call = wait.spawn(600.0)
    call.cancel()
    with pytest.raises(modal.exception.RemoteError):
        call.get(timeout=PATIENCE)
    assert wait.remote(0.0) == 0.0
    assert deployed.containers("wait") == containers


@pytest.mark.parametrize("by", ["call", "container"])
def test_preempted_input_is_run_again_in_a_new_container(
    deployed: ModalServer, client: modal.Client, by: str, function: Lookup
) -> None:
    call = function("wait_noted").spawn(by, 600.0)
    wait_for(lambda: by in notes(client))
    before = deployed.containers("wait_noted")
    deployed.preempt(call.object_id if by == "call" else before[0])
    assert call.get(timeout=PATIENCE) == 2
    assert deployed.containers("wait_noted") != before


def test_expired_call_says_so(deployed: ModalServer, client: modal.Client, function: Lookup) -> None:
    call = function("wait").spawn(0.0)
    assert call.get(timeout=PATIENCE) == 0.0
    deployed.expire(call.object_id)
    with pytest.raises(modal.exception.OutputExpiredError):
        modal.FunctionCall.from_id(call.object_id, client=client).get(timeout=0)


def test_large_inputs_and_outputs_go_by_http(deployed: ModalServer, function: Lookup) -> None:
    data = bytes(range(256)) * 20_000
    assert function("size_of").remote(data) == data + b"!"
    assert deployed.counts["BlobCreate"] >= 2


def test_generator_yields_as_it_goes(function: Lookup) -> None:
    assert list(function("count_to").remote_gen(5)) == [0, 1, 2, 3, 4]


def test_class_runs_its_methods(client: modal.Client) -> None:
    greeter = modal.Cls.from_name("probe", "Greeter", client=client)()
    assert greeter.greet.remote("you") == "hello you"


def test_class_parameters_and_function_options_are_variants(client: modal.Client, function: Lookup) -> None:
    greeter = modal.Cls.from_name("probe", "Greeter", client=client)(word="good day")
    assert greeter.greet.remote("you") == "good day you"
    shorter = function("too_long").with_options(timeout=2)
    with pytest.raises(modal.exception.FunctionTimeoutError, match="2s"):
        shorter.remote()


def test_web_servers_address_is_known(function: Lookup) -> None:
    url = function("serve").get_web_url()
    assert url is not None
    assert url.startswith("https://")


def test_call_graph_shows_its_inputs(function: Lookup) -> None:
    call = function("wait").spawn(0.0)
    call.get(timeout=PATIENCE)
    assert [one.function_name for one in call.get_call_graph()] == ["wait"]


def test_missing_object_is_not_found(client: modal.Client, function: Lookup) -> None:
    with pytest.raises(modal.exception.NotFoundError, match="nothing"):
        modal.Function.from_name("nothing", "wait", client=client).hydrate()
    with pytest.raises(modal.exception.NotFoundError, match="nowhere"):
        function("nowhere").hydrate()
    with pytest.raises(modal.exception.NotFoundError):
        modal.FunctionCall.from_id("fc-0123456789abcdef012345", client=client).get(timeout=0)


def test_call_that_fails_for_a_moment_is_asked_for_again(deployed: ModalServer, function: Lookup) -> None:
    wait = function("wait").hydrate()
    deployed.weather.drop["FunctionMap"] = 2
    assert wait.spawn(0.0).get(timeout=PATIENCE) == 0.0
    deployed.disconnect()
    assert wait.spawn(0.0).get(timeout=PATIENCE) == 0.0
    deployed.weather.fail["FunctionMap"] = Status.RESOURCE_EXHAUSTED
    with pytest.raises(modal.exception.ResourceExhaustedError):
        wait.spawn(0.0)
    deployed.weather.fail.clear()


def test_restarted_server_goes_on_where_it_was(tmp_path: Path) -> None:
    server = ModalServer(folder=tmp_path / "state", secrets=SECRETS)
    with server, server.client() as client:
        deploy(server, tmp_path / "app")
        done = modal.Function.from_name("probe", "wait", client=client).spawn(0.0)
        assert done.get(timeout=PATIENCE) == 0.0
        interrupted = modal.Function.from_name("probe", "wait_noted", client=client).spawn("interrupted", 600.0)
        wait_for(lambda: "interrupted" in notes(client))
        (server.volume("results") / "kept").write_text("still here")
    with server, server.client() as client:
        assert modal.FunctionCall.from_id(done.object_id, client=client).get(timeout=0) == 0.0
        assert modal.FunctionCall.from_id(interrupted.object_id, client=client).get(timeout=PATIENCE) == 2
        assert (server.volume("results") / "kept").read_text() == "still here"
        assert server.functions["wait"].concurrency == 20

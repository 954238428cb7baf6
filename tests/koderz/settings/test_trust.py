"""What was trusted is remembered by its bytes, and by nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koderz.engines.owners import schema_of
from koderz.errors import KoderzError
from koderz.settings.layers import as_config
from koderz.settings.trust import remember, require_trust, risks_of_plan
from tests.koderz.world import settings_of


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def trusted(data: bytes, environ: dict[str, str]) -> bool:
    try:
        require_trust(data, "what it does", grant=False, environ=environ)
    except KoderzError:
        return False
    return True


def test_nothing_is_trusted_before_it_was_said(environ: dict[str, str]) -> None:
    assert not trusted(b"x", environ)
    assert not trusted(b"", environ)


def test_what_is_not_trusted_is_told_with_the_way_to_trust_it(environ: dict[str, str]) -> None:
    with pytest.raises(KoderzError, match=r"^what it does\. Read it; if it may, say so once with --trust-config"):
        require_trust(b"x", "what it does", grant=False, environ=environ)


def test_what_was_trusted_stays_so_and_nothing_else_is(environ: dict[str, str]) -> None:
    require_trust(b"x", "", grant=True, environ=environ)
    remember(b"y", environ)

    assert trusted(b"x", environ)
    assert trusted(b"y", environ)
    assert not trusted(b"x ", environ)


@pytest.mark.parametrize(
    ("config", "risks"),
    [
        ({"solver": "own.py:solve"}, ["solver"]),
        ({"dataset": "d.jsonl", "prompt_dir": "prompts"}, ["dataset", "prompt_dir"]),
        ({"docker_image": "someone/image", "sandbox": "docker"}, ["docker_image"]),
        ({"base_url": "http://127.0.0.1:1", "api_key_env": "HOME"}, ["base_url", "api_key_env"]),
        ({"sandbox": "uncontained"}, ["sandbox"]),
        ({"engine": "modal", "sandbox": "modal", "gpu": "L4", "local_model": "openai/o3", "results": "/runs"}, []),
    ],
)
def test_a_plan_from_elsewhere_needs_trust_for_all_but_what_it_costs(config: dict[str, str], risks: list[str]) -> None:
    assert sorted(risks_of_plan(schema_of().fields, as_config(settings_of()) | config)) == sorted(risks)


def test_the_store_is_of_this_user_and_holds_digests_alone(environ: dict[str, str], tmp_path: Path) -> None:
    remember(b"a secret", environ)

    (path,) = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    (digest,) = json.loads(path.read_text())
    assert len(digest) == 64


def test_without_a_state_folder_it_lies_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    remember(b"x", {})

    assert (tmp_path / ".local" / "state" / "koderz" / "trusted.json").is_file()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, null]", b"[{}]", b"\xff\xff", b'"x"', b"[" * 10_000])
def test_a_damaged_store_trusts_nothing_and_is_mended_by_the_next_word(environ: dict[str, str], damage: bytes) -> None:
    remember(b"x", environ)
    store = Path(environ["XDG_STATE_HOME"]) / "koderz" / "trusted.json"
    store.write_bytes(damage)

    assert not trusted(b"x", environ)
    remember(b"x", environ)
    assert trusted(b"x", environ)


def test_trust_that_cannot_be_written_down_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(KoderzError, match="so trust can't be remembered"):
        require_trust(b"x", "", grant=True, environ={"XDG_STATE_HOME": str(tmp_path / "file")})


def test_what_is_trusted_again_is_written_down_once(environ: dict[str, str]) -> None:
    for data in (b"a", b"b", b"a"):
        remember(data, environ)

    (store,) = Path(environ["XDG_STATE_HOME"]).rglob("trusted.json")
    assert len(json.loads(store.read_bytes())) == 2

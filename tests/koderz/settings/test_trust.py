"""What was trusted is remembered by its bytes, and by nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from koderz.engines.sources import schema_of
from koderz.errors import KoderzError
from koderz.settings.layers import as_config
from koderz.settings.paths import _substitute
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


def test_trust_starts_empty(environ: dict[str, str]) -> None:
    assert not trusted(b"x", environ)
    assert not trusted(b"", environ)


def test_untrusted_file_is_told_with_the_way_to_trust_it(environ: dict[str, str]) -> None:
    with pytest.raises(KoderzError, match=r"^what it does\. Read it; if it may, say so once with --trust-config"):
        require_trust(b"x", "what it does", grant=False, environ=environ)


def test_trust_lasts_and_covers_that_file_alone(environ: dict[str, str]) -> None:
    require_trust(b"x", "", grant=True, environ=environ)
    remember(b"y", environ)

    assert trusted(b"x", environ)
    assert trusted(b"y", environ)
    assert not trusted(b"x ", environ)


@pytest.mark.parametrize(
    ("config", "risks"),
    [
        ({"solver": "own.py:solve"}, ["solver"]),
        ({"suite": "own.py:words"}, ["suite"]),
        ({"dataset": "d.jsonl", "prompt_dir": "prompts"}, ["dataset", "prompt_dir"]),
        ({"docker_image": "someone/image", "sandbox": "docker"}, ["docker_image"]),
        ({"base_url": "http://127.0.0.1:1", "api_key_env": "HOME"}, ["base_url", "api_key_env"]),
        ({"sandbox": "uncontained"}, ["sandbox"]),
        ({"engine": "modal", "sandbox": "modal", "gpu": "L4", "local_model": "openai/o3", "results": "/runs"}, []),
    ],
)
def test_plan_from_elsewhere_needs_trust_but_for_its_cost(config: dict[str, str], risks: list[str]) -> None:
    assert sorted(risks_of_plan(schema_of().fields, as_config(settings_of()) | config)) == sorted(risks)


def test_trust_store_holds_digests_alone(environ: dict[str, str], tmp_path: Path) -> None:
    remember(b"a secret", environ)

    (path,) = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert len(path.name) == 64
    assert not path.read_bytes()


def test_trust_store_lies_in_the_home_folder_without_a_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    remember(b"x", {})

    assert len(list((tmp_path / ".local" / "state" / "koderz" / "trusted").iterdir())) == 1


def test_trust_of_earlier_versions_holds(environ: dict[str, str]) -> None:
    store = Path(environ["XDG_STATE_HOME"]) / "koderz" / "trusted.json"
    store.parent.mkdir(parents=True)
    store.write_text(json.dumps([hashlib.sha256(b"x").hexdigest()]))

    assert trusted(b"x", environ)
    assert not trusted(b"y", environ)
    remember(b"y", environ)
    assert trusted(b"x", environ)
    assert trusted(b"y", environ)


def test_trust_that_several_processes_remember_at_once_is_kept(environ: dict[str, str]) -> None:
    program = (
        "import os, sys\nfrom koderz.settings.trust import remember\n"
        "for number in range(60):\n    remember(f'{sys.argv[1]} {number}'.encode(), os.environ)"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", program, str(worker)], env={**os.environ, **environ})
        for worker in range(3)
    ]

    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert all(trusted(f"{worker} {number}".encode(), environ) for worker in range(3) for number in range(60))


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, null]", b"[{}]", b"\xff\xff", b'"x"', b"[" * 10_000])
def test_trust_store_of_earlier_versions_that_is_damaged_is_empty(environ: dict[str, str], damage: bytes) -> None:
    store = Path(environ["XDG_STATE_HOME"]) / "koderz" / "trusted.json"
    store.parent.mkdir(parents=True)
    store.write_bytes(damage)

    assert not trusted(b"x", environ)
    remember(b"x", environ)
    assert trusted(b"x", environ)


def test_trust_that_cannot_be_written_down_holds_once_and_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    _substitute.cache_clear()
    try:
        require_trust(b"x", "", grant=True, environ={"XDG_STATE_HOME": str(tmp_path / "file")})
    finally:
        _substitute.cache_clear()

    assert "can't be written, so trust isn't remembered" in capsys.readouterr().err


def test_trust_given_again_is_written_down_once(environ: dict[str, str]) -> None:
    for data in (b"a", b"b", b"a"):
        remember(data, environ)

    assert len([path for path in Path(environ["XDG_STATE_HOME"]).rglob("*") if path.is_file()]) == 2

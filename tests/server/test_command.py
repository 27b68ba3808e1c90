"""`draftproof serve` as people start it: options, environment, mistakes, kill and restart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.main import get_command

from tiny_models import TinyModels


@contextmanager
def started(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and the address at which it listens."""
    command = [sys.executable, "-m", "draftproof", "serve", *words]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        assert process.stderr is not None
        try:
            url = None
            while url is None:
                line = process.stderr.readline()
                assert line, "it ended before it listened"
                url = re.search(r"listening at (\S+)", line)
            yield process, url[1]
        finally:
            process.kill()


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while httpx2.get(f"{url}/health").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def chat(url: str, **fields: Any) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, **fields}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=30)


def test_killed_and_started_again(tiny: TinyModels, tmp_path: Path) -> None:
    path = str(tiny.path("qwen3", "Q8_0"))
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}!")
    environment = {
        "DRAFTPROOF_PORT": "0",
        "DRAFTPROOF_THREADS": "1",
        "DRAFTPROOF_CTX": "128",
        "DRAFTPROOF_ALIAS": "mine,other",
        "DRAFTPROOF_CHAT_TEMPLATE": str(template),
    }
    with started(path, **environment) as (process, url):
        wait_until_ready(url)
        first = chat(url, temperature=0, model="other").raise_for_status().json()
        prompt = {"messages": [{"role": "user", "content": "abc"}]}
        assert httpx2.post(f"{url}/apply-template", json=prompt).json() == {"prompt": "abc!"}
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    port = url.rpartition(":")[2]
    with started(path, "--port", port, **environment) as (process, again):
        assert again == url
        wait_until_ready(url)
        second = chat(url, temperature=0).raise_for_status().json()
        assert second["choices"] == first["choices"]
        assert second["system_fingerprint"] == first["system_fingerprint"]
        assert second["model"] == "mine"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-model"], "no-such-model"),
        (["--port", "99999999"], "port must be between"),
        (["--port", "TAKEN"], "can't be opened"),
        (["--host", "no.such.host.example.invalid"], "--host"),
        (["--lora", "x"], "LoRA adapters aren't supported yet"),
        (["--chat-template", "nowhere.jinja"], "can't be read"),
        (["--ctx", "0"], "ctx must be between"),
        (["--kv-memory", "much"], "--kv-memory"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tiny: TinyModels) -> None:
    with started(str(tiny.path("qwen3", "Q8_0")), "--port", "0") as (_, url):
        port = url.rpartition(":")[2]
        words = [port if word == "TAKEN" else word for word in words]
        if "--port" not in words:
            words += ["--port", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "draftproof", "serve", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 2, done.stderr
    assert message in lines[-1]
    assert "Traceback" not in done.stderr


def test_every_option_has_a_twin_in_the_environment() -> None:
    from draftproof.cli.app import app

    commands: Any = get_command(app)
    options = commands.commands["serve"].params
    assert len(options) > 15
    without = [p.name for p in options if p.name != "help" and not p.envvar]
    assert without == []
    assert all(p.envvar.startswith("DRAFTPROOF_") for p in options if p.envvar)

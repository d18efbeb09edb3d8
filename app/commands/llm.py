"""`headrace llm`: an OpenAI-compatible model server on this machine."""

import sys
import urllib.parse

import click
from faust.cli.base import cli

from app.core import settings
from app.errors import ModelError
from app.llm.local_server import serve

__all__ = ["llm"]


def default_port() -> int:
    """The port that workers will look at."""
    return urllib.parse.urlsplit(settings.llm.base_url).port or 8090


@cli.command("llm", short_help="Start a model server on this machine.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port on 127.0.0.1; 0 is any. Default: llm.base_url's.")
@click.option("--model", help="A GGUF file, or a folder or OWNER/NAME for vLLM. Default: the tiny model, or llm.model.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def llm(port: int | None, model: str | None, options: tuple[str, ...]) -> None:
    r"""Start an OpenAI-compatible model server and stay in the foreground.

    It is llama.cpp with a model of 135M parameters: it proves the whole path and answers at random. Name a better one
    with --model. Where llm.model or --model is a folder or OWNER/NAME, and the program vllm is on PATH and there is a
    GPU, vLLM serves it; what stands behind -- is passed on to `vllm serve`.

    Prints one line, `ready HOST:PORT`, after a first completion. Stops in order on Ctrl-C or SIGTERM.

    \b
    Examples:
      headrace llm
      headrace llm --port 8091 --model qwen3-4b-q4.gguf
      headrace llm --model Qwen/Qwen3-8B -- --gpu-memory-utilization 0.8
    """
    try:
        serve(default_port() if port is None else port, model, settings.llm.model, _say, options)
    except ModelError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(1) from None


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()

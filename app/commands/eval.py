"""`headrace eval`: how good each tier is on a file of texts with known categories."""

import asyncio
import csv
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from faust.cli.base import cli
from tqdm import tqdm

from app.commands.fleet import run
from app.core import settings
from app.errors import ModelError
from app.inference.encoder import EncoderClassifier
from app.inference.scores import (
    Judged,
    calibrated,
    calibration_error,
    confusion,
    fit_calibration,
    per_category,
    thresholds,
)
from app.llm.deep import DeepClassifier, Unanswerable
from app.settings import Settings, TaskSettings
from models.events import Answer, ModelRequest, Origin

__all__ = ["eval_command"]

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
LEAST_TO_CALIBRATE = 40
"""Fewer labelled texts say little about confidences."""


@dataclass
class Report:
    """One tier or provider on the file."""

    name: str
    judged: list[Judged]
    seconds: float
    cost_usd: float = 0.0
    tokens: int = 0
    latencies_ms: list[int] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    """Why texts have no answer."""

    def as_json(self, categories: Sequence[str]) -> dict[str, Any]:
        """Everything, for programs."""
        ordered = sorted(self.latencies_ms)
        return {
            "name": self.name,
            "texts": len(self.judged),
            "accuracy": sum(j.correct for j in self.judged) / len(self.judged),
            "unanswered": sum(j.said is None for j in self.judged),
            "causes": dict(self.causes),
            "categories": {
                name: {"precision": precision, "recall": recall, "texts": count}
                for name, (precision, recall, count) in per_category(self.judged, categories).items()
            },
            "confusion": confusion(self.judged),
            "calibration": self.calibration,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "texts_per_second": len(self.judged) / self.seconds if self.seconds else 0.0,
            "latency_ms": {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100]}
            if ordered
            else {},
        }


@cli.command("eval", short_help="Measure each tier on a file of texts with known categories.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--task", "task_name", help="Default: the first task.")
@click.option("--tier", type=click.Choice(["light", "deep", "both"]), default="light", show_default=True)
@click.option("--provider", "providers", multiple=True, help="Deep: only this one; may be given again. Default: each.")
@click.option("--text", "text_field", default="text", show_default=True, help="Column or field of the text.")
@click.option("--label", "label_field", default="category", show_default=True, help="Column or field of the category.")
@click.option("--map", "mapping", type=click.Path(exists=True, path_type=Path), help="JSON object: label -> category.")
@click.option("--limit", type=click.IntRange(1), help="So many texts, chosen by chance (always the same).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def eval_command(
    file: Path, task_name: str | None, tier: str, providers: tuple[str, ...], text_field: str, label_field: str,
    mapping: Path | None, limit: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure accuracy, precision and recall, confusion, cost and speed on labelled texts (CSV, or JSON lines).

    The light tier is also calibrated: on one half of the texts, judged on the other. A deep provider is asked as a worker
    would; that may cost money.

    \b
    Examples:
      headrace eval labelled.csv
      headrace eval labelled.jsonl --tier both --provider cloud --limit 200 --json
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    task = next((t for t in settings.tasks if task_name in (None, t.name)), None)
    if task is None:
        raise click.UsageError(
            f"there is no task {task_name!r}; declared are {', '.join(t.name for t in settings.tasks)}"
        )
    rows = labelled(file, text_field, label_field, json.loads(mapping.read_text()) if mapping else {}, task)
    random.Random(1).shuffle(rows)  # noqa: S311 - so that the halves hold all categories
    rows = rows[:limit]
    reports = [_light(task, rows)] if tier in ("light", "both") else []
    if tier in ("deep", "both"):
        run(lambda: _deep(task, rows, providers, reports))
    categories = [category.id for category in task.categories]
    found = [report.as_json(categories) for report in reports]
    if as_json:
        click.echo(json.dumps({"task": task.name, "file": str(file), "tiers": found}, ensure_ascii=False))
    else:
        for each in found:
            _show(each)


def labelled(
    file: Path, text_field: str, label_field: str, mapping: dict[str, str], task: TaskSettings
) -> list[tuple[str, str]]:
    """Text and category of each row.

    Raises:
        click.ClickException: a row has no such field, or a label that is no category.
    """
    known = {category.id for category in task.categories}
    with file.open(encoding="utf-8", newline="") as lines:
        given = csv.DictReader(lines) if file.suffix == ".csv" else (json.loads(line) for line in lines if line.strip())
        rows = []
        for number, row in enumerate(given, 1):
            text, label = row.get(text_field), row.get(label_field)
            category = mapping.get(str(label), str(label))
            if not text or category not in known:
                raise click.ClickException(
                    f"{file}, row {number}: it needs a text in {text_field!r}, and in {label_field!r} one of "
                    f"{', '.join(sorted(known))} (or a label that --map names), given {label!r}"
                )
            rows.append((str(text), category))
    if not rows:
        raise click.ClickException(f"{file}: no rows")
    return rows


def _light(task: TaskSettings, rows: Sequence[tuple[str, str]]) -> Report:
    bare = task.model_copy(update={"light_calibration": None})
    classifier, size = EncoderClassifier(settings.light), settings.light.batch
    classifier.classify(bare, ["warm"])
    judged: list[Judged] = []
    begun = time.monotonic()
    for at in tqdm(range(0, len(rows), size), desc="light", unit="batch", disable=None):
        part = rows[at : at + size]
        for (_, right), (said, confidence) in zip(part, classifier.classify(bare, [t for t, _ in part]), strict=True):
            judged.append(Judged(right=right, said=said, confidence=confidence))
    report = Report("light", judged, time.monotonic() - begun)
    report.calibration = _calibration(judged)
    return report


def _calibration(judged: Sequence[Judged]) -> dict[str, Any]:
    """Fitted on one half, judged on the other, which it hasn't seen."""
    if len(judged) < LEAST_TO_CALIBRATE:
        return {}
    half = len(judged) // 2
    scale, shift = fit_calibration(judged[:half])
    held_out = judged[half:]
    moved = [Judged(right=j.right, said=j.said, confidence=calibrated(j.confidence, scale, shift)) for j in held_out]
    return {
        "light_calibration": [round(scale, 4), round(shift, 4)],
        "error_before": calibration_error(held_out),
        "error_after": calibration_error(moved),
        "thresholds": [
            {"threshold": at, "share": share, "accuracy": accuracy}
            for at, share, accuracy in thresholds(moved, THRESHOLDS)
        ],
    }


async def _deep(
    task: TaskSettings, rows: Sequence[tuple[str, str]], only: tuple[str, ...], reports: list[Report]
) -> None:
    chain = settings.llm.chain()
    unknown = set(only) - {provider.name for provider in chain}
    if unknown:
        raise click.UsageError(f"no provider {', '.join(unknown)}; there are {', '.join(p.name for p in chain)}")
    for provider in chain:
        if only and provider.name not in only:
            continue
        alone = settings.llm.model_copy(
            update={**dict(provider), "sources": [], "tasks": [], "marks": [], "providers": []}
        )
        reports.append(await _ask(settings.model_copy(update={"llm": alone}), provider.name, task, rows))


async def _ask(own: Settings, name: str, task: TaskSettings, rows: Sequence[tuple[str, str]]) -> Report:
    deep = DeepClassifier(own)
    shown = tqdm(total=len(rows), desc=f"deep {name}", unit="text", disable=None)
    causes: Counter[str] = Counter()

    async def one(number: int, text: str) -> Answer | None:
        request = ModelRequest(
            event_id=str(number), event_type="eval", event_time_ms=0, entity="", task=task.name, text=text,
            source=Origin("", 0, number), received_ms=0,
        )  # fmt: skip
        try:
            return await deep.classify(request)
        except Unanswerable as error:
            causes[error.cause] += 1
            return None
        except ModelError as error:
            causes[str(error)] += 1
            return None
        finally:
            shown.update()

    begun = time.monotonic()
    answers = await asyncio.gather(*(one(number, text) for number, (text, _) in enumerate(rows)))
    seconds = time.monotonic() - begun
    shown.close()
    await deep.close()
    given = [answer for answer in answers if answer is not None]
    return Report(
        f"deep, {name}",
        [Judged(right=right, said=a.category if a else None) for (_, right), a in zip(rows, answers, strict=True)],
        seconds,
        sum(a.cost_usd for a in given),
        sum(a.prompt_tokens + a.completion_tokens for a in given),
        [a.latency_ms for a in given],
        causes=causes,
    )


def _show(report: dict[str, Any]) -> None:
    cost = f", {report['cost_usd']:.4f} US dollars, {report['tokens']} tokens" if report["tokens"] else ""
    click.echo(
        f"{report['name']}: {report['texts']} texts, accuracy {report['accuracy']:.1%}, {report['unanswered']} without an "
        f"answer, {report['texts_per_second']:.1f} texts/s{cost}"
    )
    for cause, n in report["causes"].items():
        click.echo(f"  no answer for {n}: {cause}")
    click.echo(f"  {'category':<20} {'precision':>9} {'recall':>7} {'texts':>6}")
    for name, row in report["categories"].items():
        click.echo(f"  {name:<20} {row['precision']:>9.1%} {row['recall']:>7.1%} {row['texts']:>6}")
    click.echo("  confused (right -> said): " + (_confused(report["confusion"]) or "nothing"))
    calibration = report["calibration"]
    if calibration:
        click.echo(
            f"  calibration error on the held-out half {calibration['error_before']:.3f}, with light_calibration = "
            f"{calibration['light_calibration']} {calibration['error_after']:.3f}; then at a threshold of"
        )
        for row in calibration["thresholds"]:
            click.echo(f"    {row['threshold']:.2f}: {row['share']:.1%} are light, {row['accuracy']:.1%} of them right")


def _confused(rows: dict[str, dict[str, int]]) -> str:
    pairs = [(n, right, said or "no answer") for right, row in rows.items() for said, n in row.items() if said != right]
    return ", ".join(f"{right} -> {said} {n}" for n, right, said in sorted(pairs, reverse=True)[:8])

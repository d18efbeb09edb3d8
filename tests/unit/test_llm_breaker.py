"""The breaker against a model of itself."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.llm.breaker import Breaker, Permit
from app.settings import BreakerSettings

LIMITS = BreakerSettings(window_s=10, min_calls=4, error_share=0.5, open_s=5, refused_s=20)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Clock, Breaker]:
    clock = Clock()
    breaker = Breaker(LIMITS, clock)
    for _ in range(4):
        permit = breaker.acquire()
        assert permit is not None
        breaker.failed(permit)
    return clock, breaker


def test_opens_at_the_share_and_not_on_fewer_calls_than_the_least() -> None:
    breaker = Breaker(LIMITS, Clock())
    permits = [breaker.acquire() for _ in range(5)]
    for permit in permits[:3]:
        assert permit is not None
        breaker.failed(permit)
    assert breaker.state == "closed"
    assert permits[3] is not None
    breaker.succeeded(permits[3])
    assert permits[4] is not None
    breaker.failed(permits[4])
    assert breaker.state == "open"
    assert breaker.acquire() is None


def test_failures_older_than_the_window_do_not_count() -> None:
    clock = Clock()
    breaker = Breaker(LIMITS, clock)
    for _ in range(10):
        permit = breaker.acquire()
        assert permit is not None
        breaker.failed(permit)
        clock.now += 6
        assert breaker.state == "closed"


def test_half_open_lets_one_probe_through_and_its_success_closes() -> None:
    clock, breaker = opened()
    clock.now += 5
    probe = breaker.acquire()
    assert probe is not None
    assert [breaker.acquire() for _ in range(20)] == [None] * 20
    breaker.succeeded(probe)
    assert breaker.state == "closed"


def test_failed_probe_opens_again_and_a_cancelled_one_makes_room_for_another() -> None:
    clock, breaker = opened()
    clock.now += 5
    probe = breaker.acquire()
    assert probe is not None
    breaker.failed(probe)
    assert breaker.state == "open"
    clock.now += 5
    probe = breaker.acquire()
    assert probe is not None
    breaker.released(probe)
    assert breaker.acquire() is not None


def test_outcomes_of_calls_from_before_it_opened_say_nothing() -> None:
    clock = Clock()
    breaker = Breaker(LIMITS, clock)
    early = breaker.acquire()
    assert early is not None
    for _ in range(4):
        permit = breaker.acquire()
        assert permit is not None
        breaker.failed(permit)
    breaker.succeeded(early)
    assert breaker.state == "open"
    clock.now += 5
    breaker.failed(early)
    assert breaker.state == "half-open"


def test_refusal_opens_at_once_for_longer() -> None:
    clock = Clock()
    breaker = Breaker(LIMITS, clock)
    permit = breaker.acquire()
    assert permit is not None
    breaker.refused(permit)
    clock.now += 19
    assert breaker.acquire() is None
    clock.now += 1
    assert breaker.acquire() is not None


class BreakerMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: one probe at most, and none before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.closings = 0
        self.breaker = Breaker(LIMITS, self.clock, self._closed)
        self.out: list[tuple[Permit, bool]] = []
        self.last_opened = 0.0

    def _closed(self) -> None:
        self.closings += 1

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        before = self.breaker.state
        permit = self.breaker.acquire()
        assert (permit is None) <= (before != "closed")
        if permit is not None:
            assert before != "open"
            self.out.append((permit, before == "half-open"))

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["succeeded", "failed", "refused", "released"]))
    def end(self, which: int, how: str) -> None:
        permit, probe = self.out.pop(which % len(self.out))
        before = self.breaker.state
        getattr(self.breaker, how)(permit)
        if before == "half-open" and self.breaker.state == "closed":
            assert probe
            assert how == "succeeded"

    @invariant()
    def at_most_one_probe(self) -> None:
        if self.breaker.state == "half-open":
            era = self.breaker._era
            assert sum(probe and permit.era == era for permit, probe in self.out) <= 1


BreakerMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBreakerMachine = BreakerMachine.TestCase

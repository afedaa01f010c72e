"""Where texts wait: batches of one kind, fair between requests, nothing asked twice, nothing asked for nobody."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")

from secformer.errors import ConnectionLostError, InputError, LimitError
from secformer.gateway.desk import Desk, Sitting
from secformer.gateway.failures import Failure
from secformer.models.tokens import Tokens


class Offer:
    """Answers with what it was asked, when the gate is open."""

    def __init__(self, room: int = 100, error: BaseException | None = None) -> None:
        self.asked: list[list[int]] = []
        self.gate = threading.Event()
        self._room, self._error = room, error

    def padded(self, row: Tokens) -> int:
        return 16 * (1 + len(row.ids) // 16)

    def room(self, tokens: int) -> int:
        return self._room

    def ask(self, rows):
        assert self.gate.wait(10)
        self.asked.append([row.ids[0] for row in rows])
        if self._error:
            raise self._error
        return [SimpleNamespace(number=row.ids[0]) for row in rows]


def rows(*numbers: int, length: int = 3) -> list[Tokens]:
    return [Tokens([number] * length, None) for number in numbers]


@pytest.fixture
def sat():
    return []


@pytest.fixture
def desk(sat):
    found = Desk(queue=20, batch=4, sessions=1, watch=sat.append)
    yield found
    found.stop()


def numbers(futures) -> list[int]:
    return [future.result(10).number for future in futures]


def test_texts_of_many_requests_share_a_session_and_each_gets_its_own_answer(desk, sat):
    offer = Offer()
    offer.gate.set()
    requests = [desk.submit(offer, rows(number)) for number in range(6)]
    desk.start()
    assert [numbers(futures) for futures in requests] == [[number] for number in range(6)]
    assert offer.asked == [[0, 1, 2, 3], [4, 5]]
    assert [type(one) for one in sat] == [Sitting, Sitting] and sat[0].texts == 4


def test_only_texts_of_one_padded_length_and_model_share(desk):
    one, other = Offer(), Offer()
    one.gate.set()
    other.gate.set()
    futures = desk.submit(one, [*rows(1), *rows(2, length=20), *rows(3)]) + desk.submit(other, rows(4))
    desk.start()
    assert numbers(futures) == [1, 2, 3, 4]
    assert one.asked == [[1, 3], [2]] and other.asked == [[4]]


def test_what_a_query_may_hold_bounds_a_batch(desk):
    offer = Offer(room=2)
    offer.gate.set()
    futures = desk.submit(offer, rows(1, 2, 3))
    desk.start()
    assert numbers(futures) == [1, 2, 3] and offer.asked == [[1, 2], [3]]


def test_a_large_request_does_not_hold_up_a_small_one(desk):
    offer = Offer()
    offer.gate.set()
    large = desk.submit(offer, rows(*range(12)))
    small = desk.submit(offer, rows(99))
    desk.start()
    assert numbers(small) == [99] and numbers(large) == list(range(12))
    assert 99 in offer.asked[1], "the small request has the second turn"


def test_a_full_desk_says_when_to_come_again_and_takes_nothing(desk):
    offer = Offer()
    desk.submit(offer, rows(*range(18)))
    with pytest.raises(Failure, match="18 texts are waiting") as refused:
        desk.submit(offer, rows(1, 2, 3))
    assert refused.value.status == 429 and int(refused.value.headers()["Retry-After"]) >= 1
    assert desk.waiting == 18
    with pytest.raises(Failure, match="at most 20") as refused:
        desk.submit(offer, rows(*range(21)))
    assert refused.value.status == 413


def test_a_text_whose_application_has_gone_is_not_asked_about(desk):
    offer = Offer()
    futures = desk.submit(offer, rows(1, 2, 3))
    futures[1].cancel()
    assert desk.waiting == 2
    offer.gate.set()
    desk.start()
    assert numbers([futures[0], futures[2]]) == [1, 3] and offer.asked == [[1, 3]]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionLostError("server1 went away"), 503),
        (LimitError("60 sessions within a minute"), 429),
        (InputError("the stored model has another card"), 502),
        (ValueError("a private text"), 500),
    ],
)
def test_a_session_that_fails_fails_its_texts_and_no_others(desk, error, status):
    bad, good = Offer(error=error), Offer()
    bad.gate.set()
    good.gate.set()
    failing, working = desk.submit(bad, rows(1, 2)), desk.submit(good, rows(3))
    desk.start()
    for future in failing:
        assert isinstance(future.exception(10), Failure)
        assert future.exception().status == status and "private" not in str(future.exception())
    assert numbers(working) == [3]


def test_whoever_waits_when_the_gateway_stops_is_told(desk):
    futures = desk.submit(Offer(), rows(1))
    desk.stop()
    assert futures[0].exception(1).status == 503
    with pytest.raises(Failure, match="being stopped"):
        desk.submit(Offer(), rows(1))

from __future__ import annotations

import time

import pytest
import torch

from secformer.deployment import Limits
from secformer.engine.form import shared
from secformer.engine.program import Program
from secformer.engine.tracing import trace
from secformer.errors import (
    AgreementError,
    ConnectionLostError,
    InputError,
    MaterialError,
    MissingModelError,
    PeerAbortedError,
    SecFormerError,
    ShapeError,
)
from secformer.parties import messages, session
from secformer.parties.links import Links, original
from secformer.parties.messages import Facts, Job, Reached
from secformer.parties.server import describe
from secformer.parties.session import SessionNames, Visit, agree, facts_of, reach
from secformer.parties.store import ModelStore, StoredModel
from secformer.settings import Settings
from secformer.transport.channel import FrameType
from secformer.transport.memory import memory_pair

SESSION = bytes(16)


def joined(*peers):
    """This party's links, and the far end of each."""
    links, far = Links(SESSION), {}
    for peer in peers:
        near, far[peer] = memory_pair("server0", peer, SESSION, timeout=3)
        links.add(near)
    return links, far


def reason_at(channel):
    with pytest.raises(SecFormerError) as caught:
        channel.receive(FrameType.CONTROL)
    return original(caught.value)


def test_a_failure_is_told_to_everybody_with_its_type():
    links, far = joined("server1", "dealer", "client")
    links.fail(InputError("the job makes no sense"))
    for channel in far.values():
        reason = reason_at(channel)
        assert type(reason) is InputError and "the job makes no sense" in str(reason)


def test_the_first_cause_is_kept():
    links, _ = joined("server1")
    first = links.fail(ShapeError("first"))
    assert links.fail(ConnectionLostError("second")) is first
    with pytest.raises(ShapeError):
        links.check()


def test_a_channel_that_comes_too_late_is_ended_at_once():
    links, _ = joined("server1")
    links.fail(InputError("over"))
    near, far = memory_pair("server0", "dealer", SESSION, timeout=3)
    links.add(near)
    assert isinstance(reason_at(far), InputError)


def test_who_only_receives_hears_a_peer_that_has_left_to_the_end():
    """A server sends its answer and hangs up; a slow caller must not take that for a failure before it has read it."""
    links, (near, far) = Links(SESSION, reads_on=True), memory_pair("client", "server0", SESSION, timeout=3)
    links.add(near)
    links.watch()
    for content in (b"answer", b"report"):
        far.send(FrameType.CONTROL, content)
    far.close()
    time.sleep(0.5)
    links.check()
    assert [near.receive(FrameType.CONTROL).numpy().tobytes() for _ in range(2)] == [b"answer", b"report"]
    time.sleep(0.5)
    with pytest.raises(ConnectionLostError):
        links.check()


def test_one_channel_ending_ends_the_session_within_a_second():
    links, far = joined("server1", "dealer", "client")
    links.watch()
    started = time.monotonic()
    far["dealer"].close()
    assert "transport.lost" in str(reason_at(far["client"]))
    assert "transport.lost" in str(reason_at(far["server1"]))
    assert time.monotonic() - started < 1


def test_an_abort_goes_on_as_what_it_was():
    """Though nobody reads it here: the thread that watches does."""
    links, far = joined("server1", "client")
    links.watch()
    far["server1"].abort(AgreementError("the tapes differ"))
    far["server1"].close()
    reason = reason_at(far["client"])
    assert isinstance(reason, AgreementError) and "the tapes differ" in str(reason)
    assert isinstance(links.reason, AgreementError)


def test_hanging_up_after_the_end_is_no_failure():
    links, far = joined("server1", "client")
    links.watch()
    links.unwatch()
    far["server1"].close()
    time.sleep(0.5)
    assert links.reason is None


@pytest.mark.parametrize("code", ["transport.lost", "transport.frame", "internal", "unknown"])
def test_troubles_of_others_with_their_peers_stay_theirs(code):
    error = PeerAbortedError("server1", code, "something")
    assert original(error) is error


def test_foreign_errors_are_logged_by_place_and_not_by_text():
    try:
        raise ValueError("the secret is 42")
    except ValueError as error:
        text = describe(error)
    assert "42" not in text and "ValueError" in text and "test_links.py" in text


# What servers do together


def both_agree(own: Facts, theirs: Facts):
    links, far = joined("server1", "dealer")
    messages.send(far["server1"], theirs)
    messages.send(far["dealer"], own)
    agree(links, ("server1", "dealer"), own)


def _program(settings=""):
    def body(runtime, values):
        return {"y": runtime.disclose(values["x"] * 2)}

    return Program("double", body, {"x": shared((1,), 64, 4)}, {"y": 4}, settings)


def facts(**changes):
    arguments = {"settings": Settings(), "limits": Limits(), "visit": VISIT, "model": None, "tape": _tape()}
    return facts_of(**arguments | changes)


VISIT = Visit(Job("double"), "client", "a certificate")


def _tape(settings=""):
    return trace(_program(settings)).tape.digest()


def test_equal_facts_agree():
    both_agree(facts(), facts())


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"settings": Settings(network="wan")}, "setting network"),
        ({"settings": Settings(connections=3)}, "setting connections"),
        ({"limits": Limits(sessions=3)}, "limit sessions"),
        ({"visit": VISIT._replace(job=Job("double", {"a": 1}))}, "job"),
        ({"visit": VISIT._replace(principal="another")}, "caller"),
        ({"model": StoredModel(b"session", {}, "")}, "upload of the model"),
        ({"tape": _tape("other")}, "tape"),
    ],
)
def test_a_difference_is_named(changes, name):
    with pytest.raises(AgreementError, match=f"server1 and this server differ in: {name}"):
        both_agree(facts(), facts(**changes))


def test_another_protocol_version_is_named(monkeypatch):
    own = facts()
    monkeypatch.setattr(session, "PROTOCOL_VERSION", 99)
    with pytest.raises(AgreementError, match="protocol version"):
        both_agree(own, facts())


def test_a_fact_that_one_side_does_not_know_is_a_difference():
    with pytest.raises(AgreementError, match="hat size"):
        both_agree(facts(), Facts({**facts().entries, "hat size": "7"}))


def test_settings_of_one_machine_need_not_agree():
    both_agree(facts(), facts(settings=Settings(threads=7, log_level="debug", loaded_models=1)))


def test_servers_out_of_step_stop():
    links, far = joined("server1")
    messages.send(far["server1"], Reached("done"))
    with pytest.raises(AgreementError, match="out of step"):
        reach(links, ("server1",), "inputs")


def test_a_session_is_claimed_once(monkeypatch):
    names = SessionNames()
    names.claim(b"a" * 16)
    names.claim(b"b" * 16)
    with pytest.raises(MaterialError):
        names.claim(b"a" * 16)


def test_the_memory_for_sessions_is_bounded(monkeypatch):
    monkeypatch.setattr(session, "NAMES_KEPT", 3)
    names = SessionNames()
    for number in range(10):
        names.claim(bytes([number]) * 16)
    assert len(names._seen) == 3
    with pytest.raises(MaterialError):
        names.claim(bytes([9]) * 16)


def test_an_unknown_model(tmp_path):
    with pytest.raises(MissingModelError, match="upload"):
        ModelStore(tmp_path, "server0", torch.device("cpu")).get("nothing")

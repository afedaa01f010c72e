import threading
import time

import pytest
import torch
from talking import SESSION, both

from secformer.errors import SettingsError
from secformer.roles import DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import FrameType
from secformer.transport.frame import HEADER_BYTES
from secformer.transport.memory import MemoryChannel, memory_pair
from secformer.transport.shaped import PROFILES, Profile, shaped
from secformer.transport.tls_network import TlsNetwork

# A loaded machine wakes threads late, never early.
LATE = 0.05


def shaped_pair(profile: Profile | str) -> tuple[MemoryChannel, MemoryChannel]:
    zero, one = memory_pair("server0", "server1", SESSION)
    return shaped(zero, profile), shaped(one, profile)


def timed(action) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def delivered(zero, one, payload) -> None:
    """From before it is sent: the line's clock begins with its arrival, whenever the receiver comes to look."""
    zero.send(FrameType.OPENING, payload)
    one.receive(FrameType.OPENING)


def test_the_profiles_are_the_papers():
    assert PROFILES["lan"] == Profile(bandwidth=10e9, round_trip=0.2e-3)
    assert PROFILES["wan"] == Profile(bandwidth=400e6, round_trip=40e-3)


def test_a_small_frame_takes_half_a_round_trip():
    zero, one = shaped_pair("wan")
    assert 0.020 <= timed(lambda: delivered(zero, one, b"x")) < 0.020 + LATE


def test_a_large_frame_takes_its_time_on_the_line():
    zero, one = shaped_pair(Profile(bandwidth=400e6, round_trip=0.01))
    size = 5_000_000  # 0.1 s
    payload = torch.zeros(size, dtype=torch.uint8)
    expected = 8 * (size + HEADER_BYTES) / 400e6 + 0.005
    assert expected <= timed(lambda: delivered(zero, one, payload)) < expected + LATE


def test_frames_queue_on_the_line_and_share_the_delay():
    zero, one = shaped_pair(Profile(bandwidth=80e6, round_trip=0.1))
    start = time.monotonic()
    for _ in range(4):
        zero.send(FrameType.MATERIAL, bytes(200_000))  # 20 ms each
    arrivals = []
    for _ in range(4):
        one.receive(FrameType.MATERIAL)
        arrivals.append(time.monotonic() - start)
    for number, arrival in enumerate(arrivals, start=1):
        assert 0.05 + 0.02 * number <= arrival < 0.05 + 0.02 * number + LATE


def test_directions_do_not_share_the_line():
    ends = shaped_pair(Profile(bandwidth=80e6, round_trip=0.02))
    payload = torch.zeros(1_000_000, dtype=torch.uint8)  # 0.1 s
    took = both(*(lambda end=end: timed(lambda: end.exchange(payload)) for end in ends))
    assert 0.11 <= max(took) < 0.11 + LATE, took  # one line for both would need 0.21 s


def test_the_line_works_while_the_receiver_computes():
    zero, one = shaped_pair(Profile(bandwidth=80e6, round_trip=0.02))
    zero.send(FrameType.OPENING, bytes(1_000_000))
    time.sleep(0.15)
    assert timed(lambda: one.receive(FrameType.OPENING)) < 0.05


def test_rounds_on_the_lan_cost_about_a_tenth_of_a_millisecond():
    ends = shaped_pair("lan")

    def rounds(end):
        for _ in range(100):
            end.exchange(b"12345678")

    took = both(*(lambda end=end: timed(lambda: rounds(end)) for end in ends))
    assert all(99 * 0.1e-3 <= seconds < 100 * 1e-3 for seconds in took), took


def test_counters_and_timeout_are_those_of_the_channel_inside():
    zero, one = memory_pair("server0", "server1", SESSION, timeout=7.0)
    counters = one.counters
    assert shaped(one, "lan") is one
    assert one.timeout == 7.0 and one.counters is counters
    zero.send(FrameType.OPENING, b"1")
    one.receive(FrameType.OPENING)
    assert counters.messages_received == 1


def test_close_wakes_a_shaped_receiver():
    zero, one = shaped_pair("wan")
    threading.Timer(0.1, zero.close).start()
    with pytest.raises(Exception, match="closed"):
        one.receive(FrameType.OPENING)


@pytest.mark.parametrize("values", [(0, 0.1), (-1, 0.1), (1e9, -0.1), (float("nan"), 0.1)])
def test_an_impossible_line_is_refused(values):
    with pytest.raises(SettingsError):
        Profile(*values)


def test_an_unknown_profile_is_refused():
    with pytest.raises(SettingsError, match="lan, wan"):
        shaped_pair("moon")


@pytest.mark.parametrize("deal_first", [False, True])
def test_where_t_deals_first_its_line_is_left_as_it_is(deal_first):
    """What it deals is there before the clock starts: nobody should wait for a slow line to carry it."""
    network = TlsNetwork.__new__(TlsNetwork)
    network.role, network._settings = SERVER1, Settings(network="wan", deal_first=deal_first)
    channels = {peer: memory_pair(SERVER1, peer, bytes(16))[0] for peer in (SERVER0, DEALER)}
    lines = {peer: network.dressed(channel).line for peer, channel in channels.items()}
    assert lines[SERVER0] is not None and (lines[DEALER] is None) == deal_first

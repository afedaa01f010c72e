import threading
import time

import pytest
import torch
from talking import SESSION

from secformer.errors import ConnectionLostError, FrameError, PeerAbortedError, TransportError
from secformer.transport.channel import FrameType
from secformer.transport.frame import Frame
from secformer.transport.memory import memory_pair


def test_the_tensor_itself_is_handed_over():
    zero, one = memory_pair("server0", "server1", SESSION)
    payload = torch.arange(8, dtype=torch.uint8)
    zero.send(FrameType.OPENING, payload)
    assert one.receive(FrameType.OPENING).data_ptr() == payload.data_ptr()


@pytest.mark.parametrize("sequence", [1, 3, 0])
def test_a_replayed_or_reordered_frame_is_refused(sequence):
    zero, one = memory_pair("server0", "server1", SESSION)
    zero.send(FrameType.OPENING, b"first")
    one.receive(FrameType.OPENING)
    forged = torch.zeros(5, dtype=torch.uint8)
    one._inbox.put(Frame(FrameType.OPENING, sequence, (5,), 8, forged, time.monotonic()))
    with pytest.raises(FrameError, match=f"sequence: {sequence} instead of 2"):
        one.receive(FrameType.OPENING)
    with pytest.raises(PeerAbortedError):
        zero.receive(FrameType.OPENING)


def test_a_bounded_receiver_makes_the_sender_wait():
    zero, one = memory_pair("dealer", "server1", SESSION, receive_buffer=1000)
    sent = []

    def deal():
        for number in range(5):
            zero.send(FrameType.MATERIAL, bytes(400))
            sent.append(number)
        zero.send(FrameType.MATERIAL, bytes(5000))  # more than the bound: alone in the queue, but delivered

    dealer = threading.Thread(target=deal)
    dealer.start()
    time.sleep(0.2)
    assert sent == [0, 1]
    for _ in range(5):
        one.receive(FrameType.MATERIAL, shape=(400,))
    one.receive(FrameType.MATERIAL, shape=(5000,))
    dealer.join(5)
    assert sent == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("closer", [0, 1])
def test_close_wakes_a_sender_that_waits_for_room(closer):
    ends = memory_pair("dealer", "server1", SESSION, receive_buffer=10)
    ends[0].send(FrameType.MATERIAL, bytes(10))
    caught: list[TransportError] = []

    def deal():
        try:
            ends[0].send(FrameType.MATERIAL, bytes(10))
        except TransportError as error:
            caught.append(error)

    dealer = threading.Thread(target=deal)
    dealer.start()
    time.sleep(0.1)
    ends[closer].close()
    dealer.join(2)
    assert len(caught) == 1 and isinstance(caught[0], ConnectionLostError)


def test_an_abort_does_not_wait_for_room():
    zero, one = memory_pair("dealer", "server1", SESSION, receive_buffer=10)
    zero.send(FrameType.MATERIAL, bytes(10))
    zero.abort(FrameError("enough"))
    one.receive(FrameType.MATERIAL)
    with pytest.raises(PeerAbortedError, match="enough"):
        one.receive(FrameType.MATERIAL)


def test_an_abort_interrupts_a_sender_that_waits_for_room():
    zero, one = memory_pair("dealer", "server1", SESSION, receive_buffer=10)
    zero.send(FrameType.MATERIAL, bytes(10))
    threading.Timer(0.1, one.abort, (FrameError("enough"),)).start()
    with pytest.raises(PeerAbortedError, match="enough"):
        zero.send(FrameType.MATERIAL, bytes(10))

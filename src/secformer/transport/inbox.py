"""Frames that have arrived and wait for the program, in order, with the error that ended the channel last.

A `Room` bounds the bytes that wait: whoever fills it blocks until there is space again, which is the
back-pressure that keeps a dealer from running away from its server. A frame larger than the whole room still
gets in when the room is empty; otherwise it could never be delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Lock
from time import monotonic

from secformer.errors import PeerTimeoutError, TransportError
from secformer.transport.frame import Frame


class Room:
    """Space for `bound` bytes; None is without bound, and then nothing is counted or locked."""

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._inside = 0
        self._open = False
        self._changed = Condition()

    def enter(self, size: int, urgent: bool = False) -> None:
        """Wait for space; an urgent frame, such as an abort, does not wait."""
        if self._bound is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: urgent or self._fits(size))
            self._inside += size

    def _fits(self, size: int) -> bool:
        assert self._bound is not None
        return self._open or not self._inside or self._inside + size <= self._bound

    def leave(self, size: int) -> None:
        if self._bound is None:
            return
        with self._changed:
            self._inside -= size
            self._changed.notify_all()

    def throw_open(self) -> None:
        """Nobody waits here any more: the channel has ended."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


class Inbox:
    """`progress` tells how many bytes have come so far, those of an unfinished frame included."""

    def __init__(self, peer: str, bound: int | None, progress: Callable[[], int] = lambda: 0) -> None:
        self.room = Room(bound)
        self.error: TransportError | None = None
        self._progress = progress
        self.peer = peer
        self._ending = Lock()
        self._items: SimpleQueue[Frame | TransportError] = SimpleQueue()
        self._seen: Frame | TransportError | None = None
        # bound once: looked up for every frame
        self.put = self._items.put

    def end(self, error: TransportError) -> None:
        """No frame follows. The first reason given is the one that is raised."""
        with self._ending:
            if self.error is None:
                self.error = error
                self._items.put(error)
        self.room.throw_open()

    @property
    def unread(self) -> bool:
        """Whether a frame waits here."""
        return self._items.qsize() + (self._seen is not None) > (self.error is not None)

    def peek(self) -> Frame | None:
        """The frame that is next, if it is here: for the thread that takes it."""
        if self._seen is None:
            with suppress(Empty):
                self._seen = self._items.get_nowait()
        return self._seen if isinstance(self._seen, Frame) else None

    def take(self, timeout: float | None, deadline: float | None = None) -> Frame:
        """The next frame. `timeout` is how long the peer may be silent, `deadline` when this ends whatever it does."""
        waits = timeout is not None or deadline is not None
        item, self._seen = self._seen, None
        if item is None:
            item = self._wait(timeout, deadline) if waits else self._items.get()
        if isinstance(item, Frame):
            self.room.leave(item.payload.numel())
            return item
        self._items.put(item)  # for whoever asks next
        raise item.with_traceback(None)

    def _wait(self, timeout: float | None, deadline: float | None) -> Frame | TransportError:
        while True:
            before = self._progress()
            left = [] if deadline is None else [max(deadline - monotonic(), 0.0)]
            patience = min(left if timeout is None else [timeout, *left])
            try:
                return self._items.get(timeout=patience)
            except Empty:
                if deadline is not None and monotonic() >= deadline:
                    raise PeerTimeoutError(f"{self.peer} did not say in time what it had to say") from None
                if self._progress() == before:
                    raise PeerTimeoutError(
                        f"nothing from {self.peer} for {timeout:g} s: it hangs, or needs a longer receive timeout"
                    ) from None

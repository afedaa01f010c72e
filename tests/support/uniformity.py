"""Chi-square tests of what the servers send, and the channel that records it."""

import torch

from secformer.ring.fixed_point import reduce
from secformer.ring.packing import unpack
from secformer.transport.channel import Channel

ALPHA = 1e-6


def exceeds(statistic: float, freedom: int, alpha: float = ALPHA) -> bool:
    """Whether a chi-square variable is that large with a probability below alpha only."""
    half = torch.tensor([freedom, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1])) < alpha


def uniform_problem(values: torch.Tensor, width: int) -> str | None:
    """Why int64 samples of any shape are not uniform on [0, 2^width), byte by byte; None if they may be."""
    flat = reduce(values, width).reshape(-1)
    for low in range(0, width, 8):
        cells = 1 << min(8, width - low)
        counts = torch.bincount((flat >> low) & (cells - 1), minlength=cells).double()
        expected = flat.numel() / cells
        statistic = float(((counts - expected) ** 2 / expected).sum())
        if exceeds(statistic, cells - 1):
            return f"bits {low}..{low + 7}: chi-square {statistic:.0f} with {cells - 1} degrees of freedom"
    return None


def fair_bits_problem(values: torch.Tensor, width: int) -> str | None:
    """Samples (repetitions, elements): is every bit of every element a fair coin? One sum over all of them."""
    repetitions = values.shape[0]
    places = torch.arange(width)
    ones = ((values.unsqueeze(-1) >> places) & 1).sum(0).double()
    statistic = float(((ones - repetitions / 2) ** 2 / (repetitions / 4)).sum())
    if exceeds(statistic, ones.numel()):
        return f"single bits: chi-square {statistic:.0f} with {ones.numel()} degrees of freedom"
    return None


class Recorder(Channel):
    """Passes everything on and keeps what was sent in openings."""

    def __init__(self, channel):
        super().__init__(channel.peer, channel.session, channel.timeout)
        self.counters = channel.counters
        self.sent = []
        self._channel = channel

    def exchange(self, payload, shape=None, width=8, lent=False):
        data = payload if isinstance(payload, torch.Tensor) else torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self.sent.append(data.clone())
        return self._channel.exchange(payload, shape, width, lent)

    def send(self, kind, payload, shape=None, width=8):
        self._channel.send(kind, payload, shape, width)

    def receive(self, kind, shape=None, width=8, limit=None):
        return self._channel.receive(kind, shape, width, limit)

    def abort(self, error):
        self._channel.abort(error)

    @property
    def ended(self):
        return self._channel.ended

    def close(self):
        self._channel.close()

    def _put(self, *frame):
        self._channel._put(*frame)

    def _take(self):
        return self._channel._take()


def recording():
    """A `wrap` for run_locally and the list it fills: S0's recorder, then S1's."""
    recorders = []

    def wrap(channel):
        recorders.append(Recorder(channel))
        return recorders[-1]

    return wrap, recorders


def sent_values(plan, recorder):
    """What one server sent, opening by opening, as flat residues."""
    values = []
    for number, payload in enumerate(recorder.sent):
        start = 0
        for form in (opening.form for opening in plan.tape.openings if opening.round == number):
            part = payload[start : start + form.packed_bytes].clone()
            values.append(unpack(part, form.elements, form.width))
            start += form.packed_bytes
        assert start == payload.numel()
    return values


def opened(zero, one, form):
    """The value both servers then know."""
    return reduce(zero ^ one if form.boolean else zero + one, form.width)

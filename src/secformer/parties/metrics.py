"""What Prometheus hears of a server, at a port of its own: sessions, seconds by phase, bytes, who waits, errors by code.

    curl http://127.0.0.1:9464/metrics

Labels are words of ours (roles, programs, phases, codes), so that no caller can make up new ones.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server

from secformer.deployment import Address
from secformer.errors import SettingsError
from secformer.parties.watching import GOOD, SessionNote, code_of
from secformer.version import PROTOCOL_VERSION, __version__

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0)


class ServerMetrics:
    """A `Watch` with a registry of its own: several servers may live in one process."""

    def __init__(self, role: str) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        about = Gauge("secformer_server", "Which server this is", ["role", "release", "protocol"], registry=registry)
        about.labels(role, __version__, str(PROTOCOL_VERSION)).set(1)
        self._sessions = Counter("secformer_sessions", "Sessions that ended", ["program", "outcome"], registry=registry)
        self._seconds = Histogram(
            "secformer_session_seconds", "From its turn to the end", ["program"], buckets=SECONDS, registry=registry
        )
        self._phases = Histogram(
            "secformer_phase_seconds", "By part of a session", ["program", "phase"], buckets=SECONDS, registry=registry
        )
        self._bytes = Counter(
            "secformer_bytes", "Bytes by peer, headers included", ["peer", "direction"], registry=registry
        )
        self._errors = Counter("secformer_errors", "Sessions and calls that failed", ["code"], registry=registry)
        self._running = Gauge("secformer_running_sessions", "Sessions under way", registry=registry)
        self.waiting = Gauge("secformer_waiting_callers", "Callers that wait for a lane", registry=registry)
        self._stocked = Counter(
            "secformer_stocked_sessions", "Sessions that used what was dealt ahead", registry=registry
        )
        self.stock_items = Gauge("secformer_stock_items", "Items that wait to be used", registry=registry)
        self.stock_bytes = Gauge(
            "secformer_stock_bytes", "Bytes of corrections that wait on the disk", registry=registry
        )
        self.lanes = Gauge("secformer_lanes", "Sessions that may be under way at once", registry=registry)
        self.days_left = Gauge("secformer_certificate_days", "Days until the certificate ends", registry=registry)

    def begun(self) -> None:
        self._running.inc()

    def ended(self, note: SessionNote) -> None:
        self._running.dec()
        self._sessions.labels(note.program, note.outcome).inc()
        self._seconds.labels(note.program).observe(note.seconds)
        for phase, seconds in note.phases.items():
            self._phases.labels(note.program, phase).observe(seconds)
        for direction, counted in (("sent", note.sent), ("received", note.received)):
            for peer, count in counted.items():
                self._bytes.labels(peer, direction).inc(count)
        if note.stocked:
            self._stocked.inc()
        if note.outcome != GOOD:
            self._errors.labels(note.outcome).inc()

    def refused(self, error: BaseException) -> None:
        self._errors.labels(code_of(error)).inc()

    def listen(self, address: Address) -> None:
        try:
            start_http_server(address.port, address.host, self.registry)
        except OSError as error:
            raise SettingsError(f"metrics cannot be shown at {address}: {error.strerror}") from None

"""What Prometheus hears of a gateway: requests, sessions, waiting texts. Counts and seconds, never a text or its length."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from secformer.errors import SecFormerError
from secformer.gateway.desk import Desk, Sitting
from secformer.gateway.offers import Offers

SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class GatewayMetrics:
    """Its own registry: nothing global, so that two gateways may live in one process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("secformer_gateway_requests", "Requests", ["route", "status"], registry=registry)
        self._request_seconds = Histogram(
            "secformer_gateway_request_seconds", "Request to response", ["route"], buckets=SECONDS, registry=registry
        )
        self._texts = Counter("secformer_gateway_texts", "Texts answered", ["marked"], registry=registry)
        self._batch = Histogram(
            "secformer_gateway_batch_texts",
            "Texts that shared a session",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=registry,
        )
        self._session_seconds = Histogram(
            "secformer_gateway_session_seconds", "One session", buckets=SECONDS, registry=registry
        )
        self._wait_seconds = Histogram(
            "secformer_gateway_wait_seconds", "Wait for a session", buckets=SECONDS, registry=registry
        )
        self._bytes = Counter(
            "secformer_gateway_bytes", "Bytes to and from S0 and S1", ["direction"], registry=registry
        )
        self._errors = Counter("secformer_gateway_errors", "Sessions that failed", ["code"], registry=registry)
        self._waiting = Gauge("secformer_gateway_waiting_texts", "Texts that wait", registry=registry)
        self._running = Gauge("secformer_gateway_running_sessions", "Sessions under way", registry=registry)
        self._healthy = Gauge("secformer_gateway_healthy", "Whether every model could be had", registry=registry)

    def show(self, desk: Desk, offers: Offers) -> None:
        """From now on, gauges are read off these."""
        self._waiting.set_function(lambda: desk.waiting)
        self._running.set_function(lambda: desk.running)
        self._healthy.set_function(lambda: float(offers.healthy))

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def session(self, sitting: Sitting) -> None:
        self._batch.observe(sitting.texts)
        self._session_seconds.observe(sitting.seconds)
        self._wait_seconds.observe(sitting.waited)
        if sitting.error is not None:
            code = sitting.error.code if isinstance(sitting.error, SecFormerError) else "internal"
            self._errors.labels(code).inc()
            return
        for answer in sitting.answers:
            self._texts.labels("yes" if answer.marked else "no").inc()
        result = sitting.answers[0].session.result
        self._bytes.labels("sent").inc(result.sent)
        self._bytes.labels("received").inc(result.received)

    def text(self) -> bytes:
        return generate_latest(self.registry)

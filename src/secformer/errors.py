"""All errors that SecFormer raises, as one tree.

    SecFormerError
    ├── InputError              an argument or input cannot be used
    │   ├── RangeError          NaN, infinity, or a value outside its declared range
    │   ├── ShapeError          wrong, empty or incompatible shapes
    │   ├── DtypeError          wrong element type
    │   ├── TableError          a file of texts is broken or ambiguous
    │   └── MissingModelError   no such model, or no such version of it, is stored
    ├── WidthError              the ring is too narrow for the program
    ├── FitError                no Fourier fit meets the requested error
    ├── CalibrationError        a calibration record is missing, stale or does not fit the model
    ├── ModelError              a checkpoint is unsupported, corrupt or incomplete
    ├── SettingsError           contradictory or unknown settings
    ├── AccessError             this party may not do that
    │   └── LimitError          the request is allowed, but exceeds a size or rate limit
    ├── OutputError             a result cannot be written: full disk, read-only folder
    ├── MemoryLimitError        this machine or its device has too little memory for the request
    ├── KernelError             a GPU kernel could not be built, or computed a wrong result
    ├── BusyError               the servers are full: `retry_after` says when to try again
    ├── StoreError              a stored model is damaged, or the disk refuses it
    ├── SecurityError           going on would break a promise of the threat model
    │   ├── TapeError           a traced program violates a rule of docs/threat-model.md
    │   └── MaterialError       dealer material, a seed or a session would be used a second time
    ├── AgreementError          the servers do not run the same program, version or settings
    └── TransportError          the peer cannot be reached or understood
        ├── IdentityError       wrong, expired or missing certificate, wrong role, TLS below 1.3
        ├── FrameError          a frame is truncated, oversized, replayed, reordered or malformed
        ├── ConnectionLostError the peer went away
        ├── PeerTimeoutError    the peer did not answer in time
        └── PeerAbortedError    the peer reported an error of its own and stopped

A message says what happened, where, and what to do. It never contains a secret value.
"""

import re


class SecFormerError(Exception):
    """Base class of all errors raised on purpose. `code` is stable and documented in docs/errors.md."""

    code = "secformer"


class InputError(SecFormerError, ValueError):
    """Argument or input that cannot be used."""

    code = "input"


class RangeError(InputError):
    """NaN, infinity, or a value outside its declared range."""

    code = "input.range"


class ShapeError(InputError):
    """Wrong, empty or incompatible shape."""

    code = "input.shape"


class DtypeError(InputError):
    """Wrong element type."""

    code = "input.dtype"


class TableError(InputError):
    """File of texts that is broken, or that could be read in two ways."""

    code = "input.table"


class MissingModelError(InputError):
    """Model, or version of a model, that is not stored."""

    code = "input.model"


class WidthError(SecFormerError):
    """Ring too narrow for the program."""

    code = "width"


class FitError(SecFormerError):
    """Fourier fit that misses the requested error."""

    code = "fit"


class CalibrationError(SecFormerError):
    """Calibration record that is missing, stale or does not fit the model."""

    code = "calibration"


class ModelError(SecFormerError):
    """Checkpoint that is unsupported, corrupt or incomplete."""

    code = "model"


class SettingsError(SecFormerError):
    """Contradictory or unknown settings."""

    code = "settings"


class AccessError(SecFormerError):
    """Request that this party may not make."""

    code = "access"


class LimitError(AccessError):
    """Request that exceeds a size or rate limit."""

    code = "access.limit"


class OutputError(SecFormerError):
    """Result that cannot be written: full disk, read-only folder."""

    code = "output"


class MemoryLimitError(SecFormerError):
    """Request that needs more memory than this machine or its device has."""

    code = "memory"


class KernelError(SecFormerError):
    """GPU kernel that could not be built, or that computed a wrong result."""

    code = "kernel"


class BusyError(SecFormerError):
    """Servers without a free place. Only the message crosses machines, so it contains the waiting time."""

    code = "busy"

    @property
    def retry_after(self) -> float:
        """Return the seconds to wait before the next attempt, read from the message; 5 if it names none."""
        found = re.search(r"again in (\d+) s", str(self))
        return float(found[1]) if found else 5.0


class StoreError(SecFormerError):
    """Stored model that is damaged, or that the disk refuses."""

    code = "store"


class SecurityError(SecFormerError):
    """Step that would break a promise of the threat model."""

    code = "security"


class TapeError(SecurityError):
    """Traced program that violates a rule of docs/threat-model.md."""

    code = "security.tape"


class MaterialError(SecurityError):
    """Dealer material, seed or session that would be used a second time."""

    code = "security.material"


class AgreementError(SecFormerError):
    """Servers that do not run the same program, version or settings."""

    code = "agreement"


class TransportError(SecFormerError):
    """Peer that cannot be reached or understood."""

    code = "transport"


class IdentityError(TransportError):
    """Wrong, expired or missing certificate, wrong role, or TLS below 1.3."""

    code = "transport.identity"


class FrameError(TransportError):
    """Frame that is truncated, oversized, replayed, reordered or malformed."""

    code = "transport.frame"


class ConnectionLostError(TransportError):
    """Peer that went away."""

    code = "transport.lost"


class PeerTimeoutError(TransportError):
    """Peer that did not answer in time."""

    code = "transport.timeout"


class PeerAbortedError(TransportError):
    """Peer that stopped with an error of its own: its role, the error's code and text (`peer`, `peer_code`, `reason`)."""

    code = "transport.aborted"

    def __init__(self, peer: str, peer_code: str, reason: str) -> None:
        super().__init__(f"{peer} stopped with [{peer_code}] {reason}")
        self.peer, self.peer_code, self.reason = peer, peer_code, reason

"""Every error SecFormer raises, as one tree.

    SecFormerError
    ├── InputError              what the caller gave cannot be used
    │   ├── RangeError          NaN, infinity, or a value outside its declared range
    │   ├── ShapeError          wrong, empty or incompatible shapes
    │   ├── DtypeError          wrong element type
    │   ├── TableError          a file of texts is broken, or could be read in two ways
    │   └── MissingModelError   no such model, or not in that version, is stored
    ├── WidthError              the ring is too narrow for what the program asks of it
    ├── FitError                no Fourier fit meets the requested error
    ├── CalibrationError        a calibration record is missing, stale or does not fit the model
    ├── ModelError              a checkpoint is unsupported, corrupt or incomplete
    ├── SettingsError           contradictory or unknown settings
    ├── AccessError             this party may not do that
    │   └── LimitError          it may, but not so much, or not so often
    ├── OutputError             what was asked for cannot be written: a full disk, a folder that is read-only
    ├── MemoryLimitError        this machine, or its device, has too little memory for what was asked
    ├── KernelError             a GPU's kernel was not made, or computed something else than it should
    ├── BusyError               the servers have no place left: `retry_after` says when to come again
    ├── StoreError              a stored model is damaged, or the disk does not take it
    ├── SecurityError           going on would break a promise of the threat model
    │   ├── TapeError           a traced program violates a rule of docs/threat-model.md
    │   └── MaterialError       dealer material, a seed or a session would be used a second time
    ├── AgreementError          the servers do not run the same program, version or settings
    └── TransportError          the other side cannot be talked to
        ├── IdentityError       wrong, expired or missing certificate, wrong role, TLS below 1.3
        ├── FrameError          a frame is truncated, oversized, replayed, reordered or malformed
        ├── ConnectionLostError the peer went away
        ├── PeerTimeoutError    the peer did not answer in time
        └── PeerAbortedError    the peer reported an error of its own and stopped

A message says what happened, where, and what to do; it never holds a secret value.
"""

import re


class SecFormerError(Exception):
    """Base of everything raised on purpose; `code` is stable and documented in docs/errors.md."""

    code = "secformer"


class InputError(SecFormerError, ValueError):
    code = "input"


class RangeError(InputError):
    code = "input.range"


class ShapeError(InputError):
    code = "input.shape"


class DtypeError(InputError):
    code = "input.dtype"


class TableError(InputError):
    code = "input.table"


class MissingModelError(InputError):
    code = "input.model"


class WidthError(SecFormerError):
    code = "width"


class FitError(SecFormerError):
    code = "fit"


class CalibrationError(SecFormerError):
    code = "calibration"


class ModelError(SecFormerError):
    code = "model"


class SettingsError(SecFormerError):
    code = "settings"


class AccessError(SecFormerError):
    code = "access"


class LimitError(AccessError):
    code = "access.limit"


class OutputError(SecFormerError):
    code = "output"


class MemoryLimitError(SecFormerError):
    code = "memory"


class KernelError(SecFormerError):
    code = "kernel"


class BusyError(SecFormerError):
    """The message says when; it is all that travels from one party to another."""

    code = "busy"

    @property
    def retry_after(self) -> float:
        """Seconds."""
        found = re.search(r"again in (\d+) s", str(self))
        return float(found[1]) if found else 5.0


class StoreError(SecFormerError):
    code = "store"


class SecurityError(SecFormerError):
    code = "security"


class TapeError(SecurityError):
    code = "security.tape"


class MaterialError(SecurityError):
    code = "security.material"


class AgreementError(SecFormerError):
    code = "agreement"


class TransportError(SecFormerError):
    code = "transport"


class IdentityError(TransportError):
    code = "transport.identity"


class FrameError(TransportError):
    code = "transport.frame"


class ConnectionLostError(TransportError):
    code = "transport.lost"


class PeerTimeoutError(TransportError):
    code = "transport.timeout"


class PeerAbortedError(TransportError):
    """`peer`, `peer_code` and `reason` are what the other side said of its own error."""

    code = "transport.aborted"

    def __init__(self, peer: str, peer_code: str, reason: str) -> None:
        super().__init__(f"{peer} stopped with [{peer_code}] {reason}")
        self.peer, self.peer_code, self.reason = peer, peer_code, reason

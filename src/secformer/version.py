"""The version of the package, and of what its parties say to each other."""

__version__ = "0.1.0"

# Raised whenever a frame, the handshake, a stream label or a tape changes meaning. Peers with different
# numbers refuse each other before anything secret moves, whatever the package versions are.
PROTOCOL_VERSION = 9

"""The five parties of a deployment, under the names that certificates, logs and messages use.

client      sends a text, receives the result
provider    uploads the weights
server0     S0, computes on one share
server1     S1, computes on the other share
dealer      T, deals randomness and sees no share
"""

CLIENT, PROVIDER = "client", "provider"
SERVER0, SERVER1, DEALER = "server0", "server1", "dealer"

CALLERS = (CLIENT, PROVIDER)
"""Roles that start a session."""
COMPUTING = (SERVER0, SERVER1)
"""S_0 and S_1 of the formulas."""
SERVERS = (DEALER, *COMPUTING)
ROLES = (*CALLERS, *SERVERS)


def link(first: str, second: str) -> str:
    """Return the name of the seed and the streams that two roles share."""
    return f"{first}-{second}"


DEALER_LINKS = tuple(link(DEALER, server) for server in COMPUTING)
SERVER_LINK = link(*COMPUTING)

"""The five parties of a deployment, under the names that certificates, logs and messages use.

client      brings a text, gets the result
provider    brings the weights
server0     S0, computes on one share
server1     S1, computes on the other
dealer      T, deals randomness and sees no share
"""

CLIENT, PROVIDER = "client", "provider"
SERVER0, SERVER1, DEALER = "server0", "server1", "dealer"

CALLERS = (CLIENT, PROVIDER)
"""Those who begin a session."""
COMPUTING = (SERVER0, SERVER1)
"""S_0 and S_1 of the formulas."""
SERVERS = (DEALER, *COMPUTING)
ROLES = (*CALLERS, *SERVERS)


def link(first: str, second: str) -> str:
    """What two roles call the seed, and the streams, that they share."""
    return f"{first}-{second}"


DEALER_LINKS = tuple(link(DEALER, server) for server in COMPUTING)
SERVER_LINK = link(*COMPUTING)

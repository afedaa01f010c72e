"""Numbers modulo 2^w: fixed point, exact matrix products, bit packing. No secrets, no network."""

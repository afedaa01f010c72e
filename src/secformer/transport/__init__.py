"""How parties talk: frames, channels, and what carries them.

In the order of their imports:

    frame        the header, checked before anything is allocated
    channel      the one interface: send, receive, exchange, abort, close
    inbox        what has arrived and waits, with back-pressure
    memory       two parties in one process
    shaped       the bandwidth and delay of a LAN or WAN on top of any channel
    connection   one TLS connection, from handshake to first frame
    buffers      receive buffers that are used again
    sealed       larger records than TLS has, on connections that began as TLS
    lanes        a connection in one direction and its thread
    quick        a lane for short rounds, read by whoever waits for them
    tls_channel  a channel over several lanes
    greetings    who is being greeted at a door, bounded
    listener     the side that is called
    tls          the side that calls, and the entry to the eight above
    network      how a party reaches the others; within one process
    tls_network  the same between machines
"""

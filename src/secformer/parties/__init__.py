"""Who talks to whom: client, provider, the two computing servers and the dealer.

In the order of their imports:

    messages          small records in msgpack, checked on arrival
    links             the channels of one session at one party: they end together
    disk              files written whole or not at all, private, checked
    memory            what a server's process does with memory that it has freed
    store             models that stay with the servers, on disk and in memory
    watching          what may be written down of a session
    turns             whose turn it is, where lanes are fewer than callers
    access            who may do what, and how much of it
    planner           from a job to a plan
    session           what the servers of a session do alike: agree, take seeds, pass points together
    stock             material dealt ahead of demand, and the ledger of what was used
    restocking        how stock is compared and refilled
    storekeeper       sees to it that there is enough
    inputs            how a caller's inputs travel, and the results back
    inquiries         what is asked beside programs: models, cards, access
    server            what all three servers are
    computing_server  S0 and S1
    dealing_server    T
    logs              a line for people, or an object a line for a collector
    metrics           what Prometheus hears of a server
    serve             one of them as a process
    launch            all three on this machine, as processes or as threads
    caller            whoever begins a session
    provider          brings the weights
    prediction        what a caller makes of a model's result
    client            card, tokenizer and servers in, private predictions out
    library           what a client fetches: models, cards, tokenizers
"""

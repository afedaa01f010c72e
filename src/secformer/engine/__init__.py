"""The idea of the project: one program, read four ways.

In the order of their imports:

    form         all that is public about a tensor: kind, shape, width, scale
    values       what a protocol computes with: Public, Shared, Masked, Bits, Lifted
    gate         one local step with dealt randomness, all of it in one class
    runtime      what a protocol may call: open, disclose, apply, drop
    program      a protocol with the forms of its inputs and the scales of its results
    tape         every opening, every dealt value, every disclosure, and the draws they take
    ledger       rounds and bytes, by layer and operation
    provenance   tensors that remember what they are made of, for the trace
    tracing      reading one: without data, gives tape and ledger
    masks        a walk through a program on masks: T's, and a server's before the query
    ahead        what a server computes before the query, from its masks alone
    computing    reading two: S0 and S1, on shares
    repertoire   the plans a party runs again and again on one GPU: when they are recorded, and for whom
    session      what one run has for itself, and what a server draws in it
    places       where a recorded plan finds what is new in a session, and T's corrections on their way there
    recording    a plan written down: a graph for what lies between two exchanges
    replaying    a plan that S0 and S1 run again and again, recorded and replayed
    dealing      reading three: T, on masks
    redealing    a plan that T deals for again and again, recorded and replayed
    simulating   reading four: plain numbers in the same fixed point
    sharing      a plain tensor in its form, split between two servers and put together again
    local        all three servers in one process
"""

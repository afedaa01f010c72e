"""Cryptography below the protocols.

In the order of their imports:

    prg         seeds, key derivation and the streams every mask is drawn from
    dpf         distributed point functions: a private one-hot in two short keys
    identity    role keys, pinned certificates, TLS 1.3 contexts
    keyring     what a person does with them: make, show, hand out, trust, replace
"""

"""Numbers modulo 2^w, and the steps on whole tensors of them. No secrets are kept here, no network is known.

In the order of their imports:

    devices        a torch device by name, tried before anything depends on it
    fixed_point    real numbers as residues, and back
    small          a few residues as one long integer
    packing        residues without a wasted bit
    resident       tables that stay on their device
    limbs          how to cut operands into digits that float64 multiplies exactly
    chacha         ChaCha20 in torch integers
    keystream      uniform residues from a key, the same on every device
    gf2            matrix products over GF(2)
    matmul         matrix products modulo 2^w
    powers         powers of two with a fraction, in integers
    trigonometry   cosines of ring angles, in integers
    kernels        each step by the device's own implementation
"""

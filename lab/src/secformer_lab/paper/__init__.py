"""The paper's systems, as it states them: CrypTen, PUMA, MPCFormer and SecFormer on our engine.

In the order of their imports:

    local         the truncation and the split that only these systems need
    beaver        sums and products with local truncation, as Table 1 counts them
    adder         comparison, ReLU and maximum by a circuit on XOR shares
    rows          the sum of a row, a public factor of any size
    exponential   by repeated squaring
    newton        division and inverse square root from an exponential guess
    goldschmidt   the same on deflated inputs: SecFormer's
    sine          sines of a secret with one opening
    sigmoid       CrypTen's sigmoid, tanh and SiLU
    gelu          every system's GeLU
    softmax       every system's Softmax and 2Quad
    layernorm     every system's LayerNorm
    published     what the paper's public scripts open instead
    table1        Table 1 as a registry
    twins         the same approximations in the clear
    variants      each variant beside its twin
    encoder       the whole model by Beaver's products
    suites        the four systems behind models/system.py
    table1_cases  Table 1 as cases with declared costs
    function_cases  every variant of every function
    functions     `secformer-lab paper functions`
    figures       the paper's comparison figures
    tables        `secformer-lab paper tables`: its tables, made again
"""

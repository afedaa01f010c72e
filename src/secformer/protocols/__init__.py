"""Our protocols, computed on masked wires. (The paper's protocols are in `baselines`.)

Modules in import order:

    functions   the exact functions, and the activations that models use
    fit         a function on a window as a Fourier series
    menu        the fits that calibration can choose from, shipped as numbers
    blocks      work on large tensors in blocks of rows
    multiply    products of wires, elementwise and matrix
    lift        a narrow wire read over the integers
    bits        products of opened bits, into XOR or arithmetic shares
    compare     the sign of a wire; the test for zero
    evidence    the number of rows outside a range, counted in shares
    fourier     any function of one variable with one opening
    activation  GeLU and similar functions for classes of neurons
    rectifier   ReLU
    maximum     the maximum of a row by histogram
    attention   true Softmax, and 2Quad, from scores to output
    normalise   LayerNorm
    lookup      rows of a secret table at secret positions
"""

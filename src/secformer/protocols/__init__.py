"""Our protocols, on wires: what we stand for. (The paper's are in `baselines`.)

In the order of their imports:

    functions   the exact functions, and the activations models use
    fit         a function on a window as a Fourier series
    menu        the fits a calibration may choose from, shipped as numbers
    blocks      large tensors in blocks of rows
    multiply    products of wires, plain and matrix
    lift        a narrow wire over the integers
    bits        products of opened bits, into XOR or arithmetic shares
    compare     the sign of a wire; is it zero
    evidence    how many rows left a range, counted in shares
    fourier     any function of one variable with one opening
    activation  GeLU and its like for classes of neurons
    rectifier   ReLU
    maximum     the maximum of a row by histogram
    attention   true Softmax, and 2Quad, from scores to output
    normalise   LayerNorm
    lookup      rows of a secret table at secret places
"""

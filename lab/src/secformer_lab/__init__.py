"""The lab: the paper's four systems on our engine, its tables and figures, and everything we measure.

paper   CrypTen, PUMA, MPCFormer and SecFormer as suites; the paper's tables and figures
bench   rounds, bytes, seconds and errors of protocols, layers and whole models
fits    the search for the series that the product ships
cli     the command `secformer-lab`
"""

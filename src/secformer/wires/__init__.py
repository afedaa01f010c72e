"""Our system: the encoder on wires, suites `exact` (true Softmax) and `fast` (2Quad).

In the order of their imports:

    choices       the short lists that every public constant is taken from
    constants     a model's public constants, and the provider's secrets beside them
    bounds        what values cannot exceed, from the weights alone
    ranges        the extremes of a model's intermediates on real text
    calibration   from ranges and bounds to constants and secrets
    widths        from constants to the width and scale of every opening
    statics       the table of uploaded tensors: everything linear folded into them
    layers        a layer: attention, feed-forward block, the LayerNorm behind each
    heads         what comes behind the last layer
    encoder       the secure program, top to bottom
    card          what everybody may know of a model
    presets       measured constants lent to shapes without a checkpoint
    suites        `exact` and `fast`
"""

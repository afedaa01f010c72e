"""What it costs, measured, with the error against plaintext in every row.

In the order of their imports:

    case            a protocol on inputs of one size, with everything promised about it
    wire_cases      ours
    table1_cases    the paper's Table 1
    cases           both, side by side
    protocols       `secformer bench protocols`
    function_cases  every variant of every function
    functions       `secformer bench functions`
    figures         the paper's comparison figures
    paper           `secformer bench paper`: its tables, made again
    ranges          `secformer bench ranges`: right, or said to be wrong, on foreign texts
    presets         wires/presets.json, remade from real encoders
    layer           `secformer bench layer`: one layer between processes
    device          one layer on one device, before and after its kernels
    products        ring products against float64 limbs
    model           `secformer bench model`: a whole inference between processes
    dealing         what T takes to deal for it, transport aside
    measured        rows of measurements into the JSON that documents are rendered from
    roofline        what the GPU does with its time, from measured JSON
    efficiency      whole inferences beside published figures, from JSON
    opening         what an opening costs beyond its bytes
    bandwidth       a large opening over TLS against bare sockets
    exchanges       a round between two processes by the size of its frame
    rounds          where the time of a recorded query goes, round by round
"""

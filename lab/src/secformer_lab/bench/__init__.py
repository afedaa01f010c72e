"""What it costs, measured, with the error against plaintext in every row.

In the order of their imports:

    cases           both, side by side
    parts           the first layer of a model by itself
    protocols       `secformer-lab bench protocols`
    ranges          `secformer-lab bench ranges`: right, or said to be wrong, on foreign texts
    presets         wires/presets.json, remade from real encoders
    layer           `secformer-lab bench layer`: one layer between processes
    device          one layer on one device, before and after its kernels
    products        ring products against float64 limbs
    model           `secformer-lab bench model`: a whole inference between processes
    dealing         what T takes to deal for it, transport aside
    measured        rows of measurements into the JSON that documents are rendered from
    roofline        what the GPU does with its time, from measured JSON
    efficiency      whole inferences beside published figures, from JSON
    opening         what an opening costs beyond its bytes
    bandwidth       a large opening over TLS against bare sockets
    exchanges       a round between two processes by the size of its frame
    rounds          where the time of a recorded query goes, round by round
"""

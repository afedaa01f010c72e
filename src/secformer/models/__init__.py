"""What a model is, whoever computes it privately.

In the order of their imports:

    tables        rows of a CSV, TSV, JSONL or plain file, with their lines
    columns       its header, and which columns hold texts
    texts         texts, pairs and questions with choices from files, for everybody
    images        images from files
    families      how each family's checkpoints are named
    json_files    JSON files of a checkpoint
    sentences     what sentence-transformers keeps beside one
    config        a model's public architecture
    config_json   the same from a checkpoint's config.json
    shapes        the same as it was published, for plans without a checkpoint
    positions     what a model makes of the distance between two tokens
    weights       every tensor of a model, under our own names
    huggingface   weights from a folder that transformers saved
    tokens        from text to padded token ids
    answers       what a model's numbers mean: label and score, entities, value, vector
    batches       many texts as batches of like lengths, and as sessions of bounded memory
    plain         the model in the clear, its non-linear parts as parameters
    statics       the table of tensors a provider uploads
    embedding     the private embedding of a query
    query         what a client shares of a batch
    cost          what a plan costs
    bundled           models that demonstrations use: an encoder and the example classifier
    evidence      what a result says of itself: which ranges were left
    system        what a system of private inference has to bring
    provenance    which texts a calibration comes from
    records       where calibrations are kept
    sample_texts  everyday English for a first calibration
"""

"""Fine-tuning, distillation and evaluation on GLUE's tasks or a user's own, on top of everything else.

The plaintext model (models/plain.py) with gradients; torch optimises, transformers tokenises. In the order of their imports:

    tasks         what a model is trained for
    metrics       GLUE's metrics
    examples      labelled texts from files
    batches       token ids, and the batches of an epoch
    network       the plaintext model with gradients and functions swapped
    graphs        a training step as a CUDA graph
    trainer       one optimisation, resumable after every step
    losses        a task's own, and the stages of a distillation
    folders       model folders, read and written
    checkpoints   the state of a run on disk
    ranges        extremes for the report
    stages        runs that survive a kill; the choice among settings
    scoring       results and metric on a set of rows
    cards         model cards
    finetune      `secformer finetune`
    transfer      texts without labels, for a distillation
    vocabulary    fewer layers, fewer words
    distill       `secformer distill`
    shelf         the networks of a study as model folders
    jobs          many runs that share a device
    results       measured rows, and what they come to
    merging       rows of several runs as one table
    plans         how each task is trained
    runs          the names of runs, and which of them stand
    choices       which settings are taken
    study         every row of the paper's accuracy table, trained
    table         what of the table is still to be done
    evaluate      `secformer eval`
    remarks       what the page says in words
    plots         Figure 1(b) with our figures
    page          the page made of them
"""

"""The command `secformer`: one file a group of commands, imported when it is used.

In the order of their imports:

    keys        keys create, show, export, trust, distrust, rotate
    deployment  init, doctor
    calibrate   ranges measured on a file of texts
    model       run, plan
    remote      push, models, query, access, remove
    demo        a real model answers a private question
    sentiment   a distilled classifier under two suites
    bench       bench protocols, layer, model, ranges, opening
    paper       bench functions, paper
    training    finetune, distill, eval
    glue        glue train, report
    main        every command and its flags
"""

"""The command `secformer`: one file a group of commands, imported when it is used.

In the order of their imports:

    keys        keys create, show, export, trust, distrust, rotate
    deployment  init, doctor
    model       run, plan, calibrate
    remote      push, models, query, access, remove
    demo        a real model answers a private question
    bench       bench protocols, layer, attention, opening
    paper       bench functions, paper
    main        every command and its flags
"""

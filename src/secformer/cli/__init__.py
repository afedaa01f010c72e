"""The command `secformer`: what its commands do, imported when they are used; commands/ has their flags.

In the order of their imports:

    output      tables, notes and progress; users' text is never markup
    asking      texts from a file or standard input
    writing     answers as text, JSON lines or CSV, resumable
    answering   many texts, some at a time
    costs       plan, and what a run cost
    keys        keys create, show, export, trust, distrust, rotate
    deployment  init, doctor
    calibrate   ranges measured on a file of texts
    run         run
    remote      push, models, query, access, remove
    gateway     gateway
    demo        a real model answers a private question
    sentiment   a distilled classifier under two suites
    training    finetune, distill, eval
    glue        glue train, trim, merge, report
    warm        commands as processes whose imports are done
    table       glue table
    commands    every command and its flags
    main        the command itself: errors, signals, exit codes
"""

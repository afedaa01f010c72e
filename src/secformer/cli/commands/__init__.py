"""Every command and its flags, a file a group. They import what they need when they run, so that `--help` is quick.

In the order of their imports:

    options   flags that several commands have
    model     demo, run, plan, calibrate
    servers   serve, init, doctor
    keys      keys create, show, export, trust, distrust, rotate
    remote    push, models, access, remove, query
    training  finetune, distill, eval
    glue      glue train, table, trim, merge, report
"""

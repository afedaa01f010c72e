"""The command `secformer`: one file a group of commands, imported when it is used.

main        every command and its flags
model       run, plan, calibrate
demo        a real model answers a private question
bench       bench protocols, layer, opening
paper       bench functions, paper
attention   bench attention
"""

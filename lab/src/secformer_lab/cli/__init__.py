"""The command `secformer-lab`.

bench      protocols, layer, model, ranges and opening
paper      the paper's functions and tables
commands   every command and its flags
main       the command itself
"""

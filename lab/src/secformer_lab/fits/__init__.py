"""The offline tool that finds Fourier fits; `python -m secformer_lab.fits` remakes protocols/fits.json.

extension   one fit of a given size and period: regularised minimax, the last step reproducible
search      the shortest series that meets an error
menu        every entry of protocols/menu.py, asked for and found
"""

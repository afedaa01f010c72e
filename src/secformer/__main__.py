"""`python -m secformer` is the command `secformer`."""

from secformer.cli.main import main

main()

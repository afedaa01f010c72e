"""`python -m secformer_lab.fits`: compute the whole menu and write it where the package reads it."""

import json
from importlib import resources

from secformer.protocols.menu import FILE
from secformer_lab.fits.menu import record, requests


def main() -> None:
    fits = {name: record(request.find(name)) for name, request in requests().items()}
    with open(str(resources.files("secformer.protocols").joinpath(FILE)), "w", encoding="utf-8") as file:
        json.dump(fits, file, separators=(",", ":"))


if __name__ == "__main__":
    main()

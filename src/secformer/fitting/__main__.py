"""`python -m secformer.fitting`: compute the whole menu and write it where the package reads it."""

import json
from importlib import resources

from secformer.fitting.menu import record, requests
from secformer.protocols.menu import FILE


def main() -> None:
    fits = {name: record(request.find(name)) for name, request in requests().items()}
    with open(str(resources.files("secformer.protocols").joinpath(FILE)), "w", encoding="utf-8") as file:
        json.dump(fits, file, separators=(",", ":"))


if __name__ == "__main__":
    main()

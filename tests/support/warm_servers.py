"""What a process loads before it forks servers: their modules, and torch's own late imports."""

import torch
from servers import QUERY, weights

from secformer.engine.program import InputSpec
from secformer.parties.catalogue import Planner, default_catalogue

torch.set_num_threads(1)
FORMS = {
    name: InputSpec("masked", tuple(weight.numbers.shape), weight.width, weight.scale)
    for name, weight in weights().items()
}
Planner(default_catalogue()).plan(QUERY, FORMS)

"""What a process loads before it forks servers: their modules, and torch's own late imports."""

import torch
from servers import warm_up

torch.set_num_threads(1)
warm_up()

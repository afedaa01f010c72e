"""Small models of images, and images for them."""

from __future__ import annotations

import torch
from checkpoints import scale_weights

SIZES = dict(hidden_size=24, num_attention_heads=3, intermediate_size=31, image_size=12, patch_size=4, num_labels=5)


def build(folder, family, layers):
    import transformers

    names = {"vit": "ViT", "deit": "DeiT"}
    config = getattr(transformers, names[family] + "Config")(num_hidden_layers=layers, **SIZES)
    config._attn_implementation = "eager"
    model = getattr(transformers, names[family] + "ForImageClassification")(config)
    scale_weights(model, seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim in (3, 4):  # rows and the map of patches
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    model.save_pretrained(str(folder))
    size = dict(height=12, width=12)
    transformers.ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(str(folder))
    return model.double().eval()


def images(count, seed=1):
    """Of different sizes, smooth as photographs are."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        coarse = torch.rand(1, 3, 4, 4, generator=generator)
        shape = (20 + number, 30 - number % 5)
        whole = torch.nn.functional.interpolate(coarse, shape, mode="bilinear")[0].permute(1, 2, 0)
        found.append((255 * whole).to(torch.uint8).numpy())
    return found

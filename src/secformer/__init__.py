"""SecFormer: private inference for Transformers."""

"""LoRA adapters (Hu et al. 2021): their files, read without torch, and what they add to a decoder's products."""

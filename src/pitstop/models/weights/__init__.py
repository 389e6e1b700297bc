"""Models on disk: where they come from (`fetch`), and how they are read (`source`: GGUF files, Hugging Face folders). Imports no torch."""

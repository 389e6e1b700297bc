"""Model files: where they come from (`fetch`), how they are read (`gguf`), and the shape they describe (`config`). Imports no torch."""

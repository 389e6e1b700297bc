"""Text and tokens: tokenizer, chat template, incremental detokenizer, stop strings. Imports no torch."""

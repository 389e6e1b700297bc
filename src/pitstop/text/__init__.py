"""Text: tokenizer, chat template, incremental detokenizer, stop strings. Rung 1; imports no torch."""

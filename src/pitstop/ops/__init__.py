"""Ops: plain functions of tensors and ints, each with its reference, its inputs and its tolerance beside it. `dispatch` picks a backend.

On the CPU, with every backend, the bits of an output row depend on that row's shape and content only: never on how many rows are in the
call, where the row stands, or how many threads run. On CUDA the reference runs batched and makes no such promise yet.
"""

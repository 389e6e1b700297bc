"""The KV cache: slots, prefix index, page store. `cache.py` is the owner and audits itself; only `store.py` and `view.py` touch torch."""

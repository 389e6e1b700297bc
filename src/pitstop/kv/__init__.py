"""The KV cache: slots, prefix index, page store, arithmetic. `cache.py` owns and audits itself; only `store.py` and `view.py` use torch."""

"""The engine: scheduler (no torch), runner, sampler, step loop, worker process."""

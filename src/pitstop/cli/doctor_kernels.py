"""`pitstop doctor --kernels`: how the kernels of attention and of products would be launched on GPUs, and why."""

from __future__ import annotations

from collections.abc import Iterator

MODELS = {"9 heads, 3 KV heads of 64": (9, 3, 64), "32 heads, 8 KV heads of 128": (32, 8, 128), "8 heads, 4 KV heads of 256": (8, 4, 256)}
STEPS = {
    "decode of 1 at 4,096 tokens": [(1, 4096)],
    "decode of 32 at 16,384": [(1, 16384)] * 32,
    "prefill of 2,048": [(128, end) for end in range(128, 2049, 128)],
    "prefill of 512 beside a decode of 8 at 8,192": [(128, end) for end in range(128, 513, 128)] + [(1, 8192)] * 8,
}
CODECS = ("raw16", "int8", "int4")
PRODUCTS = {"576 of 576": (576, 576), "4096 of 4096": (4096, 4096), "28672 of 4096": (28672, 4096), "4096 of 14336": (4096, 14336)}
ROWS = (1, 64, 2048)
CODES = ("4", "8", "bf16")


def plans() -> Iterator[str]:
    """The report, line by line. Loads torch, as codecs do."""
    from pitstop import codecs
    from pitstop.ops import chip as chips
    from pitstop.ops.attention import plan
    from pitstop.ops.linear import plan as products

    for name, chip in {"A100 (sm_80)": chips.A100, "H100 PCIe (sm_90)": chips.H100_PCIE, "H100 SXM, H200 (sm_90)": chips.H200}.items():
        yield f"{name}: {chip.sms} SMs, {chip.shared_block} bytes of shared memory a block"
        for model, heads in MODELS.items():
            for step, spans in STEPS.items():
                yield f"  {model}; {step}"
                for codec in CODECS:
                    layout = codecs.get(codec).layout
                    chosen = plan.plan([plan.Span(*span) for span in spans], plan.Heads(*heads), layout, chip)
                    yield f"    {codec}: {chosen if isinstance(chosen, str) else '; '.join(chosen.why)}"
        for product, (outs, depth) in PRODUCTS.items():
            for rows in ROWS:
                yield f"  {product} inputs; {rows} rows"
                for codes in CODES:
                    yield f"    {codes}: {'; '.join(products.plan(products.Shape(rows, outs, depth, codes), chip).why)}"

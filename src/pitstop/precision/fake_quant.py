"""Rounding within training: torchao puts it in front of every matrix, on grids that were fitted before and stay.

The gradient passes through the rounding as if it were not there, and not at all where a weight is cut off (Bengio et al. 2013).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import torch

from pitstop.errors import ConfigError, how_to_install
from pitstop.precision.decoder import DenseDecoder
from pitstop.precision.grid import Grid, fit
from pitstop.precision.scheme import Scheme

_DTYPES = {4: torch.int4, 8: torch.int8}


def prepare(decoder: DenseDecoder, schemes: Mapping[str, Scheme], dtype: torch.dtype) -> None:
    """Round the decoder's matrices from now on, as `schemes` say, on grids fitted to their present weights.

    Raises ConfigError without torchao.
    """
    quantize, config, fixed = _torchao()
    for scheme in sorted(set(schemes.values()), key=repr):
        chosen = {name.removesuffix(".weight") for name, one in schemes.items() if one == scheme}
        granularity = {"group_size": scheme.group} if scheme.group else {"granularity": "per_channel"}
        wish = config(_DTYPES[scheme.bits], **granularity, is_symmetric=scheme.symmetric, is_dynamic=False)
        quantize(decoder, wish, lambda _, name, chosen=chosen: name in chosen)
    for name, module in fake_quantised(decoder):
        scheme = schemes[f"{name}.weight"]
        module.weight_fake_quantizer = fixed(module.weight_fake_quantizer.config, fit(module.weight.detach(), scheme, dtype))


def fake_quantised(decoder: DenseDecoder) -> Iterator[tuple[str, torch.nn.Linear]]:
    """The matrices that `prepare` chose, by their names without ".weight"."""
    return ((name, module) for name, module in decoder.named_modules() if hasattr(module, "weight_fake_quantizer"))


def _torchao():
    """What is used of torchao: its quantize_ with a preparing config, its config, and a fake quantiser of its kind on a fixed grid."""
    logging.disable(logging.WARNING)  # it says at import which of its GPU kernels do not load here
    try:
        from torchao.quantization import quantize_
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
        from torchao.quantization.qat.fake_quantizer import IntxFakeQuantizer
    except ImportError as error:
        raise ConfigError(f"--qat needs torchao ({error}): {how_to_install('precision')}") from error
    finally:
        logging.disable(logging.NOTSET)

    class FixedGrid(IntxFakeQuantizer):
        """torchao's arithmetic on a fixed grid, by the operator of torch that does it in one pass: its own takes twenty."""

        def __init__(self, config: IntxFakeQuantizeConfig, grid: Grid) -> None:
            super().__init__(config)
            self.grid = grid
            self.scale, self.zero_point = grid.scales, grid.zeros

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x [out, in] fp32 → its values on the grid."""
            grouped = x.view(-1, self.grid.scheme.size(x.shape[1]))
            scales, zeros = self.grid.scales.flatten(), self.grid.zeros.flatten().int()
            scheme = self.grid.scheme
            return torch.fake_quantize_per_channel_affine(grouped, scales, zeros, 0, scheme.low, scheme.high).view_as(x)

    def quantize(model: torch.nn.Module, config: IntxFakeQuantizeConfig, chosen) -> None:
        quantize_(model, QATConfig(weight_config=config, step="prepare"), chosen)

    return quantize, IntxFakeQuantizeConfig, FixedGrid

"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2020): BERT whose positions begin behind the padding token's id."""

from __future__ import annotations

from pitstop.models.encoder_config import EncoderConfig
from pitstop.models.families.bert import encoder, family
from pitstop.models.keys import Keys


def read(keys: Keys) -> EncoderConfig:
    return encoder(keys, keys.integer("pad_token_id", 1) + 1)


ROBERTA = family("roberta", read, "roberta.")
XLM_ROBERTA = family("xlm-roberta", read, "roberta.")

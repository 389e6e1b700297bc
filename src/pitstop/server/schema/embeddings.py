"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pitstop.errors import InvalidRequest
from pitstop.server.schema.base import Body, Int, Texts

MAX_INPUTS = 2048
"""Texts of one request."""


class EmbeddingRequest(Body):
    """As OpenAI's, with extensions (marked so).

    A text that is longer than the model's context is refused, never cut. What looks like a control token in text is text; token ids are
    taken as they are, without those that stand around a text.
    """

    model: str = Field(description="The served model's name, as in GET /v1/models; another name is 404.")
    input: Texts = Field(description=f"Up to {MAX_INPUTS} texts; none may be empty.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float by default; base64: of the numbers as fp32, little endian."
    )
    dimensions: Int | None = Field(None, ge=1, description="Length of the vectors: the model's own, or a shorter one it was trained for.")
    priority: Int | None = Field(None, ge=-1000, le=1000, description="Extension: lower is served earlier; 0 by default.")
    timeout: float | None = Field(None, gt=0, description="Extension: seconds the request may take, at most the server's own limit.")
    user: str | None = Field(None, description="Bookkeeping of the caller's; ignored.")

    def texts(self) -> list[tuple[str, str | list[int]]]:
        """Each text, or its token ids, and the field that holds it. Raises InvalidRequest for too many and for an empty one."""
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        texts = [("input", self.input)] if single else [(f"input[{number}]", text) for number, text in enumerate(self.input)]
        if len(texts) > MAX_INPUTS:
            raise InvalidRequest(f"input: {len(texts)} texts are more than the {MAX_INPUTS} of one request; send several", "input")
        for path, text in texts:
            if not text:
                raise InvalidRequest(f"{path}: is empty; leave it out", path)
        return texts

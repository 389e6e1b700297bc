"""Request bodies (validated) and answers (documented) of the OpenAI API."""

from pitstop.server.schema.base import Body, Generation
from pitstop.server.schema.chat import ChatRequest, Message
from pitstop.server.schema.completions import CompletionRequest, DetokenizeRequest, TokenizeRequest
from pitstop.server.schema.embeddings import EmbeddingRequest

__all__ = [
    "Body",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "Generation",
    "Message",
    "TokenizeRequest",
]

"""Request bodies (validated) and answers (documented) of the OpenAI API."""

from pitstop.server.schema.base import Body, Generation
from pitstop.server.schema.chat import ChatRequest, Message
from pitstop.server.schema.completions import CompletionRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["Body", "ChatRequest", "CompletionRequest", "DetokenizeRequest", "Generation", "Message", "TokenizeRequest"]

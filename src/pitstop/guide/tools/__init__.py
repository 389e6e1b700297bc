"""Function calls: how families of models write them, the parser that reads them, the grammar that enforces them."""

from pitstop.guide.tools import fallback
from pitstop.guide.tools.format import Format, Function
from pitstop.guide.tools.hermes import HERMES
from pitstop.guide.tools.llama3 import LLAMA3
from pitstop.guide.tools.mistral import MISTRAL, MISTRAL_NAMED
from pitstop.guide.tools.parser import Arguments, Begun, CallParser, Event, Words

FORMATS = (HERMES, MISTRAL_NAMED, MISTRAL, LLAMA3)
"""Those that models were trained in; the first whose marks a chat template has is its own."""

__all__ = ["FORMATS", "Arguments", "Begun", "CallParser", "Event", "Format", "Function", "Words", "fallback", "format_of"]


def format_of(template: str) -> Format | None:
    """In which format the model of a chat template calls functions; None when the template knows no tools, or a format that we do not."""
    return next((format for format in FORMATS if format.is_in(template)), None)

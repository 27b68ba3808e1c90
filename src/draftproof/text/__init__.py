"""Text on one side, token ids on the other; knows nothing of models, requests or engines."""

from __future__ import annotations

from draftproof.text.chat_template import ChatTemplate
from draftproof.text.detokenizer import Detokenizer
from draftproof.text.tokenizer import Tokenizer, Vocabulary

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "Vocabulary"]

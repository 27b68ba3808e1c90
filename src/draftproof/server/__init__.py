"""The HTTP server: what OpenAI, Anthropic and Ollama clients speak, in front of one LLM.

Protocols are translated at the edge (`protocol/`), into jobs and out of neutral pieces; everything
between is the same for all of them.
"""

"""Other chat interfaces, Anthropic's Messages and OpenAI's Responses, translated to chat."""

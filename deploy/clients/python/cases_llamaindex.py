"""The cases of ../README.md with LlamaIndex's client for servers like OpenAI's, unchanged."""

import openai
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from script import answer, api_key, base_url, fake, model, raised


def chat(name, **more):
    return OpenAILike(model=name, api_base=base_url, api_key=api_key, is_chat_model=True, **more)


def collect(stream, seen=None):
    seen = {} if seen is None else seen
    seen.update(text="", chunks=0, finish=None, usage=None)
    for part in stream:
        seen["chunks"] += 1
        seen["text"] += part.delta or ""
        if part.raw.choices:
            seen["finish"] = part.raw.choices[0].finish_reason or seen["finish"]
        if part.raw.usage:
            seen["usage"] = part.raw.usage.total_tokens
    return seen


def words(text):
    return [ChatMessage(role="user", content=text)]


def cold_stream():
    limited = chat(model, max_tokens=12, additional_kwargs={"stream_options": {"include_usage": True}})
    return collect(limited.stream_chat(words("What is thaw?")))


def cold_plain():
    a = chat(model, max_tokens=12).chat(words("What is thaw?")).raw
    return {"text": a.choices[0].message.content, "finish": a.choices[0].finish_reason, "usage": a.usage.total_tokens}


def unknown_model():
    return raised(lambda seen: chat("tinny").chat(words("hi")), openai.APIError)


def dies():
    return raised(lambda seen: collect(chat(fake).stream_chat(words("@fake tokens=50 delay=20ms die=5")), seen), openai.APIError)


def cancel():
    stream = chat(fake).stream_chat(words("@fake tokens=3000 delay=20ms"))
    next(stream)
    stream.close()
    return {"chunks": 1}


answer({"cold_stream": cold_stream, "cold_plain": cold_plain, "unknown_model": unknown_model, "dies": dies, "cancel": cancel})

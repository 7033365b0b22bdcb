"""The cases of ../README.md with LangChain's chat model for OpenAI, unchanged."""

import json

import openai
from langchain_openai import ChatOpenAI

from script import answer, api_key, base_url, fake, model, raised, tools


def chat(name, **more):
    return ChatOpenAI(model=name, base_url=base_url, api_key=api_key, **more)


def collect(stream, seen=None):
    seen = {} if seen is None else seen
    seen.update(text="", chunks=0, finish=None, tool="", arguments="", usage=None)
    for chunk in stream:
        seen["chunks"] += 1
        seen["text"] += chunk.content
        seen["finish"] = chunk.response_metadata.get("finish_reason") or seen["finish"]
        if chunk.usage_metadata:
            seen["usage"] = chunk.usage_metadata["total_tokens"]
        for call in chunk.tool_call_chunks:
            seen["tool"] += call["name"] or ""
            seen["arguments"] += call["args"] or ""
    return seen


def cold_stream():
    return collect(chat(model, max_tokens=12, temperature=0, stream_usage=True).stream("What is thaw?"))


def cold_plain():
    a = chat(model, max_tokens=12, temperature=0).invoke("What is thaw?")
    return {"text": a.content, "finish": a.response_metadata["finish_reason"], "usage": a.usage_metadata["total_tokens"]}


def with_tools():
    bound = chat(fake).bind_tools(tools, tool_choice="auto", parallel_tool_calls=False)
    a = bound.invoke("Weather in Köln?")
    (call,) = a.tool_calls
    args = json.dumps(call["args"], ensure_ascii=False, separators=(",", ":"))
    plain = {"tool": call["name"], "arguments": args, "finish": a.response_metadata["finish_reason"]}
    return {"plain": plain, "streamed": collect(bound.stream("Weather in Köln?"))}


def unknown_model():
    return raised(lambda seen: chat("tinny").invoke("hi"), openai.APIError)


def dies():
    return raised(lambda seen: collect(chat(fake).stream("@fake tokens=50 delay=20ms die=5"), seen), openai.APIError)


def cancel():
    stream = chat(fake).stream("@fake tokens=3000 delay=20ms")
    next(stream)
    stream.close()
    return {"chunks": 1}


answer({
    "cold_stream": cold_stream, "cold_plain": cold_plain, "tools": with_tools,
    "unknown_model": unknown_model, "dies": dies, "cancel": cancel,
})

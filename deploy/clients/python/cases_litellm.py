"""The cases of ../README.md with LiteLLM's client, unchanged."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks its makers for prices
import litellm  # noqa: E402
import openai  # noqa: E402

from script import answer, api_key, base_url, fake, model, raised, say, tools  # noqa: E402

litellm.suppress_debug_info = True  # it prints advice among the answers


def chat(name, words, **more):
    return litellm.completion(model=f"openai/{name}", messages=say(words), api_base=base_url, api_key=api_key, **more)


def collect(stream, seen=None):
    seen = {} if seen is None else seen
    seen.update(text="", chunks=0, finish=None, tool="", arguments="", usage=None)
    for chunk in stream:
        seen["chunks"] += 1
        if usage := getattr(chunk, "usage", None):
            seen["usage"] = usage.total_tokens
        if not chunk.choices:
            continue
        choice = chunk.choices[0]
        seen["text"] += choice.delta.content or ""
        seen["finish"] = choice.finish_reason or seen["finish"]
        for call in choice.delta.tool_calls or []:
            seen["tool"] += call.function.name or ""
            seen["arguments"] += call.function.arguments or ""
    return seen


def cold_stream():
    return collect(chat(model, "What is thaw?", max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}))


def cold_plain():
    a = chat(model, "What is thaw?", max_tokens=12, temperature=0)
    return {"text": a.choices[0].message.content, "finish": a.choices[0].finish_reason, "usage": a.usage.total_tokens}


def with_tools():
    more = {"tools": tools, "tool_choice": "auto", "parallel_tool_calls": False}
    choice = chat(fake, "Weather in Köln?", **more).choices[0]
    call = choice.message.tool_calls[0].function
    plain = {"tool": call.name, "arguments": call.arguments, "finish": choice.finish_reason}
    return {"plain": plain, "streamed": collect(chat(fake, "Weather in Köln?", stream=True, **more))}


def unknown_model():
    return raised(lambda seen: chat("tinny", "hi"), openai.APIError)


def dies():
    return raised(lambda seen: collect(chat(fake, "@fake tokens=50 delay=20ms die=5", stream=True), seen), openai.APIError)


def cancel():
    stream = chat(fake, "@fake tokens=3000 delay=20ms", stream=True)
    next(stream)
    stream.completion_stream.close()
    return {"chunks": 1}


answer({
    "cold_stream": cold_stream, "cold_plain": cold_plain, "tools": with_tools,
    "unknown_model": unknown_model, "dies": dies, "cancel": cancel,
})

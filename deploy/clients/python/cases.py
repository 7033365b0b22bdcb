"""The cases of ../README.md with the official client for Python, unchanged."""

import openai

from script import answer, api_key, base_url, fake, model, raised, say, tools

client = openai.OpenAI(base_url=base_url, api_key=api_key)


def collect(stream, seen=None):
    seen = {} if seen is None else seen
    seen.update(text="", chunks=0, finish=None, tool="", arguments="", usage=None)
    for chunk in stream:
        seen["chunks"] += 1
        if chunk.usage:
            seen["usage"] = chunk.usage.total_tokens
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
    return collect(
        client.chat.completions.create(
            model=model, messages=say("What is thaw?"), max_tokens=12, temperature=0,
            stream=True, stream_options={"include_usage": True},
        )
    )


def cold_plain():
    answer = client.chat.completions.create(model=model, messages=say("What is thaw?"), max_tokens=12, temperature=0)
    choice = answer.choices[0]
    return {"text": choice.message.content, "finish": choice.finish_reason, "usage": answer.usage.total_tokens}


def with_tools():
    body = {"model": fake, "messages": say("Weather in Köln?"), "tools": tools, "tool_choice": "auto", "parallel_tool_calls": False}
    choice = client.chat.completions.create(**body).choices[0]
    call = choice.message.tool_calls[0].function
    streamed = collect(client.chat.completions.create(**body, stream=True))
    return {"plain": {"tool": call.name, "arguments": call.arguments, "finish": choice.finish_reason}, "streamed": streamed}


def unknown_model():
    return raised(lambda seen: client.chat.completions.create(model="tinny", messages=say("hi")), openai.APIError)


def dies():
    return raised(
        lambda seen: collect(
            client.chat.completions.create(model=fake, messages=say("@fake tokens=50 delay=20ms die=5"), stream=True), seen
        ),
        openai.APIError,
    )


def cancel():
    stream = client.chat.completions.create(model=fake, messages=say("@fake tokens=3000 delay=20ms"), stream=True)
    next(iter(stream))
    stream.close()
    return {"chunks": 1}


answer({
    "cold_stream": cold_stream, "cold_plain": cold_plain, "tools": with_tools,
    "unknown_model": unknown_model, "dies": dies, "cancel": cancel,
})

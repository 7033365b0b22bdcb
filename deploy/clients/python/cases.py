"""The cases of ../README.md with the official client for Python, unchanged."""

import json
import time

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


def batch():
    ids = ["a", "b", "c"]
    lines = [
        {"custom_id": i, "method": "POST", "url": "/v1/chat/completions", "body": {"model": model, "messages": say("hi"), "max_tokens": 4}}
        for i in ids
    ]
    content = "\n".join(json.dumps(line) for line in lines)
    file = client.files.create(file=("lines.jsonl", content.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"})
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    known = client.files.content(file.id).text == content and client.batches.list(limit=1).data[0].id == batch.id
    known = known and sorted(line["custom_id"] for line in found) == ids and batch.metadata == {"of": "a test"}
    seen = raised(lambda seen: client.batches.cancel(batch.id), openai.APIError)
    client.files.delete(file.id)
    text = "".join(line["response"]["body"]["choices"][0]["message"]["content"] for line in found)
    return {**seen, "text": text if known else "", "chunks": batch.request_counts.completed, "finish": batch.status}


answer({
    "cold_stream": cold_stream, "cold_plain": cold_plain, "tools": with_tools,
    "unknown_model": unknown_model, "dies": dies, "cancel": cancel, "batch": batch,
})

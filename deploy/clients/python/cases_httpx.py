"""The cases of ../README.md with httpx as it comes: it gives up after 5 s without a byte."""

import json

import httpx

from script import answer, api_key, base_url, fake, model, raised, say

headers = {"Authorization": f"Bearer {api_key}"}


class Refused(Exception):
    def __init__(self, status, error):
        super().__init__(error["message"])
        self.status_code, self.code, self.param, self.type = status, error["code"], error["param"], error["type"]


def stream(seen, name, text, leave=0):
    seen.update(text="", chunks=0, finish=None, usage=None)
    body = {"model": name, "messages": say(text), "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{base_url}/chat/completions", json=body, headers=headers) as answered:
        for line in answered.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Refused(answered.status_code, event["error"])
            seen["chunks"] += 1
            if seen["chunks"] == leave:
                break
            if event.get("usage"):
                seen["usage"] = event["usage"]["total_tokens"]
            for choice in event["choices"]:
                seen["text"] += choice["delta"].get("content") or ""
                seen["finish"] = choice["finish_reason"] or seen["finish"]
    return seen


def plain(name, text):
    answered = httpx.post(f"{base_url}/chat/completions", json={"model": name, "messages": say(text), "max_tokens": 12}, headers=headers)
    body = answered.json()
    if "error" in body:
        e = Refused(answered.status_code, body["error"])
        e.request_id = answered.headers["x-request-id"]
        raise e
    return {"text": body["choices"][0]["message"]["content"], "finish": body["choices"][0]["finish_reason"], "usage": body["usage"]["total_tokens"]}


answer({
    "cold_stream": lambda: stream({}, model, "What is thaw?"),
    "cold_plain": lambda: plain(model, "What is thaw?"),
    "unknown_model": lambda: raised(lambda seen: plain("tinny", "hi"), Refused),
    "dies": lambda: raised(lambda seen: stream(seen, fake, "@fake tokens=50 delay=20ms die=5"), Refused),
    "cancel": lambda: stream({}, fake, "@fake tokens=3000 delay=20ms", 1),
})

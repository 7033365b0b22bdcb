"""The cases of sockets, with the package websockets: see ../README.md."""

import json

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from script import answer, api_key, base_url

open_sockets = {}


def dial(client="tab-1", router="auto", key=api_key):
    url = base_url.replace("http", "ws", 1).removesuffix("/v1") + f"/ws/{client}?router={router}"
    return connect(url, subprotocols=["thaw.v1", f"thaw.key.{key}"])


def until(socket, *kinds):
    """The frames up to the first of one of these kinds."""
    frames = []
    while not frames or frames[-1]["type"] not in kinds:
        frames.append(json.loads(socket.recv(timeout=60)))
    return frames


def handshake():
    with dial() as socket:
        echoed = any(api_key in value for _, value in socket.response.headers.raw_items())
        return {"text": socket.subprotocol, "finish": "echoed" if echoed else ""}


def refused():
    try:
        dial(key="sk-thaw-wrong").close()
    except InvalidStatus as e:
        return {"error": {"status": e.response.status_code, "known": True, **json.loads(e.response.body)["error"]}}
    return {"error": None}


def ping():
    with dial() as socket:
        socket.ping().wait(60)
        socket.send("__ping__")
        first = until(socket, "pong")
        socket.send(json.dumps({"type": "ping"}))
        return {"frames": first + until(socket, "pong")}


def typing():
    """Types half of a text as plain frames and the rest as JSON, then submits it."""
    text = "where is my invoice "
    with dial() as socket:
        for n in range(1, len(text) + 1):
            socket.send(text[:n] if n < 10 else json.dumps({"type": "partial", "text": text[:n]}))
        frames = until(socket, "intent_change")
        while frames[-1]["new"] != "billing":
            frames += until(socket, "intent_change")
        socket.send("__submit__")
        return {"frames": frames + until(socket, "generation_complete", "error")}


def again():
    """The session of typing is found by another socket of the same client."""
    with dial() as socket:
        socket.send(json.dumps({"type": "submit"}))
        return {"frames": until(socket, "generation_complete", "error")}


def messages():
    with dial("tab-2") as socket:
        socket.send(json.dumps({"type": "submit", "messages": [{"role": "user", "content": "What is thaw?"}]}))
        return {"frames": until(socket, "generation_complete", "error")}


def cancel():
    """A second submit is refused while the first runs, which is then cancelled."""
    with dial("tab-3", router="slow") as socket:
        socket.send(json.dumps({"type": "submit", "text": "@fake tokens=3000 delay=20ms"}))
        frames = until(socket, "token")
        socket.send("__submit__")
        frames += until(socket, "error")
        socket.send(json.dumps({"type": "cancel"}))
        frames += until(socket, "generation_complete")
        socket.send("__ping__")
        return {"frames": frames + until(socket, "pong")}


def faults():
    """What breaks the protocol gets an error each, and the fifth ends the socket."""
    frames = []
    with dial("tab-4") as socket:
        try:
            for frame in ["x" * (65 << 10), b"binary", json.dumps({"type": "unknown"}), json.dumps({"type": "cancel"}), "__submit__"]:
                socket.send(frame)
                frames += until(socket, "error")
            socket.recv(timeout=60)
        except ConnectionClosed as e:
            return {"frames": frames, "finish": str(e.rcvd.code)}
    return {"frames": frames}


def drain_open():
    """An idle socket and one with a generation, for drain."""
    open_sockets["idle"], open_sockets["busy"] = dial("tab-5"), dial("tab-6", router="slow")
    open_sockets["busy"].send(json.dumps({"type": "submit", "text": "@fake tokens=20 delay=100ms"}))
    return {"frames": until(open_sockets["busy"], "token")}


def drain():
    """Both end by the server: the one behind the generation when that is complete."""
    codes, frames = [], []
    for name in ["idle", "busy"]:
        try:
            while True:
                frames.append(json.loads(open_sockets[name].recv(timeout=60)))
        except ConnectionClosed as e:
            codes.append(str(e.rcvd.code))
    return {"frames": frames, "finish": " ".join(codes)}


answer({f.__name__: f for f in [handshake, refused, ping, typing, again, messages, cancel, faults, drain_open, drain]})

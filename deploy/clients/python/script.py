"""What the case scripts have in common: where thaw is, and how they answer."""

import json
import os
import pathlib
import sys
import traceback

base_url = os.environ["THAW_BASE_URL"]
api_key = os.environ.get("THAW_API_KEY") or "none"
model = os.environ.get("THAW_MODEL") or "tiny"
fake = os.environ.get("THAW_FAKE") or "fake"
tools = json.loads((pathlib.Path(__file__).parent.parent / "tools.json").read_text(encoding="utf-8"))


def say(content):
    return [{"role": "user", "content": content}]


def raised(run, known):
    """What the user of the client is shown of an error; known are the client's own."""
    seen = {}
    try:
        run(seen)
        return {**seen, "error": None}
    except Exception as e:  # whatever it is, it is told
        return {
            **seen,
            "error": {
                "class": type(e).__name__,
                "known": isinstance(e, known),
                "status": getattr(e, "status_code", 0),
                "code": getattr(e, "code", "") or "",
                "param": getattr(e, "param", "") or "",
                "type": getattr(e, "type", "") or "",
                "message": str(e),
                "request_id": getattr(e, "request_id", "") or "",
            },
        }


def answer(cases):
    """Answers each case named on the input with a line of JSON."""
    for line in sys.stdin:
        name = line.strip()
        try:
            told = cases[name]()
        except Exception:
            told = {"failed": traceback.format_exc()}
        print(json.dumps({"case": name, **told}), flush=True)

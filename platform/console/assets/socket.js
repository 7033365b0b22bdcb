// A typing-time session: what is typed is decided at each word, and its model made ready.
import { useEffect, useRef, useState } from "./npm/hooks.mjs";
import { html, Section, useTitle } from "./parts.js";
import * as server from "./server.js";

const client = Array.from(crypto.getRandomValues(new Uint8Array(9)), b => b.toString(16).padStart(2, "0")).join("");

// reduce is what a frame of the server changes.
const reduce = {
  intent_change: f => ({ intent: f.new, confidence: f.confidence ? f.confidence.toFixed(2) : "", target: [f.rule, f.target].filter(Boolean).join(" → "), prepares: f.prepares ? `${f.prepares} of ${f.target}` : "nothing" }),
  generation_start: f => ({ answer: "", progress: f.model + (f.adapter ? ":" + f.adapter : "") + (f.cold ? " is cold" + (f.eta_s ? `, about ${f.eta_s} s` : "") : "") }),
  progress: f => ({ progress: [f.state, f.percent !== undefined && f.percent + " %", f.eta_s !== undefined && f.eta_s + " s", f.position !== undefined && "position " + f.position].filter(Boolean).join(", ") }),
  token: (f, was) => ({ answer: (was.answer || "") + f.content }),
  generation_complete: f => ({ progress: `complete in ${Math.round(f.timing.total_ms)} ms${f.usage ? `, ${f.usage.total_tokens} tokens` : ""}` }),
  error: f => ({ progress: `${f.code}: ${f.message}` }),
};

export function Socket() {
  useTitle("Socket");
  const { hasKey } = server.useConnection();
  const [router, setRouter] = useState("auto");
  const [status, setStatus] = useState("not connected");
  const [seen, setSeen] = useState({});
  const socket = useRef(null), text = useRef(null);
  const close = () => {
    if (!socket.current) return;
    socket.current.onclose = null;
    socket.current.close();
    socket.current = null;
  };
  useEffect(() => () => { close(); setStatus("not connected"); }, [hasKey]);
  const connect = e => {
    e.preventDefault();
    close();
    const s = socket.current = new WebSocket((location.protocol === "https:" ? "wss://" : "ws://") + location.host + "/ws/page-" + client + "?router=" + encodeURIComponent(router), server.socketProtocols());
    setStatus("connecting");
    s.onopen = () => { setStatus("connected"); text.current.focus(); };
    s.onclose = e => { socket.current = null; setStatus(`closed ${e.code}${e.reason ? ` (${e.reason})` : ""}`); };
    s.onmessage = e => { const f = JSON.parse(e.data); if (Object.hasOwn(reduce, f.type)) setSeen(was => ({ ...was, ...reduce[f.type](f, was) })); };
  };
  const send = frame => { if (socket.current && socket.current.readyState === WebSocket.OPEN) socket.current.send(JSON.stringify(frame)); };
  const on = status === "connected";
  const facts = [["Intent", seen.intent], ["Confidence", seen.confidence], ["Rule and target", seen.target], ["Made ready", seen.prepares], ["Progress", seen.progress]];
  return html`<div class="columns">
    <${Section} main id="socket" title="Typing-time session" actions=${html`<form class="filters" onSubmit=${connect}><input aria-label="Router" value=${router} onInput=${e => setRouter(e.target.value)} autocomplete="off" spellcheck=${false} /><button class=${on ? "" : "main"}>${on ? "Connect anew" : "Connect"}</button><span class="dim" role="status">${status}</span></form>`}>
      <p class="dim">While you type the Router decides at each word, and when it is sure the model is started or the adapter loaded, before you submit.</p>
      <label class="hidden" for="text">Text</label>
      <textarea id="text" ref=${text} rows="5" disabled=${!on} placeholder=${on ? "Type here" : "Connect, then type here"} onInput=${e => send({ type: "partial", text: e.target.value })}></textarea>
      <p class="buttons below"><button class="main" disabled=${!on} onClick=${() => send({ type: "submit", text: text.current.value })}>Submit</button><button disabled=${!on} onClick=${() => send({ type: "cancel" })}>Cancel</button></p>
      <h2 class="sub">Answer</h2>
      <pre class="file" id="answer" role="log" tabindex="0" aria-label="Answer">${seen.answer || "–"}</pre>
    <//>
    <${Section} id="decided" title="What is decided"><dl class="facts" aria-live="polite">${facts.map(([k, v]) => html`<dt>${k}</dt><dd class="num">${v || "–"}</dd>`)}</dl><//>
  </div>`;
}

// Chat with any function, with what the answer's way took.
import { useEffect, useRef, useState } from "./npm/hooks.mjs";
import { Actions } from "./actions.js";
import { Failure, html, seconds, Section, startPath, State, useTick, useTitle } from "./parts.js";
import * as server from "./server.js";
import { Waterfall } from "./waterfall.js";

const offered = 200; // names in the list below the field

// useNames are the names that this key may use: adapters and aliases too.
function useNames() {
  const [names, set] = useState([]);
  const { hasKey } = server.state;
  useEffect(() => { server.askJSON("GET", "/v1/models").then(v => set(v.data.map(m => m.id)), () => set([])); }, [hasKey]);
  return names;
}

// comment reads ": thaw state=loading percent=40".
function comment(line) {
  const [, rest] = /^: thaw (state=.*)/.exec(line) || [];
  return rest && { progress: Object.fromEntries(rest.split(" ").map(f => f.split("="))) };
}

// chat sends one request and calls on with what arrives.
async function chat(body, signal, on) {
  const res = await server.ask("POST", "/v1/chat/completions", { body, signal });
  on({ head: { route: res.headers.get("thaw-route"), cache: res.headers.get("thaw-cache"), coldStart: res.headers.get("thaw-cold-start"), id: res.headers.get("x-request-id") } });
  const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const at = performance.now();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith(":")) {
        const c = comment(line);
        if (c) on(c);
      } else if (line.startsWith("data: ") && line !== "data: [DONE]") {
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw Object.assign(new Error(chunk.error.message), { status: 502 });
        const delta = chunk.choices && chunk.choices[0] && chunk.choices[0].delta;
        on({ at, text: (delta && delta.content) || "", thinking: (delta && delta.reasoning_content) || "", usage: chunk.usage, model: chunk.model });
      }
    }
  }
}

// functionOf is the function that a name in a request means, as far as the page knows it.
const functionOf = name => {
  const base = name.split(":")[0];
  return server.item("functions", base) || server.item("functions", "default/" + base) || server.items("functions").find(f => f.model === base);
};

export function Playground({ model }) {
  server.useServer();
  useTitle("Playground");
  const names = useNames();
  const [written, setWritten] = useState(model);
  const name = written || names[0] || ""; // the field shows the first one, and is the user's alone
  const [system, setSystem] = useState("");
  const [most, setMost] = useState("256");
  const [turns, setTurns] = useState([]);
  const [run, setRun] = useState(null);
  const [error, setError] = useState(null);
  const text = useRef(null), controller = useRef(null), end = useRef(null);
  useEffect(() => () => controller.current && controller.current.abort(), []);

  const send = async e => {
    e.preventDefault();
    const said = text.current.value.trim();
    if (!said || !name || (run && run.busy)) return;
    text.current.value = "";
    setError(null);
    const before = [...turns, { role: "user", content: said }];
    setTurns(before);
    const abort = controller.current = new AbortController();
    const r = { busy: true, began: performance.now(), model: name, answer: "", thinking: "", chunks: 0, early: 0 };
    let frame = 0;
    const draw = () => { if (!frame) frame = requestAnimationFrame(() => { frame = 0; setRun({ ...r }); }); };
    draw();
    try {
      const messages = [...(system.trim() ? [{ role: "system", content: system.trim() }] : []), ...before];
      const limit = parseInt(most, 10);
      await chat({ model: name, messages, stream: true, stream_options: { include_usage: true }, ...(limit > 0 ? { max_tokens: limit } : {}) }, abort.signal, got => {
        if (got.head) Object.assign(r, got.head);
        if (got.progress) r.progress = got.progress;
        if (got.usage) r.usage = got.usage;
        if (got.text || got.thinking) {
          r.answer += got.text;
          r.thinking += got.thinking;
          r.chunks++;
          r.last = got.at;
          if (!r.first) r.first = r.last;
          if (r.first === r.last) r.early++; // as soon as the first one
          r.served = got.model;
        }
        draw();
      });
    } catch (e) {
      if (e.status === 401) Actions.askKey(e.message);
      if (!abort.signal.aborted) setError(e);
    }
    cancelAnimationFrame(frame);
    r.busy = false;
    r.ended = performance.now();
    setRun({ ...r });
    if (r.answer) setTurns([...before, { role: "assistant", content: r.answer }]);
    else { setTurns(turns); if (text.current && !text.current.value) text.current.value = said; }
    text.current && text.current.focus();
  };
  useEffect(() => { if (end.current) end.current.scrollIntoView({ block: "nearest" }); });
  const like = written.toLowerCase();
  const matching = names.filter(n => n.toLowerCase().includes(like) || names.includes(written)).slice(0, offered);
  return html`<div class="columns playground">
    <${Section} main id="chat" title="Playground" actions=${turns.length > 0 && html`<button onClick=${() => { controller.current && controller.current.abort(); setTurns([]); setRun(null); setError(null); }}>Begin anew</button>`}>
      <div class="chat" role="log" aria-label="Conversation" tabindex="0">
        ${!turns.length && html`<p class="empty">Write to a model. A cold one is started by the request; its way is shown beside.</p>`}
        ${turns.map((t, i) => html`<div class=${"turn " + t.role} key=${i}><b>${t.role === "user" ? "You" : "Answer"}</b><p>${t.content}</p></div>`)}
        ${run && run.busy && html`<div class="turn assistant"><b>Answer</b>${run.thinking && html`<p class="dim">${run.thinking}</p>`}<p>${run.answer}<span class="caret"></span></p></div>`}
        <span ref=${end}></span>
      </div>
      <${Failure} error=${error} />
      <form class="composer" onSubmit=${send}>
        <label class="hidden" for="message">Message</label>
        <textarea id="message" ref=${text} rows="2" placeholder="Message; Enter sends, Shift and Enter begins a line" onKeyDown=${e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); }}></textarea>
        ${run && run.busy ? html`<button type="button" onClick=${() => controller.current.abort()}>Stop</button>` : html`<button class="main">Send</button>`}
      </form>
    <//>
    <div>
      <${Section} id="settings" title="Request">
        <div class="fields">
          <label>Model<input list="names" value=${written} placeholder=${name} onInput=${e => setWritten(e.target.value)} autocomplete="off" spellcheck=${false} /></label>
          <datalist id="names">${matching.map(n => html`<option key=${n} value=${n}></option>`)}</datalist>
          <label>Tokens at most<input class="num" inputmode="numeric" value=${most} onInput=${e => setMost(e.target.value)} /></label>
          <label>System message<textarea rows="2" value=${system} onInput=${e => setSystem(e.target.value)}></textarea></label>
        </div>
      <//>
      ${run && html`<${Reading} run=${run} />`}
    </div>
  </div>`;
}

const stateOf = { staging: "DOWNLOADING", loading: "LOADING_TO_GPU", ready: "READY", sleeping: "SLEEPING", failed: "FAILED", cold: "UNLOADED" };

// Reading is what the request's way took.
function Reading({ run }) {
  useTick();
  const [start, setStart] = useState(null);
  useEffect(() => {
    setStart(null);
    if (!run.busy && run.coldStart) server.askJSON("GET", "/api/v1/coldstarts/" + encodeURIComponent(run.coldStart)).then(setStart, () => {});
  }, [run.busy, run.coldStart]);
  const at = run.busy ? performance.now() : run.ended;
  const tokens = (run.usage && run.usage.completion_tokens) || run.chunks;
  const streamed = run.first ? (run.last - run.first) / 1000 : 0;
  // A shorter time says how the browser read it, not how the model wrote it.
  const rate = streamed > 0.1 ? (tokens * (1 - run.early / run.chunks)) / streamed : 0;
  const f = functionOf(run.model);
  const p = run.progress;
  const waits = f && f.type === "Model" && f.state !== "READY";
  const facts = [
    ["Time to first token", run.first ? seconds((run.first - run.began) / 1000) : run.busy ? seconds((at - run.began) / 1000) : "–"],
    ["Tokens a second", rate ? rate.toFixed(rate < 100 ? 1 : 0) : "–"],
    ["Tokens", run.usage ? `${run.usage.prompt_tokens} in, ${run.usage.completion_tokens} out` : run.chunks || "–"],
    ["In all", seconds((at - run.began) / 1000)],
    ["Model", run.served || run.model],
  ];
  if (run.cache) facts.push(["Cache", run.cache]);
  if (run.id) facts.push(["Request", html`<code>${run.id}</code>`]);
  return html`<${Section} id="reading" title="Last request">
    ${run.busy && !run.first && html`<p class="start-head">${p ? html`<${State} state=${stateOf[p.state]} percent=${p.percent} /> <span class="dim">${[p.position && `place ${p.position} in the queue`, p.eta_s && `about ${seconds(+p.eta_s)} left`].filter(Boolean).join(", ")}</span>` : waits ? html`<${State} state=${f.state} percent=${f.percent} /> <span class="dim">${f.problem || (f.eta_s !== undefined ? `about ${seconds(f.eta_s)} left` : "")}</span>` : html`<span class="dim">sent</span>`}</p>`}
    <dl class="facts">${facts.map(([k, v]) => html`<dt>${k}</dt><dd class="num">${v}</dd>`)}</dl>
    ${start && html`<h3>Cold start</h3><${Waterfall} start=${start} /><p class="small-text"><a href=${startPath(start.id)}>The cold start in full</a></p>`}
    ${run.route && html`<h3>Route</h3><p><code class="wrap">${run.route}</code></p>`}
  <//>`;
}

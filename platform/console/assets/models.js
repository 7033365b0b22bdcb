// All models, Routers and Remotes; and one of them with all that is known of it.
import { useEffect, useRef, useState } from "./npm/hooks.mjs";
import { Actions } from "./actions.js";
import { apiPath, Age, bytes, clock, Empty, Failure, html, Loading, ModelLink, seconds, Section, short, startPath, State, tiers, Until, useTitle, word } from "./parts.js";
import * as server from "./server.js";
import { Table } from "./table.js";

const columns = [
  { head: "Name", cell: f => html`<${ModelLink} name=${f.name} />` },
  { head: "State", cell: f => html`<${State} state=${f.state} percent=${f.percent} />` },
  { head: "Kind", class: "wide", cell: f => (f.type === "Model" ? f.engine : f.type) },
  { head: "Source", class: "wide grow", cell: f => html`<span class="clip" title=${f.source}>${f.source || "–"}</span>` },
  { head: "Size", class: "right num wide", cell: f => (f.bytes ? bytes(f.bytes) : "–") },
  { head: "Replicas", class: "right num wide", cell: f => (f.type === "Model" ? f.replicas : "–") },
  { head: "Requests", class: "right num", cell: f => f.active + (f.queued ? ` + ${f.queued}` : "") },
  { head: "Cold start", class: "right num wide", cell: f => seconds(f.expected_s) },
];

const kinds = ["all", "ready", "starting", "sleeping", "cold", "failed"];
const isKind = (f, kind) => kind === "all" || (kind === "starting" ? ["staging", "loading"].includes(word(f.state)) : word(f.state) === kind);

export function Models() {
  server.useServer();
  useTitle("Models");
  const [text, setText] = useState("");
  const [kind, setKind] = useState("all");
  if (!server.isSynced("functions")) return html`<h1 class="hidden">Models</h1><${Loading} />`;
  const all = server.items("functions");
  const word = text.trim().toLowerCase();
  const rows = all.filter(f => isKind(f, kind) && (!word || f.name.toLowerCase().includes(word) || (f.source || "").toLowerCase().includes(word)));
  return html`<${Section} main id="models" title="Models" count=${rows.length === all.length ? all.length : `${rows.length} of ${all.length}`} actions=${html`
      <div class="filters"><input type="search" aria-label="Filter by name or source" placeholder="Name or source" value=${text} onInput=${e => setText(e.target.value)} />
      <select aria-label="State" value=${kind} onChange=${e => setKind(e.target.value)}>${kinds.map(k => html`<option key=${k} value=${k}>${k === "all" ? "any state" : k}</option>`)}</select></div>`}>
    <${Table} label="Models" columns=${columns} rows=${rows} rowKey=${f => f.name} empty=${all.length ? "None is like that." : "No model file is there yet: thaw deploy -f model.yaml adds one."} />
  <//>`;
}

const views = { about: "About", logs: "Log", events: "Events", file: "File", explain: "Explain" };

export function Model({ name }) {
  server.useServer();
  useTitle(short(name));
  const [view, setView] = useState("about");
  const f = server.item("functions", name);
  if (!server.isSynced("functions", "replicas")) return html`<h1 class="hidden">${name}</h1><${Loading} />`;
  if (!f) return html`<section class="panel"><h1>${short(name)}</h1><${Empty}>There is no such model${server.state.hasKey ? ", or this key may not see it" : ""}. <a href="/ui/models">All models</a><//></section>`;
  const replicas = server.items("replicas").filter(r => r.function === name);
  const isModel = f.type === "Model";
  const shown = Object.keys(views).filter(v => isModel || v === "about" || v === "file");
  const here = shown.includes(view) ? view : "about";
  return html`
    <section class="panel head" aria-labelledby="name">
      <header><div class="crumbs"><span class="dim"><a href="/ui/models">Models</a> /</span><h1 id="name">${short(name)}</h1></div>
        <span class="buttons">
          <a class="button" href=${"/ui/playground/" + name}>Try it</a>
          ${isModel && html`<button onClick=${() => Actions.wake(name)}>Wake</button><button onClick=${() => Actions.stop(name)} disabled=${!replicas.length && f.state !== "DOWNLOADING"}>Stop</button>`}
        </span></header>
      <p class="start-head"><${State} state=${f.state} percent=${f.percent} /> ${f.eta_s !== undefined ? html`<span class="dim">about <span class="num">${seconds(f.eta_s)}</span> left</span>` : ""}
        <span class="dim num">${f.active} at engines, ${f.queued} waiting</span>${f.cold_start ? html` <a href=${startPath(f.cold_start)}>newest cold start</a>` : ""}</p>
      ${f.problem && html`<p class="failure">${f.problem}</p>`}
      <div class="tabs" role="tablist" aria-label="Views" onKeyDown=${e => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!step) return;
        const next = shown[(shown.indexOf(here) + step + shown.length) % shown.length];
        setView(next);
        e.currentTarget.querySelector(`#tab-${next}`).focus();
      }}>${shown.map(v => html`<button key=${v} role="tab" id=${"tab-" + v} aria-selected=${v === here} aria-controls="view" tabindex=${v === here ? 0 : -1} onClick=${() => setView(v)}>${views[v]}</button>`)}</div>
    </section>
    <section class="panel" id="view" role="tabpanel" aria-labelledby=${"tab-" + here}>
      ${here === "about" && html`<${About} f=${f} replicas=${replicas} />`}
      ${here === "logs" && html`<${Logs} name=${name} replicas=${replicas} />`}
      ${here === "events" && html`<${Events} name=${name} />`}
      ${here === "file" && html`<${File} name=${name} />`}
      ${here === "explain" && html`<${Explain} name=${name} />`}
    </section>`;
}

function About({ f, replicas }) {
  const facts = [["Name", f.name], ["Kind", f.type], ["Engine", f.engine], ["Source", f.source], ["Size", f.bytes && bytes(f.bytes)], ["Cold start", f.expected_s !== undefined && `${seconds(f.expected_s)} at the median`], ["Spent today", f.spent_today], ["File", f.origin]];
  return html`<dl class="facts">${facts.filter(x => x[1]).map(([k, v]) => html`<dt>${k}</dt><dd>${v}</dd>`)}</dl>
    ${f.type === "Model" && html`<h2 class="sub">Replicas</h2>${replicas.length ? html`<table><thead><tr><th scope="col">Replica</th><th scope="col">State</th><th scope="col">Where</th><th scope="col" class="right">Requests</th><th scope="col" class="right wide">For</th><th scope="col" class="right wide">Stops in</th></tr></thead><tbody>
      ${replicas.map(r => html`<tr key=${r.id}><th scope="row"><code>${r.id}</code></th><td><${State} state=${r.state} percent=${r.percent} /></td><td>${r.node}${r.gpus && r.gpus.length ? ", GPU " + r.gpus.join(", ") : ""}</td><td class="right num">${r.in_flight}</td><td class="right wide"><${Age} at=${r.since} /></td><td class="right wide">${r.idle_end ? html`<${Until} at=${r.idle_end} />` : "–"}</td></tr>`)}
    </tbody></table>` : html`<${Empty}>None. A request or a wake starts one.<//>`}`}`;
}

const keptLog = 200000; // characters

function Logs({ name, replicas }) {
  const [chosen, choose] = useState("");
  const [filter, setFilter] = useState("");
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const box = useRef(null);
  const [past, setPast] = useState("");
  const current = chosen || (replicas[0] && replicas[0].id) || past;
  useEffect(() => { if (current) setPast(current); }, [current]);
  useEffect(() => {
    if (!current) return;
    const controller = new AbortController();
    setText("");
    setError(null);
    (async () => {
      try {
        const res = await server.ask("GET", `/api/v1/replicas/${encodeURIComponent(current)}/logs?follow&tail=500`, { signal: controller.signal });
        const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
        let all = "", frame = 0;
        for (;;) {
          const { done, value } = await reader.read();
          if (done || controller.signal.aborted) break;
          all = (all + value).slice(-keptLog);
          if (!frame) frame = setTimeout(() => { frame = 0; setText(all); }, 100);
        }
        setText(all);
      } catch (e) {
        if (!controller.signal.aborted) setError(e);
      }
    })();
    return () => controller.abort();
  }, [current]);
  const word = filter.toLowerCase();
  const lines = word ? text.split("\n").filter(l => l.toLowerCase().includes(word)).join("\n") : text;
  useEffect(() => { const b = box.current; if (b && b.scrollHeight - b.scrollTop - b.clientHeight < 200) b.scrollTop = b.scrollHeight; }, [lines]);
  if (!current) return html`<${Empty}>${short(name)} has no replica now, so there is no log to follow.<//>`;
  return html`<div class="filters">
      ${replicas.length > 1 && html`<select aria-label="Replica" value=${current} onChange=${e => choose(e.target.value)}>${replicas.map(r => html`<option key=${r.id} value=${r.id}>${r.id}</option>`)}</select>`}
      <input type="search" aria-label="Lines with" placeholder="Lines with" value=${filter} onInput=${e => setFilter(e.target.value)} /></div>
    <${Failure} error=${error} />
    <pre class="log" ref=${box} tabindex="0" aria-label="Log">${lines || "The engine has written nothing."}</pre>`;
}

export function Events({ name }) {
  const list = server.items("events").filter(e => !name || e.function === name);
  if (!list.length) return html`<${Empty}>Nothing is remembered.<//>`;
  return html`<ol class="events">${list.slice(0, 200).map(e => html`<li key=${e.seq}><time class="num dim" datetime=${e.at}>${clock(e.at)}</time> <b>${e.kind.replaceAll("_", " ")}</b> <span>${e.message || (e.reason || "").replaceAll("_", " ")}${e.node ? html` <span class="dim">on ${e.node}</span>` : ""}${e.for ? html` <span class="dim">for <${ModelLink} name=${e.for} /></span>` : ""}</span></li>`)}</ol>`;
}

// useAnswer asks once for each path.
function useAnswer(path) {
  const [got, set] = useState({});
  useEffect(() => {
    const controller = new AbortController();
    set({});
    server.askJSON("GET", path, { signal: controller.signal }).then(value => set({ value }), error => controller.signal.aborted || set({ error }));
    return () => controller.abort();
  }, [path, server.state.hasKey]);
  return got;
}

// quantity writes bytes as model files do, where that is exact.
const quantity = n => {
  for (const [unit, by] of [["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20], ["Ki", 2 ** 10]]) if (n && n % by === 0) return n / by + unit;
  return String(n);
};
const sizes = new Set(["gpuMemory", "memory", "bytes"]);
// A plain scalar of YAML is a word that is no number, no truth and no date.
const isPlain = x => /^[\w./@:+-]*[\w./@+-]$/.test(x) && !/^(true|false|null|yes|no|on|off|~|[-+.\d][\d._:exabcdf-]*)$/i.test(x) && !/^[-@:]/.test(x);
const scalar = (x, key) => (typeof x === "string" ? (isPlain(x) ? x : JSON.stringify(x)) : typeof x === "number" && sizes.has(key) ? quantity(x) : JSON.stringify(x));

// toYAML writes plain data: what a definition consists of.
function toYAML(v, indent = "") {
  const isLeaf = x => x === null || typeof x !== "object" || !Object.keys(x).length;
  let out = "";
  for (const [k, x] of Object.entries(v)) {
    const head = indent + (Array.isArray(v) ? "-" : (isPlain(k) ? k : JSON.stringify(k)) + ":");
    if (isLeaf(x)) out += `${head} ${scalar(x, k)}\n`;
    else out += Array.isArray(v) ? head + " " + toYAML(x, indent + "  ").trimStart() : `${head}\n${toYAML(x, indent + "  ")}`;
  }
  return out;
}

function File({ name }) {
  const { value, error } = useAnswer(apiPath(name));
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Loading} />`;
  const text = toYAML({ apiVersion: "thaw.dev/v1", kind: value.type, metadata: { name: value.model, namespace: value.team }, spec: value.spec || value.router || value.remote || value.composition });
  return html`<p class="dim">The definition in force, with its defaults${value.origin ? html`; read from <code>${value.origin}</code>` : ""}.</p><pre class="file" tabindex="0" aria-label="Definition">${text}</pre>`;
}

const questions = { place: "Where was it placed, or why nowhere?", evict: "What was evicted for it?", cold: "Why did it lose a replica?", scale: "Why does it want more replicas?" };

function Explain({ name }) {
  const [kind, setKind] = useState("place");
  const path = `/api/v1/explain/${kind}/${name}`;
  const { value, error } = useAnswer(path);
  return html`<div class="filters"><label>Question <select value=${kind} onChange=${e => setKind(e.target.value)}>${Object.entries(questions).map(([k, q]) => html`<option key=${k} value=${k}>${q}</option>`)}</select></label></div>
    <${Failure} error=${error} />
    ${value ? html`<p class="answer">${value.now}</p>
      ${value.decided_at ? html`<p>Decided <${Age} at=${value.decided_at} /> ago: <b>${value.chosen || "nothing"}</b>${value.reason ? `, ${value.reason.replaceAll("_", " ")}` : ""}${value.for ? html` for <${ModelLink} name=${value.for} />` : ""}.</p>` : html`<p class="dim">No decision of this kind is remembered.</p>`}
      ${value.candidates.length > 0 && html`<table><thead><tr><th scope="col">Candidate</th><th scope="col" class="right">Score</th><th scope="col">Why</th></tr></thead><tbody>${value.candidates.map((c, i) => html`<tr key=${i}><th scope="row">${[c.node, c.function && short(c.function), c.replica].filter(Boolean).join(", ") || "of another team"}</th><td class="right num">${c.score === undefined ? "–" : c.score.toFixed(3)}</td><td class="why">${c.why || [tiers[c.tier], ...(c.parts || []).filter(p => p.value).map(p => `${p.name} ${p.value.toFixed(3)}`)].filter(Boolean).join(", ")}</td></tr>`)}</tbody></table>${value.others ? html`<p class="dim">and ${value.others} more candidates; the lowest score wins</p>` : ""}`}` : !error && html`<${Loading} />`}`;
}

// Which models are where, what waits and why, where the last cold start spent its time.
import { Component } from "./npm/preact.mjs";
import { useEffect } from "./npm/hooks.mjs";
import { Actions } from "./actions.js";
import { Age, Bar, bytes, Empty, html, Loading, ModelLink, seconds, Section, short, startPath, State, tiers, Until, useTitle, word } from "./parts.js";
import * as server from "./server.js";
import { Table } from "./table.js";
import { lengthOf, medians, stateOf, Waterfall } from "./waterfall.js";

export function Now() {
  server.useServer();
  useTitle("");
  const synced = server.isSynced("functions", "replicas", "nodes", "coldstarts");
  useEffect(() => { if (synced) performance.mark("lists"); }, [synced]);
  if (!synced) return html`<h1 class="hidden">Now</h1><${Loading} />`;
  const functions = server.items("functions"), replicas = server.items("replicas"), nodes = server.items("nodes"), starts = server.items("coldstarts");
  const waiting = functions.filter(f => f.queued > 0 || (f.problem && f.state !== "READY")).sort((a, b) => b.queued - a.queued);
  return html`
    <h1 class="hidden">Now</h1>
    <${Figures} functions=${functions} replicas=${replicas} nodes=${nodes} starts=${starts} />
    <div class="columns">
      <div>
        <${Nodes} nodes=${nodes} replicas=${replicas} functions=${functions} />
        <${Section} id="replicas" title="Replicas" count=${replicas.length}>
          <${Table} label="Replicas" columns=${replicaColumns} rows=${replicas} rowKey=${r => r.id} empty="No model runs. A request or a wake starts one." />
        <//>
      </div>
      <div class="aside">
        <${Section} id="waiting" title="Waiting" count=${waiting.reduce((n, f) => n + f.queued, 0)}>
          ${waiting.length ? html`<ul class="waiting">${waiting.slice(0, 50).map(f => html`<${Waits} key=${f.name} f=${f} starts=${starts} />`)}</ul>${waiting.length > 50 && html`<p class="empty">and ${waiting.length - 50} more models</p>`}` : html`<${Empty}>No request waits.<//>`}
        <//>
        <${LastStart} starts=${starts} />
      </div>
    </div>`;
}

function Figures({ functions, replicas, nodes, starts }) {
  let ready = 0, starting = 0, active = 0, queued = 0, models = 0;
  for (const f of functions) {
    active += f.active;
    queued += f.queued;
    if (f.type && f.type !== "Model") continue;
    models++;
    if (f.state === "READY") ready++;
    else if (f.state === "DOWNLOADING" || f.state === "LOADING_TO_GPU") starting++;
  }
  const gpus = nodes.flatMap(n => n.gpus);
  const known = gpus.filter(g => g.memory_total);
  const total = known.reduce((n, g) => n + g.memory_total, 0);
  const held = replicas.reduce((n, r) => n + (holdsGPU(r) ? (r.gpu_memory || 0) * (r.gpus || []).length : 0), 0) + known.reduce((n, g) => n + (g.foreign_memory || 0), 0);
  const hour = starts.filter(s => server.now() - Date.parse(s.began) < 3600e3).length;
  const figures = [
    ["ready", html`${ready} <small>of ${models} models</small>`],
    ["starting", starting],
    ["at engines", html`${active} <small>requests</small>`],
    ["waiting", html`${queued} <small>requests</small>`],
    ["GPU memory", total ? html`${Math.round((100 * held) / total)} <small>% of ${bytes(total)}</small>` : html`<small>${gpus.length ? "not known" : "no GPUs"}</small>`],
    ["cold starts", html`${hour}${hour >= 100 ? "+" : ""} <small>in the last hour</small>`],
  ];
  return html`<dl class="figures">${figures.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="num">${value}</dd></div>`)}</dl>`;
}

// holdsGPU reports whether a replica has GPU memory now.
const holdsGPU = r => r.state === "LOADING_TO_GPU" || r.state === "READY" || r.state === "DRAINING";
// holdsMemory reports whether it has memory of the host.
const holdsMemory = r => r.state !== "UNLOADED" && r.state !== "FAILED";

function Nodes({ nodes, replicas, functions }) {
  const by = new Map();
  for (const r of replicas) {
    if (!by.has(r.node)) by.set(r.node, []);
    by.get(r.node).push(r);
  }
  if (!nodes.length) return html`<${Section} id="nodes" title="Nodes"><${Empty}>No machine has reported yet.<//><//>`;
  return nodes.map(n => html`<${NodePanel} key=${n.id} node=${n} replicas=${by.get(n.id) || []} functions=${functions} />`);
}

// together adds up what each model holds, the largest first.
function together(replicas, value, most = 12) {
  const sums = new Map();
  for (const r of replicas) {
    const v = value(r);
    if (v) sums.set(r.function, (sums.get(r.function) || 0) + v);
  }
  const list = [...sums].sort((a, b) => b[1] - a[1]).map(([name, v]) => ({ key: name, label: short(name), value: v, kind: tint(name) }));
  if (list.length <= most) return list;
  const rest = list.splice(most - 1);
  return [...list, { key: "…", label: `${rest.length} more`, value: rest.reduce((n, s) => n + s.value, 0), kind: "m0" }];
}

// tint is one of four shades, the same for a model everywhere.
function tint(name) {
  let sum = 0;
  for (const c of name) sum = (sum * 31 + c.charCodeAt(0)) >>> 0;
  return "m" + (sum % 4);
}

const nodeWords = { IDLE: "idle", LOADING_MODEL: "loading", INFERRING: "serving", DEGRADED: "degraded" };

// NodePanel is drawn again when its node or what its replicas hold has changed, not with
// every request of theirs.
class NodePanel extends Component {
  shouldComponentUpdate({ node, replicas }) {
    const held = heldBy(replicas);
    const same = node === this.props.node && held === this.held;
    this.held = held;
    return !same;
  }

  render(props) {
    return drawNode(props);
  }
}

const heldBy = replicas => replicas.map(r => `${r.function} ${r.state} ${r.gpus} ${r.gpu_memory} ${r.memory}`).join();

function drawNode({ node, replicas, functions }) {
  const gpus = node.gpus.map(g => {
    const segments = together(replicas.filter(r => holdsGPU(r) && (r.gpus || []).includes(g.index)), r => r.gpu_memory);
    if (g.foreign_memory) segments.push({ label: "others", value: g.foreign_memory, kind: "foreign", title: g.foreign_holders });
    const sum = segments.reduce((n, s) => n + s.value, 0);
    const ok = g.health === "ok" || g.health === "unknown";
    const note = [g.memory_total ? `${bytes(sum)} of ${bytes(g.memory_total)}` : "memory not known", g.utilization ? `${g.utilization} %` : "", ok ? "" : g.health].filter(Boolean).join(", ");
    return html`<${Bar} key=${"gpu" + g.index} label=${`GPU ${g.index}`} segments=${segments} total=${g.memory_total || sum} note=${note} />`;
  });
  const memory = together(replicas.filter(holdsMemory), r => r.memory);
  const memorySum = memory.reduce((n, s) => n + s.value, 0);
  if (node.memory.used > memorySum) memory.push({ label: "other", value: node.memory.used - memorySum, kind: "foreign" });
  const near = node.near || [];
  return html`<${Section} id=${"node-" + node.id} title=${node.id} actions=${html`<span class="dim">${node.lost ? html`<span class="bad">no heartbeat for <${Age} at=${node.seen} /></span>` : nodeWords[node.state] || node.state.toLowerCase()}${node.gpus.length ? ", " + gpuNames(node.gpus) : ""}</span>`}>
    <div class="bars">
      ${gpus.length ? gpus : html`<p class="bar-row"><span class="bar-label">GPU</span><span class="dim">none: models run on the processor</span></p>`}
      ${node.memory.total ? html`<${Bar} label="Host memory" segments=${memory} total=${node.memory.total} />` : ""}
      ${node.store.bytes ? html`<${Bar} label="NVMe" segments=${stored(node, functions)} total=${node.store.bytes} />` : ""}
      ${near.length > 0 && html`<p class="bar-row"><span class="bar-label">At hand</span><span class="chips">${near.slice(0, 24).map(m => html`<span class="chip" key=${m.model}><${ModelLink} name=${m.model} /> ${tiers[m.tier]}</span>`)}${near.length > 24 ? html`<span class="dim">and ${near.length - 24} more</span>` : ""}</span></p>`}
    </div>
  <//>`;
}

const gpuNames = gpus => {
  const counts = new Map();
  for (const g of gpus) counts.set(g.name || "GPU", (counts.get(g.name || "GPU") || 0) + 1);
  return [...counts].map(([name, n]) => (name === "declared" ? `${n} GPUs, declared` : n > 1 ? `${n} × ${name}` : name)).join(", ");
};

// stored is what the store of a node holds, by model where a key may know.
function stored(node, functions) {
  const names = new Map(functions.map(f => [f.source, short(f.name)]));
  const list = (node.cached || []).map(c => ({ key: c.digest, label: names.get(c.source) || c.source.split("\n")[0].replace(/\/+$/, "").split("/").pop(), value: c.bytes, kind: "disk" })).sort((a, b) => b.value - a.value);
  const few = list.slice(0, 12);
  const sum = few.reduce((n, s) => n + s.value, 0);
  if (node.store.used > sum) few.push({ label: list.length > 12 ? `${list.length - 12} more` : "held", value: node.store.used - sum, kind: "disk" });
  return few;
}

const replicaColumns = [
  { head: "Model", cell: r => html`<${ModelLink} name=${r.function} />` },
  { head: "State", cell: r => html`<${State} state=${r.state} percent=${r.percent} />${r.error ? html` <span class="bad clip" title=${r.error}>${r.error}</span>` : ""}` },
  { head: "Where", class: "wide", cell: r => r.node + (r.gpus && r.gpus.length ? ", GPU " + r.gpus.join(", ") : "") },
  { head: "Memory", class: "right num", cell: r => (r.gpu_memory && holdsGPU(r) ? bytes(r.gpu_memory * r.gpus.length) : r.memory ? bytes(r.memory) : "–") },
  { head: "Requests", class: "right num wide", cell: r => r.in_flight + (r.queue_length ? ` + ${r.queue_length}` : "") },
  { head: "For", class: "right wide", cell: r => html`<${Age} at=${r.since} />` },
  { head: "Stops in", class: "right wide", cell: r => (r.idle_end ? html`<${Until} at=${r.idle_end} />` : html`<span class="dim">${r.in_flight ? "busy" : "–"}</span>`) },
  { head: "Action", hidden: true, class: "right", cell: r => (r.state === "DRAINING" ? "" : html`<button class="small" onClick=${() => Actions.stop(r.function)} aria-label=${"Stop " + short(r.function)}>Stop</button>`) },
];

// Waits is a model that requests wait for, or that cannot be placed.
function Waits({ f, starts }) {
  const start = f.cold_start && starts.find(s => s.id === f.cold_start);
  const why = f.problem || (f.state === "READY" ? "its replicas are busy" : word(f.state) === "cold" ? "its start has not begun" : start && start.node ? `it starts on ${start.node}` : "it starts");
  return html`<li>
    <div><${ModelLink} name=${f.name} /> <${State} state=${f.state} percent=${f.percent} /></div>
    <div class="num">${f.queued ? `${f.queued} ${f.queued === 1 ? "request" : "requests"}` : "no request"}${f.waiting_since ? html`, the oldest for <${Age} at=${f.waiting_since} />` : ""}</div>
    <div class="dim">${why}${f.eta_s !== undefined ? html`, about <span class="num">${seconds(f.eta_s)}</span> left` : ""}${f.cold_start && f.state !== "READY" ? html` · <a href=${startPath(f.cold_start)}>cold start</a>` : ""}</div>
  </li>`;
}

function LastStart({ starts }) {
  const start = starts[0];
  if (!start) return html`<${Section} id="last" title="Last cold start"><${Empty}>None yet.<//><//>`;
  const median = medians(starts, start.function);
  const of = median && median.of > 1 ? median : null;
  return html`<${Section} id="last" title="Last cold start" actions=${html`<a href=${startPath(start.id)}>Details</a>`}>
    <p class="start-head"><${ModelLink} name=${start.function} /> <${State} state=${stateOf(start)} percent=${start.progress && start.progress.percent >= 0 && start.state !== "READY" ? start.progress.percent : undefined} />
      <strong class="num">${seconds(lengthOf(start))}</strong>${of ? html` <span class="dim">median <span class="num">${seconds(of.total)}</span></span>` : ""}</p>
    <${Waterfall} start=${start} median=${of} />
    ${start.error && html`<p class="failure">${start.error}</p>`}
    <p class="dim small-text"><${Age} at=${start.began} /> ago${start.node ? ", on " + start.node : ""}</p>
  <//>`;
}

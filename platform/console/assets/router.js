// What Routers decide, as they decide it; and what they would decide about a text.
import { useRef, useState } from "./npm/hooks.mjs";
import { Actions } from "./actions.js";
import { clock, Empty, Failure, html, Loading, ModelLink, seconds, Section, short, useTitle } from "./parts.js";
import * as server from "./server.js";
import { Table } from "./table.js";

const target = r => r.target || "none";
const columns = [
  { head: "Time", cell: r => html`<time class="num" datetime=${r.time}>${clock(r.time)}</time>` },
  { head: "Router", class: "wide", cell: r => short(r.router) },
  { head: "Rule", cell: r => r.rule || "–" },
  { head: "Target", cell: r => (r.target ? html`<b>${short(r.target)}</b>` : html`<span class="bad">none</span>`) },
  { head: "Cache", class: "wide", cell: r => r.cache || "–" },
  { head: "Tokens", class: "right num wide", cell: r => r.features.tokenCount },
  { head: "Answer", class: "right num", cell: r => (r.code ? html`<span class=${r.code >= 400 ? "bad" : ""}>${r.code}</span>` : "–") },
  { head: "Why", class: "wide grow", cell: r => html`<span class="clip" title=${r.reason}>${r.reason}</span>` },
];

export function Router() {
  server.useServer();
  useTitle("Router");
  if (!server.isSynced("routes", "functions")) return html`<h1 class="hidden">Router</h1><${Loading} />`;
  const routes = server.items("routes");
  const routers = server.items("functions").filter(f => f.type === "Router");
  return html`<h1 class="hidden">Router</h1><div class="columns">
    <div>
      <${Counts} routes=${routes} />
      <${Section} id="decisions" title="Decisions" count=${routes.length}>
        <${Table} label="Decisions" columns=${columns} rows=${routes} rowKey=${r => r.id} empty=${routers.length ? "None yet. A request to a Router, such as model: auto, makes one." : "There is no Router. A file of kind Router makes model: auto choose among models."} />
      <//>
    </div>
    <div class="aside"><${Try} routers=${routers} /></div>
  </div>`;
}

// Counts are the decisions in the list by rule and target.
function Counts({ routes }) {
  const by = new Map();
  for (const r of routes) {
    const k = JSON.stringify([r.router, r.rule, target(r)]);
    const c = by.get(k) || { router: r.router, rule: r.rule, target: target(r), n: 0, cached: 0, failed: 0 };
    c.n++;
    if (r.cache && r.cache !== "miss" && r.cache !== "off") c.cached++;
    if (r.code >= 400) c.failed++;
    by.set(k, c);
  }
  const list = [...by.values()].sort((a, b) => b.n - a.n).slice(0, 30);
  const most = list.length ? list[0].n : 1;
  return html`<${Section} id="counts" title="By rule and target">
    ${list.length ? html`<table><thead><tr><th scope="col">Rule</th><th scope="col">Target</th><th scope="col" class="share"><span class="hidden">Share</span></th><th scope="col" class="right">Decisions</th><th scope="col" class="right wide">From cache</th><th scope="col" class="right wide">Failed</th></tr></thead><tbody>
      ${list.map(c => html`<tr key=${c.router + c.rule + c.target}><th scope="row">${c.rule || "–"}</th><td>${short(c.target)}</td><td class="share"><span class="meter"><i style=${{ width: (100 * c.n) / most + "%" }}></i></span></td><td class="right num">${c.n}</td><td class="right num wide">${c.cached}</td><td class="right num wide">${c.failed}</td></tr>`)}
    </tbody></table>` : html`<${Empty}>Nothing has been decided yet.<//>`}
  <//>`;
}

function Try({ routers }) {
  const [router, setRouter] = useState("");
  const [got, setGot] = useState(null);
  const [error, setError] = useState(null);
  const text = useRef(null);
  const send = async e => {
    e.preventDefault();
    const said = text.current.value.trim();
    if (!said) return;
    setError(null);
    try {
      // /predict needs no key where /v1 needs none; it takes what fits into an address.
      const name = router || (routers[0] && routers[0].name) || "auto";
      setGot(server.state.hasKey
        ? await server.askJSON("POST", "/api/v1/route?router=" + encodeURIComponent(name), { body: { model: name, messages: [{ role: "user", content: said }] } })
        : await server.askJSON("POST", `/predict?router=${encodeURIComponent(name)}&text=${encodeURIComponent(said)}`));
    } catch (e) {
      setGot(null);
      setError(e);
      if (e.status === 401) Actions.askKey(e.message);
    }
  };
  return html`<${Section} id="try" title="Try a text">
    <form class="fields" onSubmit=${send}>
      ${routers.length > 1 && html`<label>Router<select value=${router} onChange=${e => setRouter(e.target.value)}>${routers.map(r => html`<option key=${r.name} value=${r.name}>${short(r.name)}</option>`)}</select></label>`}
      <label>Text<textarea ref=${text} rows="3" onKeyDown=${e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); }}></textarea></label>
      <p class="buttons"><button class="main">Decide</button><span class="dim">no model is asked</span></p>
    </form>
    <${Failure} error=${error} />
    ${got && html`<div role="status"><${Record} record=${got} /></div>`}
  <//>`;
}

function Record({ record }) {
  const f = record.features;
  const found = [`${f.tokenCount} tokens`, f.code && "code", f.structuredOutput && "structured output", f.safety && "safety", f.tools && "tools", f.images && "images", f.language && `language ${f.language}`, f.intent && `intent ${f.intent}${f.confidence ? ` (${f.confidence.toFixed(2)})` : ""}`, f.complexity >= 0 && `complexity ${f.complexity.toFixed(2)}`].filter(Boolean);
  return html`<p class="start-head"><strong>${record.target ? short(record.target) : "no target"}</strong> <span class="dim">by the rule ${record.rule || "–"}</span></p>
    <p>${record.reason}</p>
    <p class="dim">${found.join(", ")}</p>
    ${record.candidates.length > 0 && html`<table><thead><tr><th scope="col">Candidate</th><th scope="col">State</th><th scope="col" class="right">First token</th></tr></thead><tbody>
      ${record.candidates.map(c => html`<tr key=${c.name}><th scope="row">${c.kind === "Model" || c.kind === "Remote" ? html`<${ModelLink} name=${c.name.split(":")[0]} />${c.name.includes(":") ? ":" + c.name.split(":")[1] : ""}` : short(c.name)}</th><td>${c.why_not ? html`<span class="bad">${c.why_not}</span>` : c.state}</td><td class="right num">${c.expected_ms >= 0 ? seconds(c.expected_ms / 1000) : "–"}</td></tr>`)}
    </tbody></table>`}`;
}

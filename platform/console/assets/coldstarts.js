// All cold starts that are remembered; and one of them beside the median of its model.
import { useEffect, useState } from "./npm/hooks.mjs";
import { Age, bytes, clock, date, Failure, html, Loading, ModelLink, seconds, Section, short, startPath, State, tiers, useTitle } from "./parts.js";
import { go } from "./paths.js";
import * as server from "./server.js";
import { Table } from "./table.js";
import { endOf, isOpen, lengthOf, medians, order, phaseWords, stateOf, Waterfall } from "./waterfall.js";

// Strip is a start in one line: its phases one after the other.
function Strip({ start }) {
  const length = lengthOf(start) || 1;
  const text = start.phases.map(p => `${phaseWords[p.phase]} ${seconds(p.duration)}`).join(", ");
  return html`<span class="strip" role="img" aria-label=${text} title=${text}>${start.phases.map((p, i) => html`<i key=${i} class=${"p" + order.indexOf(p.phase)} style=${{ left: (100 * p.start) / length + "%", width: (100 * p.duration) / length + "%" }}></i>`)}${isOpen(start) && html`<i key="open" class="open" style=${{ left: (100 * endOf(start)) / length + "%", right: 0 }}></i>`}</span>`;
}

const columns = [
  { head: "Model", cell: s => html`<${ModelLink} name=${s.function} />` },
  { head: "Began", cell: s => html`<a href=${startPath(s.id)}><time class="num" datetime=${s.began}>${clock(s.began)}</time></a>` },
  { head: "State", cell: s => html`<${State} state=${stateOf(s)} percent=${s.state === "READY" || !s.progress || s.progress.percent < 0 ? undefined : s.progress.percent} />` },
  { head: "Phases", class: "wide strip-cell", cell: s => html`<${Strip} start=${s} />` },
  { head: "In all", class: "right num", cell: s => seconds(lengthOf(s)) },
  { head: "From", class: "wide", cell: s => tiers[s.tier] || "–" },
  { head: "Bytes", class: "right num wide", cell: s => (s.bytes ? bytes(s.bytes) : "–") },
  { head: "Node", class: "wide", cell: s => s.node || "–" },
];

export function ColdStarts() {
  server.useServer();
  useTitle("Cold starts");
  const [text, setText] = useState("");
  if (!server.isSynced("coldstarts")) return html`<h1 class="hidden">Cold starts</h1><${Loading} />`;
  const all = server.items("coldstarts");
  const word = text.trim().toLowerCase();
  const rows = all.filter(s => !word || [s.function, s.id, s.request, s.replica, s.node].some(x => x && x.toLowerCase().includes(word)));
  const find = e => {
    e.preventDefault();
    if (word) go(rows.length ? startPath(rows[0].id) : startPath(text.trim()));
  };
  return html`<${Section} main id="starts" title="Cold starts" count=${rows.length === all.length ? all.length : `${rows.length} of ${all.length}`} actions=${html`<form class="filters" onSubmit=${find}><input type="search" aria-label="Filter by model, or find by the id of a request" placeholder="Model, or id of a request" value=${text} onInput=${e => setText(e.target.value)} /></form>`}>
    <p class="legend">${order.map((p, i) => html`<span key=${p}><i class=${"p" + i}></i>${phaseWords[p]}</span>`)}</p>
    <${Table} label="Cold starts" columns=${columns} rows=${rows} rowKey=${s => s.id} empty=${all.length ? "None of the newest is like that; Enter looks the id up." : "None yet. The first request for a model that is cold begins one."} />
  <//>`;
}

const Crumbs = ({ title }) => html`<div class="crumbs"><span class="dim"><a href="/ui/cold-starts">Cold starts</a> /</span><h1 id="name">${title}</h1></div>`;

export function ColdStart({ id }) {
  server.useServer();
  const starts = server.items("coldstarts");
  // An id may be a request's, and a start may be older than those in the list.
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const listed = starts.find(s => s.id === id || s.request === id);
  const start = listed || found;
  useTitle(start ? "Cold start of " + short(start.function) : "Cold start");
  const missing = server.isSynced("coldstarts") && !listed;
  useEffect(() => {
    if (!missing) return;
    const controller = new AbortController();
    server.askJSON("GET", "/api/v1/coldstarts/" + encodeURIComponent(id), { signal: controller.signal }).then(setFound, e => controller.signal.aborted || setError(e));
    return () => controller.abort();
  }, [id, missing]);
  if (!start) return html`<section class="panel"><${Crumbs} title=${id} />${error ? html`<${Failure} error=${error} />` : html`<${Loading} />`}</section>`;
  const median = medians(starts, start.function);
  const of = median && median.of > 1 ? median : null;
  const facts = [
    ["Model", html`<${ModelLink} name=${start.function} />`],
    ["Began", html`${date(start.began)}, <${Age} at=${start.began} /> ago`],
    ["Request", start.request && html`<code>${start.request}</code>`],
    ["Cold start", html`<code>${start.id}</code>`],
    ["Replica", start.replica && html`<code>${start.replica}</code>`],
    ["Node", start.node],
    ["Weights", start.bytes ? `${bytes(start.bytes)}, from ${tiers[start.tier] || "an unknown place"}` : tiers[start.tier]],
    ["Process", start.start && (start.start === "warm" ? "forked from a warm interpreter" : "started anew") + (start.start_note ? `: ${start.start_note}` : "")],
    ["First try", start.retried],
  ];
  const others = starts.filter(s => s.function === start.function && s.id !== start.id).slice(0, 20);
  return html`
    <section class="panel" aria-labelledby="name">
      <header><${Crumbs} title=${short(start.function)} /></header>
      <p class="start-head"><${State} state=${stateOf(start)} /> <strong class="num">${seconds(lengthOf(start))}</strong>
        ${of ? html`<span class="dim">the median of its ${of.of} starts is <span class="num">${seconds(of.total)}</span></span>` : html`<span class="dim">the only start that is remembered</span>`}
        ${start.eta_s !== undefined ? html`<span class="dim">about <span class="num">${seconds(start.eta_s)}</span> left</span>` : ""}</p>
      ${start.error && html`<p class="failure">${start.error}</p>`}
      <${Waterfall} start=${start} median=${of} parts=${true} />
      <p class="legend"><span><i class="p4"></i>the longest phase</span><span><i class="p2"></i>other phases</span>${of && html`<span><i class="thin"></i>the median, and in the last column its length</span>`}</p>
    </section>
    <div class="columns">
      <${Section} id="facts" title="What is known of it"><dl class="facts">${facts.filter(f => f[1]).map(([k, v]) => html`<dt>${k}</dt><dd>${v}</dd>`)}</dl><//>
      <${Section} id="others" title="Other starts of the model">${others.length ? html`<ul class="plain">${others.map(s => html`<li key=${s.id}><a href=${startPath(s.id)}><time class="num">${clock(s.began)}</time></a> <${State} state=${stateOf(s)} /> <span class="num">${seconds(lengthOf(s))}</span></li>`)}</ul>` : html`<p class="empty">None is remembered.</p>`}<//>
    </div>`;
}

// A table that draws only the rows that are seen. All rows have one height.
import { Component, h } from "./npm/preact.mjs";
import { useEffect, useLayoutEffect, useRef, useState } from "./npm/hooks.mjs";
import { html } from "./parts.js";

const rowHeight = 36; // px, as in style.css
const beyond = 12; // rows drawn above and below what is seen
const whole = 60; // tables up to this length are drawn whole

class Row extends Component {
  shouldComponentUpdate(next) {
    return next.item !== this.props.item || next.columns !== this.props.columns || next.index !== this.props.index;
  }

  render({ item, columns, index, many }) {
    return html`<tr aria-rowindex=${many ? index + 2 : undefined}>
      ${columns.map(c => h(c.head === columns[0].head ? "th" : "td", { key: c.head, scope: c.head === columns[0].head ? "row" : undefined, class: c.class }, c.cell(item)))}
    </tr>`;
  }
}

// Table draws rows by columns {head, cell, class}; columns must stay the same object.
export function Table({ columns, rows, rowKey, label, empty }) {
  const body = useRef(null);
  const [range, setRange] = useState([0, whole]);
  const many = rows.length > whole;
  const measure = () => {
    if (!many || !body.current) return;
    const top = -body.current.getBoundingClientRect().top;
    const within = n => Math.min(rows.length, Math.max(0, n)); // the table may be out of sight
    const first = within(Math.floor(top / rowHeight) - beyond);
    const last = within(Math.ceil((top + innerHeight) / rowHeight) + beyond);
    setRange(r => (r[0] === first && r[1] === last ? r : [first, last]));
  };
  useLayoutEffect(measure);
  useEffect(() => {
    if (!many) return;
    let frame = 0;
    const onMove = () => { if (!frame) frame = requestAnimationFrame(() => { frame = 0; measure(); }); };
    addEventListener("scroll", onMove, { passive: true });
    addEventListener("resize", onMove);
    return () => { removeEventListener("scroll", onMove); removeEventListener("resize", onMove); cancelAnimationFrame(frame); };
  });
  if (!rows.length && empty) return html`<p class="empty">${empty}</p>`;
  const [first, last] = many ? [Math.min(range[0], rows.length), Math.min(range[1], rows.length)] : [0, rows.length];
  return html`<table aria-label=${label} aria-rowcount=${many ? rows.length + 1 : undefined}>
    <thead><tr>${columns.map(c => html`<th scope="col" class=${c.class} key=${c.head}>${c.hidden ? html`<span class="hidden">${c.head}</span>` : c.head}</th>`)}</tr></thead>
    <tbody ref=${body}>
      ${first > 0 && html`<tr key="above" class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: first * rowHeight + "px" }}></td></tr>`}
      ${rows.slice(first, last).map((item, i) => html`<${Row} key=${rowKey(item)} item=${item} columns=${columns} index=${first + i} many=${many} />`)}
      ${last < rows.length && html`<tr key="below" class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: (rows.length - last) * rowHeight + "px" }}></td></tr>`}
    </tbody>
  </table>`;
}

package browser

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// fieldGuard makes the browser complain of each read of a field that the API does not have: a
// field that was renamed would be undefined, and its place in the page empty. SPEC is the
// document of the API, whose schemas say which fields an answer has.
const fieldGuard = `(() => {
  const spec = SPEC, parse = JSON.parse, answer = Response.prototype.json;
  const paths = Object.keys(spec.paths).map(path => [new RegExp("^" + path.replace(/\{\w+\}/g, "[^/]+") + "$"), spec.paths[path]]);
  const resolve = s => (s && s.$ref ? spec.components.schemas[s.$ref.split("/").pop()] : s) || {};
  const unnamed = new Set(["then", "toJSON", "constructor"]); // that JavaScript itself reads
  const guard = (value, schema, where) => {
    const { properties, items, additionalProperties } = resolve(schema);
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return value.map(x => guard(x, items, where));
    for (const k of Object.keys(value)) value[k] = guard(value[k], properties ? properties[k] : additionalProperties, where + "." + k);
    return properties ? new Proxy(value, { get(target, k) {
      if (typeof k === "string" && !Object.hasOwn(properties, k) && !unnamed.has(k)) console.error("the API has no field " + where + "." + k);
      return target[k];
    } }) : value;
  };
  JSON.parse = text => {
    const value = parse(text);
    if (value && value.list && value.item) value.item = guard(value.item, { items: undefined, ...resolve(resolve({ $ref: "Lists" }).properties[value.list].items) }, value.list);
    return value;
  };
  Response.prototype.json = async function () {
    const value = await answer.call(this), { pathname } = new URL(this.url);
    const [, methods] = paths.find(p => p[0].test(pathname)) || [];
    const of = pathname === "/predict" ? { $ref: "RouteRecord" } : methods && this.ok && Object.values(methods).flatMap(m => Object.entries(m.responses || {}).filter(r => r[0] < "3" && r[1].content).map(r => r[1].content["application/json"].schema))[0];
    return of ? guard(value, of, pathname) : value;
  };
})()`

// guardFields installs the guard in all documents of the page.
func (p *page) guardFields() {
	p.t.Helper()
	spec, err := os.ReadFile("../../platform/api/openapi.json")
	if err != nil {
		p.t.Fatal(err)
	}
	script := strings.Replace(fieldGuard, "SPEC", string(spec), 1)
	p.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	}))
}

// TestFieldGuard: the guard complains of a field that the API does not have, and of no other.
func TestFieldGuard(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)})
	b := open(t, p.url+"/ui/")
	b.sees("live", "of 1 models")
	b.wantNoFaults()
	for _, script := range []string{
		`JSON.parse('{"list":"replicas","event":"put","item":{"id":"a","in_flight":1}}').item.inFlight`,
		`JSON.parse('{"list":"nodes","event":"put","item":{"gpus":[{"index":1}]}}').item.gpus[0].number`,
		`fetch("/api/v1/functions/default/chat-7b").then(r => r.json()).then(f => f.spec.scale.most)`,
	} {
		if !value[bool](b, "Promise.resolve("+script+").then(v => v === undefined)") {
			t.Errorf("%s has a value", script)
		}
		// The browser sends what it complains of before the value.
		if faults := b.takeFaults(); len(faults) != 1 || !strings.Contains(faults[0], "the API has no field") {
			t.Errorf("%s: %q", script, faults)
		}
	}
}

// wantValues checks that the page shows no value that is none, and that each column of its
// tables has a value in one row at least, but those that are named.
func (p *page) wantValues(where string, empty ...string) {
	p.t.Helper()
	for _, text := range value[[]string](p, `[document.body.innerText.split("\n"), [...document.querySelectorAll("[title], [aria-label]")].flatMap(e => [e.title, e.getAttribute("aria-label") || ""])].flat().filter(s => /undefined|\bNaN\b|\bnull\b|\[object |Invalid Date|Infinity/.test(s))`) {
		p.t.Errorf("%s: the page shows %q", where, text)
	}
	for _, name := range value[[]string](p, `[...document.querySelectorAll("table")].flatMap(t => [...t.querySelectorAll("thead th")].map((head, i) => [head, [...t.querySelectorAll("tbody tr:not(.spacer)")].map(r => r.children[i])]).filter(([head, cells]) => cells.length && !head.querySelector(".hidden") && cells.every(c => !c || ["", "–"].includes(c.textContent.trim()) && !c.querySelector("[style]"))).map(([head]) => (t.getAttribute("aria-label") || "a table") + ": " + head.textContent))`) {
		if !slices.Contains(empty, name) {
			p.t.Errorf("%s: the column is empty: %s", where, name)
		}
	}
}

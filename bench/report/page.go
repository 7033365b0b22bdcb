package report

import (
	"html"
	"strings"
)

// Page is a self-contained HTML page: text, tables and charts in order.
type Page struct {
	title string
	b     strings.Builder
}

// NewPage starts a page.
func NewPage(title string) *Page {
	p := &Page{title: title}
	p.b.WriteString("<h1>" + html.EscapeString(title) + "</h1>\n")
	return p
}

// Text adds a paragraph.
func (p *Page) Text(s string) { p.b.WriteString("<p>" + html.EscapeString(s) + "</p>\n") }

// Heading adds a heading.
func (p *Page) Heading(s string) { p.b.WriteString("<h2>" + html.EscapeString(s) + "</h2>\n") }

// Picture adds a waterfall.
func (p *Page) Picture(f Waterfall) { p.b.WriteString("<figure>" + f.SVG() + "</figure>\n") }

// Table adds a table.
func (p *Page) Table(t *Table) {
	p.b.WriteString("<div class=scroll><table><thead><tr>")
	for _, c := range t.Head {
		p.b.WriteString("<th>" + html.EscapeString(c) + "</th>")
	}
	p.b.WriteString("</tr></thead><tbody>\n")
	for _, row := range t.Rows {
		p.b.WriteString("<tr>")
		for _, c := range row {
			p.b.WriteString("<td>" + html.EscapeString(c) + "</td>")
		}
		p.b.WriteString("</tr>\n")
	}
	p.b.WriteString("</tbody></table></div>\n")
}

// String returns the page.
func (p *Page) String() string {
	return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>` + html.EscapeString(p.title) + `</title>
<style>
:root{--paper:#f6f8fa;--ink:#1d2733;--dim:#5b6773;--line:#d9dfe5}
@media (prefers-color-scheme:dark){:root{--paper:#0c1116;--ink:#e6ebf0;--dim:#9aa7b4;--line:#2b3641}}
body{margin:2rem auto;max-width:52rem;padding:0 1rem;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}p{color:var(--dim);overflow-wrap:anywhere}
figure{margin:1rem 0}svg{max-width:100%;height:auto}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.3rem .8rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
</style></head><body>
` + p.b.String() + "</body></html>\n"
}

// Package grafana_test evaluates the board and the alert rules with Prometheus' own engine,
// on the metrics of a running thaw. It is a module of its own: Prometheus is no dependency
// of thaw.
package grafana_test

import (
	"encoding/json"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// board is what the test reads of a board of Grafana.
type board struct {
	Title, UID    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      variable
		}
	}
}

// variable is how a variable gets its values: of a data source it is a word.
type variable struct{ Query string }

func (v *variable) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &v.Query)
	}
	type plain variable
	return json.Unmarshal(text, (*plain)(v))
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource struct{ Type, UID string }
	Targets    []struct{ RefID, Expr, LegendFormat string }
}

func readBoard(t *testing.T) board {
	t.Helper()
	text, err := os.ReadFile("thaw.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func readRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(text, false, model.LegacyValidation, grammar, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var rules []rulefmt.Rule
	for _, g := range groups.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// substitute puts in what Grafana does.
var substitute = strings.NewReplacer("$__rate_interval", "5m", "$team", ".*", "$model", ".*")

// expressions are all of the board and the rules, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range readBoard(t).Panels {
		for _, x := range p.Targets {
			all["the panel "+p.Title+" "+x.RefID] = substitute.Replace(x.Expr)
		}
	}
	for _, r := range readRules(t) {
		all["the rule "+r.Record+r.Alert] = r.Expr
	}
	if len(all) < 50 {
		t.Fatalf("%d expressions: the search is broken", len(all))
	}
	return all
}

// declared reads the metrics of the programs and their labels from where they are declared.
func declared(t *testing.T) map[string][]string {
	t.Helper()
	file, err := goparser.ParseFile(token.NewFileSet(), "../../platform/telemetry/declared.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		var words []string
		for _, a := range call.Args {
			if x, ok := a.(*ast.BasicLit); ok && x.Kind == token.STRING {
				w, err := strconv.Unquote(x.Value)
				if err != nil {
					t.Fatal(err)
				}
				words = append(words, w)
			}
		}
		if len(words) < 2 || !strings.HasPrefix(words[0], "thaw_") {
			return true
		}
		names := append(words[2:], "instance", "job")
		switch call.Fun.(*ast.Ident).Name {
		case "histogram":
			all[words[0]+"_bucket"] = append(slices.Clone(names), "le")
			all[words[0]+"_sum"], all[words[0]+"_count"] = names, names
		default:
			all[words[0]] = names
		}
		return true
	})
	if len(all) < 80 {
		t.Fatalf("%d metrics are declared: the search is broken", len(all))
	}
	return all
}

// TestNames: each expression parses, and names only metrics and labels that thaw declares.
func TestNames(t *testing.T) {
	known := declared(t)
	for where, text := range expressions(t) {
		expr, err := grammar.ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		var there []string // the labels of all metrics of the expression
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			x, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			names, ok := known[x.Name]
			if !ok {
				t.Errorf("%s: thaw has no metric %q", where, x.Name)
			}
			there = append(there, names...)
			for _, m := range x.LabelMatchers {
				if m.Name != model.MetricNameLabel && !slices.Contains(names, m.Name) {
					t.Errorf("%s: %s has no label %q", where, x.Name, m.Name)
				}
			}
			return nil
		})
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			var names []string
			switch n := n.(type) {
			case *parser.AggregateExpr:
				names = n.Grouping
			case *parser.BinaryExpr:
				if n.VectorMatching != nil {
					names = n.VectorMatching.MatchingLabels
				}
			}
			for _, name := range names {
				if !slices.Contains(there, name) {
					t.Errorf("%s: no metric in it has the label %q", where, name)
				}
			}
			return nil
		})
	}
}

var ofVariable = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

var ofLegend = regexp.MustCompile(`{{(\w+)}}`)

// TestBoard: Grafana shows each panel, once, with a data source that is chosen there.
func TestBoard(t *testing.T) {
	b := readBoard(t)
	if b.Title == "" || b.UID == "" || b.SchemaVersion == 0 {
		t.Errorf("title %q, uid %q, schema %d", b.Title, b.UID, b.SchemaVersion)
	}
	var variables []string
	for _, v := range b.Templating.List {
		variables = append(variables, v.Name)
	}
	if !slices.Equal(variables, []string{"datasource", "team", "model"}) {
		t.Errorf("variables %q", variables)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("%s: the id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		at := p.GridPos
		if at.W < 1 || at.H < 1 || at.X < 0 || at.X+at.W > 24 {
			t.Errorf("%s: %+v", p.Title, at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies upon %s", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Type != "timeseries" || p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s: %+v", p.Title, p)
		}
	}
}

// made are series that one server without a GPU does not have, or not in a test's time.
var made = []string{
	`thaw_gpu_memory_bytes{node="vm",gpu="0",kind="total"} 80x9`,
	`thaw_gpu_memory_bytes{node="vm",gpu="0",kind="free"} 20x9`,
	`thaw_sleeps_total{reason="idle"} 1+1x9`,
	`thaw_engine_errors_total{model="tiny",team="default",kind="died"} 1+1x9`,
	`thaw_quota_rejections_total{team="default",reason="rate"} 1+1x9`,
	`thaw_loader_bytes_total{node="vm",source="https"} 10+10x9`,
	`thaw_prewarms_total{result="hit"} 1+1x9`,
	`thaw_batch_lines_waiting{team="default"} 3x9`,
}

// TestPanels: each panel has values where thaw has served requests.
func TestPanels(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	var s store
	end := begin.Add(play(t, &s, begin))
	for _, line := range made { // a series that a server does have needs no making
		name, _, _ := strings.Cut(line, "{")
		s.mustNotHave(t, name)
	}
	s.load(t, begin, end.Sub(begin)/9, made...)
	for _, p := range readBoard(t).Panels {
		for _, x := range p.Targets {
			got := s.query(t, substitute.Replace(x.Expr), end)
			if !slices.ContainsFunc(got, func(v promql.Sample) bool { return !math.IsNaN(v.F) }) {
				t.Errorf("%s %s: no value: %v", p.Title, x.RefID, got)
			}
			for _, m := range ofLegend.FindAllStringSubmatch(x.LegendFormat, -1) {
				if len(got) > 0 && !got[0].Metric.Has(m[1]) {
					t.Errorf("%s %s: the legend names %s: %v", p.Title, x.RefID, m[1], got[0].Metric)
				}
			}
		}
	}
	for _, v := range readBoard(t).Templating.List {
		if v.Type == "datasource" {
			continue
		}
		m := ofVariable.FindStringSubmatch(substitute.Replace(v.Query.Query))
		if m == nil {
			t.Fatalf("the variable %s: %+v", v.Name, v.Query)
		}
		if got := s.query(t, m[1], end); len(got) == 0 || !got[0].Metric.Has(m[2]) {
			t.Errorf("the variable %s has no values: %v", v.Name, got)
		}
	}
	s.checkFigures(t, end)
	// What was asked of the broken model and of the Remote that is away.
	want := []string{"ThawErrors", "ThawQuotaReached", "ThawRemoteOpen", "ThawStartsFail"}
	var holds []string
	for _, r := range readRules(t) {
		if got := s.query(t, r.Expr, end); len(got) > 0 && r.Alert != "" {
			holds = append(holds, r.Alert)
		}
	}
	slices.Sort(holds)
	if !slices.Equal(holds, want) {
		t.Errorf("the conditions of %q hold, want %q", holds, want)
	}
}

func (s *store) mustNotHave(t *testing.T, name string) {
	t.Helper()
	for _, x := range s.series {
		if x.labels.Get(model.MetricNameLabel) == name {
			t.Errorf("thaw has %s itself", x.labels)
		}
	}
}

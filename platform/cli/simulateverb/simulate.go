// Package simulateverb implements thaw simulate: it reads a trace, a fleet and models, has package
// study replay them per policy, and prints cold starts, waits, GPU time and, if asked, the GPUs
// needed.
package simulateverb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/study"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// command is one run of the verb.
type command struct {
	*kit.Terminal
	version string
}

type simulation struct {
	fleet, functions, trace, format string
	policy, gpus, html, how         string
	models, perMinute, parallel     int
	seed                            uint64
	goal                            time.Duration
	example, exampleFleet           bool
}

// The example: forty models, more than fit at once, and an afternoon of bursts.
const (
	exampleTrace  = "gen:models=40,requests=40000,hours=8,zipf=1.1,burst=8,diurnal=0.4,teams=3"
	exampleFleet  = "nodes:\n- {name: h100, count: 1, gpus: 4}\n"
	examplePolicy = "lru,gdsf,next-use"
)

// New makes the verb; version is for the page of results.
func New(t *kit.Terminal, version string) *kit.Command {
	c := &command{t, version}
	var s simulation
	cmd := &kit.Command{
		Use: "simulate --fleet FILE --trace FILE [--functions DIR]", Short: "Replay a trace on a simulated fleet", GroupID: "run",
		Long: `Replay a trace on a simulated fleet: the platform's own decisions on
a virtual clock, with nodes and engines as models. It tells how many requests
would be cold, how long they would wait, and what the GPUs would be held for.

Traces (--format, else known by how they begin; gzip is read too):
  thaw             what thaw serve logged, text or JSON: replay last week
  azure-functions  CSV of calls by function and minute; the seed spreads a
                   minute's calls over the minute, --per-minute bounds them
  mooncake         JSON lines of timestamp, input_length, output_length
  azure-llm        CSV of TIMESTAMP, ContextTokens, GeneratedTokens
  gen              made up: gen:KEY=NUMBER,… or a YAML file of the same keys:
                   models, requests, hours, zipf (1.1), burst (1: none; 8: half of
                   the requests come in bursts 8 times as dense), burstFor (1m),
                   diurnal (0 to 1), teams, input and output (tokens), seed

Models: those of --functions. Without it a model is made up for each function of
the trace, or --models of them where it names none: checkpoints of 1, 3, 8, 16,
28 or 64 GiB by the seed, and as much GPU memory.
--map says how the trace's functions find their models: by name (name; known
leaves out what is not there), the most asked for to the first (rank), or each
request by Zipf's law (zipf: what a trace without names gets).

Policies: lru, lfu, gdsf, next-use, each with +learned (keep-alive from history),
+prewarm (starts ahead), +idle=10m (one idle time for all), +bare (no protection
of models reloaded soon after an eviction). Several are compared, with clairvoyant beside
them: the greedy rule with knowledge of the future, an upper bound that cannot run.

--gpus 4..64 draws the curve and says how many GPUs the goal of --p99 needs.`,
		Example: `  thaw simulate --example --html example.html
  thaw simulate --example-fleet > fleet.yaml
  thaw simulate --fleet fleet.yaml --functions /etc/thaw/functions --trace access.log
  thaw simulate --fleet fleet.yaml --functions models --trace access.log --gpus 4..64 --p99 10s
  thaw simulate --fleet fleet.yaml --trace gen:models=200,requests=100000 --policy lru,next-use+learned -o json`,
		Args: kit.ExactArgs(),
		RunE: func(cmd *kit.Command, _ []string) error {
			if s.exampleFleet {
				_, err := c.Out.Write(fleet.Example)
				return err
			}
			return c.runSimulation(cmd.Context(), &s, cmd.Flags())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.fleet, "fleet", "", "file that says what machines there are")
	f.StringVar(&s.functions, "functions", "", "folder of model and team files")
	f.StringVar(&s.trace, "trace", "", "file with requests, or gen:KEY=NUMBER,…")
	f.StringVar(&s.format, "format", "", "format of the trace: "+strings.Join(trace.Formats, ", "))
	f.StringVar(&s.how, "map", trace.MapAuto, "how the trace's functions find their models: "+strings.Join(trace.Maps, ", "))
	f.IntVar(&s.models, "models", 10, "make up so many models for a trace that names none")
	f.IntVar(&s.perMinute, "per-minute", 0, "azure-functions: at most so many calls of a function in a minute; 0: all")
	f.StringVar(&s.policy, "policy", "lru", "policies to compare, with commas between them")
	f.StringVar(&s.gpus, "gpus", "", "try the fleet with so many GPUs: N, or a range such as 4..64")
	f.DurationVar(&s.goal, "p99", 10*time.Second, "with a range of GPUs: the goal for 99 of 100 times to the first token")
	f.Uint64Var(&s.seed, "seed", 1, "of all chance: the same seed, the same result")
	f.IntVar(&s.parallel, "parallel", 0, "runs at once; 0: one a core")
	f.StringVar(&s.html, "html", "", "also write a page with pictures to this file")
	f.StringVarP(&c.Output, "output", "o", "table", "form of output: table, json, yaml")
	f.BoolVar(&s.example, "example", false, "an example that needs no files")
	f.BoolVar(&s.exampleFleet, "example-fleet", false, "print a commented fleet file and end")
	return cmd
}

// simulations is what -o json prints.
type simulations struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []study.Run  `json:"items"`
	Needs      []study.Need `json:"needs,omitempty"`
}

func (c *command) runSimulation(ctx context.Context, s *simulation, flags *kit.FlagSet) error {
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, c.Output) {
		return kit.Usage("table, json or yaml", "-o %q is no form of output here", functions.Clip(c.Output))
	}
	st, tr, err := c.readStudy(s, flags)
	if err != nil {
		return err
	}
	l := c.NewProgressLine()
	if c.ErrTTY {
		var last time.Time
		began := c.Now()
		st.Progress = func(p study.Progress) {
			now := c.Now()
			if now.Sub(last) < 200*time.Millisecond {
				return
			}
			last = now
			l.Show("", simulationProgress(p, now.Sub(began)))
		}
	}
	out, err := st.Run(ctx)
	l.Clear()
	if err != nil {
		return usageInput(err)
	}
	if s.html != "" {
		a := study.About{Command: s.command(flags), Trace: tr, Fleet: fleetWords(st.Fleet), Seed: s.seed, Made: c.Now(), Version: c.version,
			Sizing: st.Sizing}
		if err := os.WriteFile(s.html, []byte(out.Page(a)), 0o644); err != nil {
			return err
		}
		c.Remark("wrote %s", s.html)
	}
	if c.Output == "json" || c.Output == "yaml" {
		return c.Encode(simulations{functions.APIVersion, "SimulationList", out.Runs, out.Needs})
	}
	kit.PrintTable(c.Out, simulationKind(), out.Runs, c.Output == "wide", nil)
	c.printSummary(out, st.Sizing)
	return nil
}

// readStudy reads all input files of the study. tr is the
// trace in words.
func (c *command) readStudy(s *simulation, flags *kit.FlagSet) (st *study.Study, tr string, err error) {
	st = &study.Study{Seed: s.seed, Parallel: s.parallel}
	if s.example {
		if st.Fleet, err = fleet.Decode("example", []byte(exampleFleet)); err != nil {
			return nil, "", err
		}
		s.trace = cmp.Or(s.trace, exampleTrace)
		if !flags.Changed("policy") {
			s.policy = examplePolicy
		}
	}
	const hint = "thaw simulate --example needs no files; thaw simulate --help shows the rest"
	switch {
	case s.fleet == "" && st.Fleet == nil:
		return nil, "", kit.Usage("thaw simulate --example-fleet prints one; "+hint, "--fleet is missing")
	case s.trace == "":
		return nil, "", kit.Usage(hint, "--trace is missing")
	case s.models < 1 || s.models > 100_000:
		return nil, "", kit.Usage("", "--models: 1 to 100000")
	case s.perMinute < 0:
		return nil, "", kit.Usage("", "--per-minute: 0 or more")
	case s.parallel < 0:
		return nil, "", kit.Usage("", "--parallel: 0 or more")
	}
	if st.Policies, err = study.ParsePolicies(s.policy); err != nil {
		return nil, "", &kit.Error{Exit: kit.ExitUsage, What: "--policy", Err: err}
	}
	if s.gpus != "" {
		if st.Sizing, err = study.ParseSizing(s.gpus); err != nil {
			return nil, "", &kit.Error{Exit: kit.ExitUsage, What: "--gpus", Err: err}
		}
		if st.Sizing.High > st.Sizing.Low {
			if st.Sizing.Goal = s.goal; s.goal <= 0 {
				return nil, "", kit.Usage("such as 10s", "--p99 wants a time")
			}
		}
	}
	// Beside others stands what knowing the future would bring.
	if len(st.Policies) > 1 && (st.Sizing == nil || st.Sizing.High == st.Sizing.Low) &&
		!slices.ContainsFunc(st.Policies, func(p study.Policy) bool { return p.Future }) {
		p, err := study.ParsePolicy(study.Clairvoyant)
		if err != nil {
			return nil, "", err
		}
		st.Policies = append(st.Policies, p)
	}
	if s.fleet != "" {
		if st.Fleet, err = fleet.Read(s.fleet); err != nil {
			return nil, "", usageInput(err)
		}
	}
	t, err := trace.Open(s.trace, trace.Options{Format: s.format, Seed: s.seed, PerMinute: s.perMinute})
	if err != nil {
		return nil, "", usageInput(err)
	}
	st.Requests, st.Span = t.Requests, t.Span
	if err := s.readModels(st, t); err != nil {
		return nil, "", err
	}
	names := functions.ConvertAll(st.Models, func(m *functions.Model) functions.Name { return m.FullName() })
	m, err := t.Onto(names, s.how, s.seed)
	if err != nil {
		return nil, "", &kit.Error{Exit: kit.ExitUsage, What: "--trace " + functions.Clip(s.trace), Err: err}
	}
	st.Trace = m.Read
	st.Requests -= m.Left
	tr = traceWords(t, m, len(st.Models), s.functions == "")
	if t.Foreign > 0 {
		c.Remark("skipped %s of %s: no part of a log", countOf(int(t.Foreign), "line"), functions.Clip(s.trace))
	}
	c.Remark("%s", tr)
	c.Remark("%s", fleetWords(st.Fleet))
	return st, tr, nil
}

// readModels reads the models of --functions, or invents one for each function of t.
func (s *simulation) readModels(st *study.Study, t *trace.Trace) error {
	if s.functions != "" {
		cat, err := catalog.Open(catalog.Options{Folder: s.functions})
		if err != nil {
			return usageInput(err)
		}
		if p := cat.Problems().Wrong(); len(p) > 0 {
			return p
		}
		st.Models, st.Teams = cat.Models(), cat.Teams()
		if len(st.Models) == 0 {
			return &kit.Error{Exit: kit.ExitUsage, What: "there is no model in " + s.functions, Hint: "without --functions, models are made up"}
		}
	} else {
		st.Models, st.Sizes = study.Invent(study.Names(t, s.models), st.Fleet, s.seed)
	}
	return nil
}

// usageInput gives an error about a file or a line the exit code of wrong usage.
func usageInput(err error) error {
	if _, ok := errors.AsType[catalog.Problems](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &kit.Error{Exit: kit.ExitUsage, Err: err}
}

func traceWords(t *trace.Trace, m *trace.Mapped, models int, invented bool) string {
	about := ""
	if t.Format == trace.Gen {
		about = "about "
	}
	text := fmt.Sprintf("trace (%s): %s%s requests in %s", t.Format, about, study.Count(t.Requests), study.Seconds(t.Span.Seconds()))
	switch {
	case m.How == trace.MapZipf:
		text += fmt.Sprintf(" that name no models, dealt among %s by Zipf's law", countOf(models, "model"))
	case m.How == trace.MapRank:
		text += fmt.Sprintf(" for %s, dealt among %s by %s", countOf(len(t.Uses), "function"), countOf(models, "model"), m.How)
	default:
		text += " for " + countOf(len(t.Uses), "function")
	}
	if m.Left > 0 {
		text += fmt.Sprintf("; %s of %s that are no models here are left out", study.Count(m.Left), countOf(m.Names, "function"))
	}
	if invented {
		text += "; the models are made up"
	}
	return text
}

func countOf(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return study.Count(int64(n)) + " " + word + "s"
}

func fleetWords(f *fleet.Fleet) string {
	hosts := 0
	for range f.Hosts {
		hosts++
	}
	return fmt.Sprintf("fleet: %s on %s, %s of GPU memory", countOf(f.GPUs(), "GPU"), countOf(hosts, "host"), f.GPUMemory().Human())
}

// command is the command line again, for the page.
func (s *simulation) command(flags *kit.FlagSet) string {
	text := "thaw simulate"
	if s.example {
		text += " --example"
	}
	for _, name := range []string{"fleet", "functions", "trace", "format", "map", "models", "per-minute", "policy", "gpus", "p99", "seed"} {
		f := flags.Lookup(name)
		value := f.Value.String()
		always := name == "policy" || name == "seed" || name == "p99" && strings.Contains(s.gpus, "..")
		if value == f.DefValue && !always {
			continue
		}
		if strings.ContainsAny(value, " '\"$") {
			value = strconv.Quote(value)
		}
		text += " --" + name + " " + value
	}
	return text
}

func simulationProgress(p study.Progress, took time.Duration) string {
	text := fmt.Sprintf("simulating %s %d%%", kit.Bar(int(p.Share*100)), int(p.Share*100))
	if p.Runs > 1 {
		text += fmt.Sprintf(", %d of %d runs", p.Done, p.Runs)
	}
	if p.At > 0 && p.At < math.MaxInt64 {
		text += ", at " + kit.Span(p.At)
	}
	if p.Share > 0.02 && p.Share < 1 {
		text += ", eta " + kit.Span(time.Duration(float64(took)/p.Share*(1-p.Share)))
	}
	return text
}

// simulationKind is the table of results, with more columns with -o wide.
func simulationKind() kit.Kind[study.Run] {
	k := kit.Kind[study.Run]{Word: "Simulation", Name: func(r study.Run) string { return r.Policy.Text }}
	for _, c := range study.Columns {
		k.Columns = append(k.Columns, kit.Column[study.Run]{Head: c.Head, Wide: c.Wide, Cell: c.Cell})
	}
	k.Columns = append(k.Columns, kit.WideCol("TOOK", func(r study.Run) string { return kit.Span(r.Took) }))
	return k
}

// printSummary prints what follows the table.
func (c *command) printSummary(out *study.Outcome, z *study.Sizing) {
	if c.Output == "wide" {
		c.teamsTable(out)
	}
	if len(out.Needs) > 0 {
		fmt.Fprintln(c.Out)
	}
	for _, n := range out.Needs {
		fmt.Fprintln(c.Out, n.Sentence(out.Goal, z))
	}
	printed := map[string]bool{}
	for _, r := range out.Runs {
		for _, m := range r.Impossible {
			if !printed[m.Name] {
				printed[m.Name] = true
				c.Remark("%s fits no node: %s; its requests were left out", m.Name, m.Why)
			}
		}
	}
	if slices.ContainsFunc(out.Runs, func(r study.Run) bool { return r.Policy.Future }) {
		c.Remark("%s knows the trace's future: an upper bound that cannot run", study.Clairvoyant)
	}
}

func (c *command) teamsTable(out *study.Outcome) {
	for _, r := range out.Runs {
		if len(r.Teams) < 2 {
			continue
		}
		fmt.Fprintf(c.Out, "\n%s, %s:\n", kit.Plain(r.Policy.Text), countOf(r.GPUs, "GPU"))
		type row = [9]string
		k := kit.Kind[row]{}
		for i, head := range []string{"TEAM", "REQUESTS", "COLD", "WAIT-P50", "WAIT-P99", "WAIT-MAX", "GPU-H", "REFUSED", "EVICTED-OTHERS"} {
			k.Columns = append(k.Columns, kit.Col(head, func(r row) string { return r[i] }))
		}
		var rows []row
		for _, t := range r.Teams {
			rows = append(rows, row{
				t.Name, study.Count(t.Requests), study.Count(t.Cold), study.Seconds(t.WaitP50),
				study.Seconds(t.WaitP99), study.Seconds(t.WaitMax), study.Hours(t.GPUHours), study.Count(t.Refused),
				study.Count(t.Inflicted),
			})
		}
		kit.PrintTable(c.Out, k, rows, true, nil)
	}
}

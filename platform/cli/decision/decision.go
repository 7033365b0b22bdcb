// Package decision is the input and output of the verb thaw route: it makes the request's body from
// a text, a file or stdin, and prints the Router's decision that a server answered with; it sends
// no request and decides nothing.
package decision

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// maxBody bounds the file of a request.
const maxBody = 32 << 20

// ReadBody is the request that a decision is wanted for: a file (- is in), or a chat of one
// message.
func ReadBody(in io.Reader, file string, args []string) ([]byte, error) {
	switch {
	case (file == "") == (len(args) == 0):
		return nil, kit.Usage(`thaw route "TEXT", or thaw route -f request.json`, "either a text or a file is needed")
	case file != "":
		b, err := kit.ReadBounded(in, file, maxBody)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil, &kit.Error{Exit: kit.ExitNotFound, What: "there is no file " + file}
		case err != nil:
			return nil, &kit.Error{What: "the request cannot be read", Err: err}
		case len(b) > maxBody:
			return nil, kit.Usage("a request is at most 32 MiB", "the request is too large")
		}
		return b, nil
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	return json.Marshal(map[string]any{"messages": []message{{"user", args[0]}}})
}

// Print prints a decision of the Router of this name.
func Print(c *kit.Terminal, router string, rec functions.RouteRecord) error {
	return c.PrintDocument("Route", rec.ID, rec, func() {
		target := cmp.Or(rec.Target, "no target")
		fmt.Fprintf(c.Out, "%s: %s\n%s\n\n", kit.Plain(router), kit.Plain(target), kit.Plain(rec.Reason))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(c.Out, "%-10s %s\n", name, kit.Plain(value))
			}
		}
		row("request", rec.ID)
		row("time", rec.Time)
		row("rule", rec.Rule)
		row("stage", string(rec.Stage))
		row("data", string(rec.Data))
		row("cold", string(rec.Cold))
		row("objective", objectiveText(rec.Objective, rec.Currency))
		row("prewarmed", rec.Prewarm)
		row("after", rec.After)
		row("cache", rec.Cache)
		row("seen", featuresText(rec.Features))
		if rec.Code != 0 {
			row("answer", strconv.Itoa(rec.Code))
		}
		if rec.Outcome != nil {
			row("outcome", strconv.FormatFloat(*rec.Outcome, 'g', 4, 64))
		}
		if len(rec.Candidates) > 0 {
			fmt.Fprintln(c.Out)
			kit.PrintTable(c.Out, candidateKind(rec), rec.Candidates, c.Output == "wide", nil)
		}
	})
}

func objectiveText(o functions.Objective, currency string) string {
	var parts []string
	if o.FirstToken > 0 {
		parts = append(parts, "first token within "+o.FirstToken.String())
	}
	if o.CostPerRequest > 0 {
		parts = append(parts, strings.TrimSpace("cost at most "+strconv.FormatFloat(o.CostPerRequest, 'g', 6, 64)+" "+currency))
	}
	return strings.Join(parts, ", ")
}

// featuresText lists what was seen in a request. What no rule asked for is left out.
func featuresText(f functions.RouteFeatures) string {
	parts := []string{"about " + strconv.Itoa(f.TokenCount) + " tokens"}
	for _, b := range []struct {
		name string
		is   bool
	}{
		{"code", f.Code}, {"structured output", f.StructuredOutput}, {"safety", f.Safety}, {"tools", f.Tools},
		{"images", f.Images}, {"repeated prefix", f.RepeatedPrefix},
	} {
		if b.is {
			parts = append(parts, b.name)
		}
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
	if f.Language != "" {
		parts = append(parts, "language "+f.Language)
	}
	if f.Complexity >= 0 {
		parts = append(parts, "complexity "+number(f.Complexity))
	}
	switch {
	case f.Intent != "":
		parts = append(parts, "intent "+f.Intent+" ("+number(f.Confidence)+")")
	case f.Confidence > 0:
		parts = append(parts, "no intent (the likeliest has "+number(f.Confidence)+")")
	}
	return strings.Join(parts, ", ")
}

func candidateKind(rec functions.RouteRecord) kit.Kind[functions.RouteCandidate] {
	return kit.Kind[functions.RouteCandidate]{Word: "Candidate", Name: func(v functions.RouteCandidate) string { return v.Name },
		Columns: []kit.Column[functions.RouteCandidate]{
			kit.Col("", func(v functions.RouteCandidate) string {
				if v.Name == rec.Target {
					return "*"
				}
				return " "
			}),
			kit.Col("TARGET", func(v functions.RouteCandidate) string { return v.Name }),
			kit.Col("KIND", func(v functions.RouteCandidate) string { return v.Kind }),
			kit.Col("STATE", func(v functions.RouteCandidate) string { return v.State }),
			kit.Col("FIRST TOKEN", func(v functions.RouteCandidate) string {
				if v.ExpectedMS < 0 {
					return "unknown"
				}
				return strconv.FormatFloat(v.ExpectedMS, 'f', 1, 64) + " ms"
			}),
			kit.Col(strings.TrimSpace("COST "+rec.Currency), func(v functions.RouteCandidate) string {
				if v.Cost < 0 {
					return "unknown"
				}
				return costText(v.Cost)
			}),
			kit.Col("WHY NOT", func(v functions.RouteCandidate) string { return v.WhyNot }),
		}}
}

// costText has four digits that count and no exponent: a request costs millionths.
func costText(v float64) string {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		rounded = v
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

const (
	progressEvery = 200 * time.Millisecond
	rewakeEvery   = 20 * time.Second // less than the least lease of a wake
)

// coldStartCanceled is the error of a cold start whose last request left.
const coldStartCanceled = "called_off"

func describeProgress(name string, t api.ColdStart, bytesPerSecond float64) string {
	p := t.Progress
	parts := []string{name, t.State.Word()}
	if p.Percent >= 0 {
		parts = append(parts, kit.Bar(p.Percent), fmt.Sprintf("%d%%", p.Percent))
	}
	if p.Total > 0 && t.State == functions.Downloading {
		parts = append(parts, p.Bytes.Human()+"/"+p.Total.Human())
		if bytesPerSecond > 0 {
			parts = append(parts, functions.Bytes(bytesPerSecond).Human()+"/s")
		}
	}
	if t.ETA != nil && *t.ETA > 0 {
		parts = append(parts, "eta "+kit.Seconds(t.ETA))
	}
	return strings.TrimSuffix(strings.Join(parts, " ")+": "+t.Problem(), ": ")
}

// describeStart is a cold start in one line, with the word that changes with its state: of one
// that no node takes, why. One that no node can ever take is an error.
func describeStart(ctx context.Context, cl *api.Client, name functions.Name, t api.ColdStart,
	bytesPerSecond float64) (state, text string, err error) {
	if t.Node == "" {
		switch f, err := cl.Function(ctx, name); {
		case err == nil && f.Final:
			return "", "", cannotLoad(f.Name, f.Problem)
		case err == nil && f.Blocked != "":
			return f.Problem, tables.ShortName(f.Name) + " blocked: " + f.Problem, nil
		}
	}
	return string(t.State) + t.Problem(), describeProgress(tables.ShortName(name.String()), t, bytesPerSecond), nil
}

// cannotLoad is the error of a model that no node can ever hold.
func cannotLoad(name, why string) error {
	return &kit.Error{Exit: kit.ExitUnavailable, What: tables.ShortName(name) + " cannot be loaded here: " + why,
		Hint: "thaw explain place " + tables.ShortName(name) +
			" shows the nodes; it takes less in its spec.resources, or another machine: thaw serve --agents-addr"}
}

// followColdStart shows a cold start until it is READY. An id of "" is a function that is
// up already.
func (m modelVerbs) followColdStart(ctx context.Context, cl *api.Client, name functions.Name, id string) error {
	if id == "" {
		return nil
	}
	l := m.NewProgressLine()
	defer l.Clear()
	var r kit.Rate
	asked := m.Now()
	for unknown := 0; ; {
		// A start without waiting requests is cancelled: another wake renews this one.
		if now := m.Now(); now.Sub(asked) > rewakeEvery {
			w, err := cl.Wake(ctx, name, 0)
			if err != nil {
				return err
			}
			if asked = now; w.ColdStart == "" {
				return nil
			}
			id = w.ColdStart
		}
		t, err := cl.ColdStart(ctx, id)
		if s, ok := errors.AsType[*api.StatusError](err); ok && s.Status == 404 && unknown < 50 {
			// The wake is an ask; the loop takes a moment to begin.
			unknown++
		} else if err != nil {
			return err
		} else {
			switch {
			case t.Error == coldStartCanceled || t.Error == "" && t.State == functions.Unloaded:
				return &kit.Error{Exit: kit.ExitUnavailable, What: "the start of " + tables.ShortName(name.String()) + " was called off"}
			case t.State == functions.Failed && t.Node == "":
				return cannotLoad(name.String(), t.Error)
			case t.Error != "" || t.State == functions.Failed:
				return &kit.Error{
					Exit: kit.ExitFailed, What: tables.ShortName(name.String()) + " could not be loaded: " + t.Error,
					Hint: "thaw describe " + tables.ShortName(name.String()) + " and thaw logs " + tables.ShortName(name.String()) + " tell more",
				}
			case t.State == functions.Ready:
				return nil
			}
			state, text, err := describeStart(ctx, cl, name, t, r.Add(m.Now(), t.Progress.Bytes))
			if err != nil {
				return err
			}
			l.Show(state, text)
		}
		if !backoff.Sleep(ctx, progressEvery) {
			return ctx.Err()
		}
	}
}

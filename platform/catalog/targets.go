package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// CheckTargets lists what is wrong between the Routers of docs and what they name. A
// target that can never be chosen is a warning: the Router works without it. One that is not
// there is a warning with Unknown set.
func CheckTargets(docs []Document) Problems {
	byKey := map[string]Document{}
	for _, d := range docs {
		byKey[d.key()] = d
	}
	return checkTargets(byKey)
}

// checkTargets is CheckTargets with the documents by key.
func checkTargets(docs map[string]Document) (problems Problems) {
	known := knownFunctions(docs)
	var routers []string
	for key, d := range docs {
		if d.Router != nil && !d.incomplete {
			routers = append(routers, key)
		}
	}
	slices.Sort(routers)
	for _, key := range routers {
		problems = append(problems, known.checkRouter(docs[key])...)
	}
	return problems
}

// knownFunctions are all documents by key.
type knownFunctions map[string]Document

// checkRouter lists the targets of a Router that can never be chosen.
func (k knownFunctions) checkRouter(d Document) (problems Problems) {
	r := d.Router
	for i, rule := range r.Spec.Rules {
		var never Problems
		for j, target := range rule.To {
			p := Problem{File: d.File, Line: d.Line, Path: fmt.Sprintf("spec.rules[%d].to[%d]", i, j), Warning: true}
			if d.places != nil {
				p.Line, p.Column = d.places(p.Path)
			}
			name, _ := functions.ParseName(target, r.Metadata.Namespace) // it was validated
			t, class := k[name.WithoutAdapter().String()], k.class(r)
			switch p.Message, p.Hint = k.missing(r, target); {
			case p.Message != "":
				p.Unknown = true
			case t.incomplete && t.Router == nil:
				continue
			case t.Router != nil:
				p.Warning, p.Message, p.Hint = false, fmt.Sprintf("%s is a Router, and a Router is no target", target), "name its targets instead"
			case t.Remote != nil && class.Rank() > t.Remote.Spec.Allow.Rank():
				p.Message = fmt.Sprintf("the Remote %s takes %s data at most, and the data of this Router is %s, so %s is never chosen", target, t.Remote.Spec.Allow, class, target)
				p.Hint = fmt.Sprintf("data: %s on the Router or its team, or allow: %s on the Remote", t.Remote.Spec.Allow, class)
			default:
				continue
			}
			never = append(never, p)
		}
		if n := len(never); n > 0 && n == len(rule.To) {
			never[n-1].Message += "; the rule " + rule.Name + " has no target left"
		}
		problems = append(problems, never...)
	}
	return problems
}

// class is the class of the data that comes to a Router.
func (k knownFunctions) class(r *functions.Router) functions.DataClass {
	if r.Spec.Data != "" {
		return r.Spec.Data
	}
	if t := k[Document{Team: &functions.Team{Metadata: functions.Metadata{Name: r.Metadata.Namespace}}}.key()]; t.Team != nil && t.Team.Spec.Data != "" {
		return t.Team.Spec.Data
	}
	return functions.DataInternal
}

// missing returns why a target does not exist, and the fix; nothing if it does.
func (k knownFunctions) missing(r *functions.Router, target string) (message, hint string) {
	name, err := functions.ParseName(target, r.Metadata.Namespace)
	if err != nil {
		return err.Error(), ""
	}
	d, ok := k[name.WithoutAdapter().String()]
	switch {
	case ok && (name.Adapter == "" || d.incomplete):
		return "", ""
	case ok && d.Model == nil && d.Remote != nil:
		return fmt.Sprintf("%s is a Remote, and a Remote has no adapters", name.WithoutAdapter()), "leave out :" + name.Adapter
	case ok && d.Model != nil && !slices.ContainsFunc(d.Model.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name.Adapter }):
		var adapters []string
		for _, a := range d.Model.Spec.Adapters {
			adapters = append(adapters, a.Name)
		}
		if nearest := functions.Nearest(name.Adapter, adapters, 1); len(nearest) > 0 {
			hint = "did you mean " + nearest[0] + "?"
		}
		return fmt.Sprintf("the model %s has no adapter %s", name.WithoutAdapter(), name.Adapter), hint
	case ok:
		return "", ""
	}
	// The default team's auto serves all teams, each of which may have a target of that
	// name.
	everyone := r.FullName() == functions.Name{Team: functions.DefaultTeam, Name: functions.AutoRouter} && !strings.Contains(target, "/")
	var names []string
	for key, d := range k {
		if d.Team != nil || d.Router != nil {
			continue
		}
		n := d.FullName()
		if everyone && n.Name == name.Name {
			return "", ""
		}
		if n.Team == r.Metadata.Namespace {
			key = n.Name
		}
		names = append(names, key)
	}
	if nearest := functions.Nearest(target, names, 1); len(nearest) > 0 {
		hint = "did you mean " + nearest[0] + "?"
	}
	return fmt.Sprintf("there is no function %s", name.WithoutAdapter()), hint
}

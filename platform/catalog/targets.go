package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// CheckTargets lists what is wrong between the Routers and Compositions of docs and what they
// name, and warns of Remotes whose url is unlikely. A target that can never be chosen is a warning: the others work without it. One that
// is not there is a warning with Unknown set.
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
	for _, key := range slices.Sorted(maps.Keys(docs)) {
		var found Problems
		d := docs[key]
		switch {
		case d.Router != nil:
			found = known.checkRouter(d)
		case d.Composition != nil:
			found = known.checkComposition(d)
		case d.Remote != nil:
			found = checkRemote(d)
		}
		if d.incomplete { // the others may follow from what did not decode
			found = functions.Filter(found, func(p Problem) bool { return p.Unknown })
		}
		problems = append(problems, found...)
	}
	return problems
}

// checkRemote warns of a url that most servers do not have: one without a path.
func checkRemote(d Document) Problems {
	u, err := url.Parse(d.Remote.Spec.URL)
	if err != nil || strings.Trim(u.Path, "/") != "" {
		return nil
	}
	p := d.problemAt("spec.url")
	p.Warning = true
	p.Message = "the url has no path, so chats are asked for at /chat/completions; most servers have them at /v1/chat/completions"
	p.Hint = "did you mean " + functions.Clip(strings.TrimRight(d.Remote.Spec.URL, "/")) + "/v1?"
	return Problems{p}
}

// knownFunctions are all documents by key.
type knownFunctions map[string]Document

// checkRouter lists the targets of a Router that can never be chosen.
func (k knownFunctions) checkRouter(d Document) (problems Problems) {
	r := d.Router
	// The default team's auto serves all teams, each of which may have a target of that
	// name.
	everyone := r.FullName() == functions.Name{Team: functions.DefaultTeam, Name: functions.AutoRouter}
	for i, rule := range r.Spec.Rules {
		var never Problems
		for j, target := range rule.To {
			p := d.problemAt(fmt.Sprintf("spec.rules[%d].to[%d]", i, j))
			p.Warning = true
			name, err := functions.ParseName(target, r.Metadata.Namespace)
			if err != nil { // validation reports it
				continue
			}
			t, class := k[name.WithoutAdapter().String()], cmp.Or(r.Spec.Data, k.classOfTeam(r.Metadata.Namespace))
			switch p.Message, p.Hint = k.missing(naming{team: r.Metadata.Namespace, everyone: everyone}, target); {
			case p.Message != "":
				p.Unknown = true
			case t.incomplete && t.Router == nil:
				continue
			case t.Router != nil:
				p.Warning, p.Message, p.Hint = false, fmt.Sprintf("%s is a Router, and a Router is no target", target), "name its targets instead"
			case t.Remote != nil && class.Rank() > t.Remote.Spec.Allow.Rank():
				p.Message = fmt.Sprintf("the Remote %s takes %s data at most, and the data of this Router is %s, so %s is never chosen", target,
					t.Remote.Spec.Allow, class, target)
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
	return append(problems, k.checkWay(d, "spec.rules")...)
}

// classOfTeam is the class of the data of a team's requests.
func (k knownFunctions) classOfTeam(team string) functions.DataClass {
	if t := k[Document{Team: &functions.Team{Metadata: functions.Metadata{Name: team}}}.key()]; t.Team != nil && t.Team.Spec.Data != "" {
		return t.Team.Spec.Data
	}
	return functions.DataInternal
}

// naming is where a target is named: in a document of the team.
type naming struct {
	team     string
	everyone bool // it may be a function of any team
	routers  bool // it may be a Router
}

// missing returns why a target does not exist, and the fix; nothing if it does.
func (k knownFunctions) missing(in naming, target string) (message, hint string) {
	name, err := functions.ParseName(target, in.team)
	if err != nil {
		return err.Error(), ""
	}
	d, ok := k[name.WithoutAdapter().String()]
	switch {
	case ok && (name.Adapter == "" || d.incomplete):
		return "", ""
	case ok && d.Model == nil && (d.Router == nil || in.routers):
		return fmt.Sprintf("%s is a %s, and a %[2]s has no adapters", name.WithoutAdapter(), d.Kind()), "leave out :" + name.Adapter
	case ok && d.Model != nil && !slices.ContainsFunc(d.Model.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name.Adapter }):
		adapters := functions.ConvertAll(d.Model.Spec.Adapters, func(a functions.Adapter) string { return a.Name })
		return fmt.Sprintf("the model %s has no adapter %s", name.WithoutAdapter(), name.Adapter), functions.DidYouMean(name.Adapter, adapters, 1)
	case ok:
		return "", ""
	}
	var names []string
	for key, d := range k {
		if d.Team != nil || d.Router != nil && !in.routers {
			continue
		}
		n := d.FullName()
		if in.everyone && n.Name == name.Name && !strings.Contains(target, "/") {
			return "", ""
		}
		if n.Team == in.team {
			key = n.Name
		}
		names = append(names, key)
	}
	return fmt.Sprintf("there is no function %s", name.WithoutAdapter()), functions.DidYouMean(target, names, 1)
}

package catalog

import (
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// checkComposition lists what is wrong between a Composition and the functions that it
// names. One that can never be asked is a warning: it may be deployed later.
func (k knownFunctions) checkComposition(d Document) (problems Problems) {
	c := d.Composition
	team := c.Metadata.Namespace
	class := k.classOfTeam(team)
	left, never := len(c.Spec.Members.List), 0
	for _, part := range c.Spec.Parts() {
		name, err := functions.ParseName(part.Target, team)
		if err != nil { // validation reports it
			continue
		}
		p := d.problemAt(part.Path)
		p.Warning = true
		t := k.resolve(name, team)
		switch p.Message, p.Hint = k.missing(naming{team: team, routers: true}, part.Target); {
		case t.Router != nil && name.Adapter == "": // also the default team's auto
			continue
		case p.Message != "":
			p.Unknown = true
		case t.incomplete:
			continue
		case t.Remote != nil && class.Rank() > t.Remote.Spec.Allow.Rank():
			p.Message = fmt.Sprintf("the Remote %s takes %s data at most, and the data of this team is %s, so %[1]s is never asked", part.Target,
				t.Remote.Spec.Allow, class)
			p.Hint = fmt.Sprintf("data: %s on the team, or allow: %s on the Remote", t.Remote.Spec.Allow, class)
		default:
			continue
		}
		if part.Path == "spec.coordinator" {
			p.Message += "; without its coordinator a Composition cannot answer"
		} else if never++; left > 0 && left-never < c.Spec.Answers() {
			p.Message += fmt.Sprintf("; of %d members %d must answer, and that many are not left", left, c.Spec.Answers())
		}
		problems = append(problems, p)
	}
	return append(problems, k.checkWay(d, "spec.members")...)
}

// checkWay reports, at a path of the document, what d names leading back to it or too deep.
func (k knownFunctions) checkWay(d Document, path string) Problems {
	p := d.problemAt(path)
	if circle := k.circle(d); circle != nil {
		p.Message = "the members lead back to this Composition: " + functions.Clip(strings.Join(circle, " asks "))
		p.Hint = "a Composition asks functions that do not ask it"
		if d.Router != nil {
			p.Message, p.Hint = strings.Replace(p.Message, "members lead back to this Composition", "targets lead back to this Router", 1),
				"a Composition that a Router names asks functions that do not ask the Router"
		}
		return Problems{p}
	}
	if n := k.depth(d, map[string]int{}); n > functions.MaxCompositionDepth {
		p.Message, p.Hint = fmt.Sprintf("a request would go through %d Compositions and Remotes, one behind the other", n),
			fmt.Sprintf("at most %d, this one counted", functions.MaxCompositionDepth)
		if d.Router != nil {
			p.Hint = fmt.Sprintf("at most %d", functions.MaxCompositionDepth)
		}
		return Problems{p}
	}
	return nil
}

// problemAt is a problem at a path of the document, without its message.
func (d Document) problemAt(path string) Problem {
	p := Problem{File: d.File, Line: d.Line, Path: path}
	if d.places != nil {
		p.Line, p.Column = d.places(path)
	}
	return p
}

// resolve returns the function that a name in a document of the team means; the default
// team's auto serves all teams.
func (k knownFunctions) resolve(name functions.Name, team string) Document {
	d, ok := k[name.WithoutAdapter().String()]
	if auto := (functions.Name{Team: functions.DefaultTeam, Name: functions.AutoRouter}); !ok && name.Name == functions.AutoRouter &&
		name.Team == team {
		d = k[auto.String()]
	}
	return d
}

// named lists the functions that a Composition or a Router names and that there are.
func (k knownFunctions) named(d Document) (docs []Document) {
	for _, t := range d.Targets() {
		team := d.FullName().Team
		name, err := functions.ParseName(t, team)
		if next := k.resolve(name, team); err == nil && (next.Composition != nil || next.Router != nil || next.Remote != nil) {
			docs = append(docs, next)
		}
	}
	return docs
}

// circle returns the names on a way from a Composition or a Router back to itself; nil where
// there is none.
func (k knownFunctions) circle(d Document) []string {
	seen := map[string]bool{}
	var walk func(at Document, path []string) []string
	walk = func(at Document, path []string) []string {
		for _, next := range k.named(at) {
			key := next.key()
			if key == d.key() {
				return append(path, key)
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			if found := walk(next, append(path, key)); found != nil {
				return found
			}
		}
		return nil
	}
	return walk(d, []string{d.key()})
}

// depth is how many Compositions and Remotes are at most behind each other from d on. known
// has what was computed; a circle counts once.
func (k knownFunctions) depth(d Document, known map[string]int) int {
	if n, ok := known[d.key()]; ok {
		return n
	}
	known[d.key()] = 0
	deepest := 0
	for _, next := range k.named(d) {
		deepest = max(deepest, k.depth(next, known))
	}
	if d.Router == nil {
		deepest++
	}
	known[d.key()] = deepest
	return deepest
}

package functions

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of one Composition, so that one request does not become thousands.
const (
	maxMembers      = 16
	maxRounds       = 8
	maxCalls        = 256
	maxBudgetTokens = 100_000_000
	maxBudgetTime   = Duration(6 * time.Hour)
)

const partHint = "NAME, NAME:ADAPTER or TEAM/NAME of a function"

// ValidateComposition lists the problems of c, which are of the document alone: whether its
// members exist, and lead back to it, the catalog checks.
func ValidateComposition(c *Composition) []Problem {
	var p problems
	p.checkFunction(c.APIVersion, c.Kind, KindComposition, c.Metadata)
	s := &c.Spec
	if s.Pattern == "" {
		p.add("spec.pattern", "one of "+joinWords(Patterns), "a pattern is needed")
	}
	checkWord(&p, "spec.pattern", "pattern", s.Pattern, Patterns)
	p.checkMembers(c.FullName(), s)
	if s.Coordinator == "" {
		p.add("spec.coordinator", partHint, "a coordinator is needed: it writes the answer")
	} else {
		p.checkPart("spec.coordinator", c.FullName(), s.Coordinator)
	}
	p.checkRounds(s)
	p.checkQuorum(s)
	checkWord(&p, "spec.show", "way to show progress", s.Show, Shows)
	p.checkBudget(s)
	return p
}

// checkMembers checks the list of members, or the agents of a maestro.
func (p *problems) checkMembers(self Name, s *CompositionSpec) {
	const path = "spec.members"
	agents := s.Members.ByRole()
	switch {
	case s.Pattern == PatternMaestro && len(s.Members.List) > 0:
		p.add(path, "such as {reasoning: NAME, code: NAME, critic: NAME}",
			"a maestro's members are named by what they are for: research, reasoning, creative, code and critic")
		return
	case s.Pattern == PatternMaestro:
		if delete(agents, "critic"); len(agents) == 0 {
			p.add(path, "such as {reasoning: NAME, code: NAME, critic: NAME}", "a maestro needs an agent that answers, and there is none")
		}
	case s.Pattern != "" && len(agents) > 0:
		p.add(path, "such as [small-a, small-b]", "keys and values where a list is wanted: only a maestro's members have roles")
		return
	case len(s.Members.List) > maxMembers:
		p.add(path, fmt.Sprintf("at most %d members", maxMembers), "%d members are too many", len(s.Members.List))
		return
	case s.Pattern == PatternGraph && len(s.Members.List) == 0:
		p.add(path, "such as [small-a, small-b]", "a member is needed")
	case (s.Pattern == PatternEnsemble || s.Pattern == PatternDebate) && len(s.Members.List) < 2:
		p.add(path, "such as [small-a, small-b]", "%s of %s has no answers to compare", withArticle(string(s.Pattern)),
			countOf(len(s.Members.List), "member"))
	}
	for i, m := range s.Members.List {
		at := fmt.Sprintf("%s[%d]", path, i)
		if slices.Contains(s.Members.List[:i], m) {
			p.add(at, "a member stands once in a list", "%q is already in this list", Clip(m))
			continue
		}
		p.checkPart(at, self, m)
	}
	for role, member := range s.Members.byRole {
		p.checkPart(path+"."+role, self, member)
	}
}

// checkPart checks the name of a member or a coordinator of self.
func (p *problems) checkPart(path string, self Name, part string) {
	name, err := ParseName(part, self.Team)
	switch {
	case err != nil && !IsLabel(self.Team) && !strings.Contains(part, "/"): // its namespace is the problem
	case err != nil:
		p.add(path, partHint, "%v", err)
	case name.WithoutAdapter() == self:
		p.add(path, "name other functions", "a Composition cannot ask itself")
	}
}

// checkRounds checks the rounds, which only a debate has.
func (p *problems) checkRounds(s *CompositionSpec) {
	switch {
	case s.Rounds != 0 && s.Pattern != PatternDebate && slices.Contains(Patterns, s.Pattern):
		p.add("spec.rounds", "leave it out", "%s has no rounds, a debate has", withArticle(string(s.Pattern)))
	case s.Rounds < 0 || s.Rounds > maxRounds || s.Rounds == 0 && s.Pattern == PatternDebate:
		p.add("spec.rounds", fmt.Sprintf("between 1 and %d", maxRounds), "%d is out of range", s.Rounds)
	}
}

// checkQuorum checks how many answers are enough, and for how long the others are waited for.
func (p *problems) checkQuorum(s *CompositionSpec) {
	members := len(s.Members.List)
	asksAll := s.Pattern == PatternEnsemble || s.Pattern == PatternDebate
	switch {
	case s.Quorum < 0:
		p.add("spec.quorum", "left out, more than half of the members must answer", "%d is no number of answers", s.Quorum)
	case s.Quorum > 0 && !asksAll && slices.Contains(Patterns, s.Pattern):
		p.add("spec.quorum", "leave it out", "%s does not ask all its members, so there is no quorum", withArticle(string(s.Pattern)))
	case s.Quorum > members && members > 0:
		p.add("spec.quorum", fmt.Sprintf("at most %d", members), "%d answers of %s cannot be had", s.Quorum, countOf(members, "member"))
	}
	switch {
	case s.Patience < 0:
		p.add("spec.patience", "such as 20s", "%s is no time to wait", s.Patience)
	case s.Patience > 0 && !asksAll && slices.Contains(Patterns, s.Pattern):
		p.add("spec.patience", "leave it out", "%s waits for each answer that it needs", withArticle(string(s.Pattern)))
	case s.Patience > 0 && s.Budget.Time > 0 && s.Patience > s.Budget.Time:
		p.add("spec.patience", "shorter than spec.budget.time", "%s is longer than the whole request may take, which is %s", s.Patience,
			s.Budget.Time)
	}
}

// checkBudget checks the bounds of one request.
func (p *problems) checkBudget(s *CompositionSpec) {
	b := s.Budget
	fewest := 3 // a coordinator that plans, one call, and the synthesis
	if s.Pattern == PatternEnsemble || s.Pattern == PatternDebate {
		fewest = s.Answers() + 1
	}
	switch {
	case b.Calls < 0 || b.Calls > maxCalls:
		p.add("spec.budget.calls", fmt.Sprintf("between 1 and %d", maxCalls), "%d is out of range", b.Calls)
	case b.Calls > 0 && b.Calls < fewest && slices.Contains(Patterns, s.Pattern):
		p.add("spec.budget.calls", fmt.Sprintf("%d or more", fewest), "%s are too few for an answer, with the coordinator's",
			countOf(b.Calls, "call"))
	}
	p.checkCount("spec.budget.coldStarts", b.ColdStarts, 0)
	if b.Tokens < 0 || b.Tokens > maxBudgetTokens {
		p.add("spec.budget.tokens", fmt.Sprintf("between 1 and %d; left out, there is no bound", maxBudgetTokens), "%d is out of range", b.Tokens)
	}
	p.checkAmount("spec.budget.cost", b.Cost)
	if b.Time <= 0 || b.Time > maxBudgetTime {
		p.add("spec.budget.time", fmt.Sprintf("such as 5m, at most %s", maxBudgetTime), "%s is no time for an answer: every wait has a bound",
			b.Time)
	}
}

// withArticle puts the article before a pattern's name.
func withArticle(word string) string {
	if strings.HasPrefix(word, "e") {
		return "an " + word
	}
	return "a " + word
}

// countOf is a number of things for people.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

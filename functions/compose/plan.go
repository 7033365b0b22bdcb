package compose

import (
	"fmt"
	"maps"
	"slices"
)

// agentRoles are the roles that a maestro's coordinator chooses among, in the order in
// which they are shown to it. The critic is not chosen: it reviews.
var agentRoles = []string{RoleResearch, RoleReasoning, RoleCreative, RoleCode}

// check reports what makes p impossible to run.
func (p *Plan) check() error {
	bad := func(format string, args ...any) error {
		return &Error{Kind: BadPlan, Detail: fmt.Sprintf(format, args...)}
	}
	members := len(p.Members)
	switch p.Pattern {
	case Ensemble, Debate, Graph:
		if members == 0 {
			return bad("members is empty")
		}
		for i, m := range p.Members {
			if m == "" || slices.Contains(p.Members[:i], m) {
				return bad("members: %q is empty or named twice", m)
			}
		}
	case Maestro:
		for _, role := range slices.Sorted(maps.Keys(p.Agents)) {
			if role != RoleCritic && !slices.Contains(agentRoles, role) {
				return bad("members: %q is no role of a maestro", role)
			}
			if p.Agents[role] == "" {
				return bad("members: %s has no member", role)
			}
		}
		if members = len(p.roles()); members == 0 {
			return bad("members: no agent beside the critic")
		}
	default:
		return bad("pattern %q is none", p.Pattern)
	}
	if p.Coordinator == "" {
		return bad("coordinator is missing")
	}
	if p.Quorum < 0 || p.Quorum > members && p.Pattern != Graph {
		return bad("quorum %d of %d members", p.Quorum, members)
	}
	if p.Rounds < 0 || p.Patience < 0 || p.Quoted < 0 {
		return bad("rounds, patience or quoted is negative")
	}
	b := p.Budget
	if b.Calls < 0 || b.Tokens < 0 || b.Cost < 0 || b.Time < 0 {
		return bad("budget is negative")
	}
	if least := p.leastCalls(); b.Calls > 0 && b.Calls < least {
		return bad("budget.calls is %d: a run needs at least %d", b.Calls, least)
	}
	return nil
}

// leastCalls returns the number of calls below which no run succeeds: the answers of a
// quorum and the synthesis, and for maestro and graph the plan.
func (p *Plan) leastCalls() int {
	switch p.Pattern {
	case Maestro, Graph:
		return 3
	default:
		return quorumOf(p.Quorum, len(p.Members)) + 1
	}
}

// roles lists the agents that the coordinator of a maestro chooses among.
func (p *Plan) roles() (list []string) {
	for _, role := range agentRoles {
		if p.Agents[role] != "" {
			list = append(list, role)
		}
	}
	return list
}

// quorumOf returns how many of n answers are enough: quorum, or without one more than half.
func quorumOf(quorum, n int) int {
	if quorum == 0 {
		quorum = n/2 + 1
	}
	return min(quorum, n)
}

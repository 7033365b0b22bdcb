package compose

import "cmp"

// agentRoles are the roles that a maestro's coordinator chooses among, in the order in
// which they are shown to it. The critic is not chosen: it reviews.
var agentRoles = []string{RoleResearch, RoleReasoning, RoleCreative, RoleCode}

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
	return min(cmp.Or(quorum, n/2+1), n)
}

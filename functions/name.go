package functions

import (
	"cmp"
	"fmt"
	"strings"
)

// DefaultTeam owns what names no team.
const DefaultTeam = "default"

// Name is the full name of a function: TEAM/NAME, and for an adapter
// TEAM/NAME:ADAPTER. Team and Name are DNS labels (RFC 1123).
type Name struct {
	Team    string
	Name    string
	Adapter string
}

// ParseName reads NAME, TEAM/NAME, NAME:ADAPTER or TEAM/NAME:ADAPTER. team is
// the team of a name without one.
func ParseName(s, team string) (Name, error) {
	n := Name{Team: team}
	rest := s
	if t, r, ok := strings.Cut(rest, "/"); ok {
		n.Team, rest = t, r
	}
	if b, a, ok := strings.Cut(rest, ":"); ok {
		if !IsLabel(a) {
			return Name{}, fmt.Errorf("adapter %q is no DNS label (lower-case letters, digits and '-')", Clip(a))
		}
		rest, n.Adapter = b, a
	}
	n.Name = rest
	if !IsLabel(n.Team) || !IsLabel(n.Name) {
		return Name{}, fmt.Errorf("%q is no function name: want NAME or TEAM/NAME in lower-case letters, digits and '-'", Clip(s))
	}
	return n, nil
}

// String is TEAM/NAME, with :ADAPTER where there is one.
func (n Name) String() string {
	s := n.Team + "/" + n.Name
	if n.Adapter != "" {
		s += ":" + n.Adapter
	}
	return s
}

// Short is the name as its own team spells it: NAME or NAME:ADAPTER.
func (n Name) Short() string {
	if n.Adapter != "" {
		return n.Name + ":" + n.Adapter
	}
	return n.Name
}

func (n Name) WithoutAdapter() Name { return Name{Team: n.Team, Name: n.Name} }

// Compare orders names by team and name.
func (n Name) Compare(other Name) int {
	return cmp.Or(cmp.Compare(n.Team, other.Team), cmp.Compare(n.Name, other.Name))
}

// IsLabel reports whether s is a DNS label: 1 to 63 lower-case letters, digits
// and '-', beginning and ending with a letter or digit.
func IsLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return true
}

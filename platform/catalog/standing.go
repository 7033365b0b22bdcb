package catalog

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// FileProblem is why the file of a function cannot be used as it is now, while its version
// before serves on; "" if it can.
func (c *Catalog) FileProblem(name functions.Name) string {
	v := c.now()
	if p, bad := v.unused[v.docs[name.WithoutAdapter().String()].File]; bad {
		return p.Error() + "; the version before it serves on"
	}
	return ""
}

// FunctionsOf are the functions that the file serves, by name.
func (c *Catalog) FunctionsOf(file string) (names []functions.Name) {
	for _, d := range c.now().docs {
		if d.Team == nil && d.File == file {
			names = append(names, d.FullName())
		}
	}
	slices.SortFunc(names, func(a, b functions.Name) int { return strings.Compare(a.String(), b.String()) })
	return names
}
